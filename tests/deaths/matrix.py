"""The death matrix: what is to happen when this one dies, or stalls, in that state. The only place that says so.

Who dies, a row each. What is killed is a process, by SIGKILL; what stalls is stopped, by SIGSTOP, and goes on later.

application killed    a program with a trunk of its own; the gateway knows of it by silence, after quic_idle_timeout
application stalls    the same program, stopped for longer than quic_idle_timeout; it is told when it goes on
psql killed           behind a sidecar: the kernel closes its socket, and the sidecar resets the stream at once
sidecar killed        under a psql, which lives; the gateway knows by silence, psql by the end of its socket
gateway killed        under an application; and, in the next row, under a psql behind a sidecar
gateway stalls        stopped for longer than quic_idle_timeout; then it goes on, with sessions that nobody has any more
backend terminated    by pg_terminate_backend
Postgres restarts     stopped with ``immediate``, which is a crash to all who are connected, and started again
network silent        datagrams between application and gateway get lost from now on, both ways, and pass again later

In which state, a column each:

login        StartupMessage sent, no ReadyForQuery yet. The login waits for the first backend of its pool, which is held
             up on its way to Postgres; in the rows of backend and Postgres, where that would leave nothing to die, it
             is the client that has sent half of its StartupMessage, while the pool has a backend
idle         between two transactions
waiting      a query is sent; the pool's only backend is another session's, which is in a transaction
running      an UPDATE, followed by a sleep of ten minutes in the same query
transaction  after BEGIN and an UPDATE
copy         after COPY FROM STDIN and some of the data
pipeline     Parse, Bind and Execute of an INSERT are sent, and Postgres has run them; Sync is not sent, or a gateway
             that stalls would find it later, and the INSERT would be committed
cancel       as running, and a CancelRequest for it is on its way from the gateway to Postgres

What is expected, ``told`` and ``backend``:

told      what the client hears, if it lives: the SQLSTATE that the gateway, the trunk or the sidecar gave; "answer",
          which is what it had asked for, and no error; "cut", the end of its connection without a word; "words", an
          error whose SQLSTATE psql does not show; "-", nobody is left to be told
backend   what the pool's next session is given: the "same" backend as before, with the same pid; or a "new" one

In all cells, whatever is told: nothing is committed that the client had not committed, and no lock is left; what ran
for a client that is gone is cancelled in Postgres; a bystander, which works all the time by another pool of the same
gateway, notices nothing; and when the last client has left, the gateway's counters are what they were at the start:
sessions, admitted, waiting, connecting, leased, cancels, cancel keys, streams and the bytes that streams hold.

What needs a word:

- A gateway that is dead cannot cancel what runs. Postgres does, if client_connection_check_interval is set; else what
  runs goes on to its end. It is set here. The bystander of these rows is at another gateway of the same Postgres, and
  what is looked at afterwards is that the application's trunk finds a gateway again that is started in the same place.
- A gateway that stalls keeps its backends, and their locks, as long as it stalls.
- Postgres's farewell on ``immediate`` is a warning, which the client gets (57P01); the error is the gateway's 08006.
- While Postgres restarts, who is idle, waits or logs in is not told anything: it waits, up to query_wait_timeout. So
  does the bystander, which rests while Postgres stops and asks while it is away.
- psql behind a killed sidecar is cut, with libpq's words "server closed the connection unexpectedly", which have no
  SQLSTATE. And what ends a login psql tells in words alone, without the SQLSTATE that it was given.
- Who was cancelled and killed at the same time is told of the death: the cancel had not reached Postgres.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["EXPECTED", "LONG", "STATES", "Outcome"]

STATES: Final = ("login", "idle", "waiting", "running", "transaction", "copy", "pipeline", "cancel")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What comes of a death; expected or observed."""

    told: str
    backend: str

    def __str__(self) -> str:
        return f"{self.told}, {self.backend}"


def _row(told: str, backends: str) -> Mapping[str, Outcome]:
    """A word for each state."""
    return {state: Outcome(*each) for state, *each in zip(STATES, told.split(), backends.split(), strict=True)}


LONG: Final = frozenset({"application stalls", "gateway killed, psql", "gateway stalls"})
"""Rows that are left to `make deaths` and `make test-long`: they take their time, and are near relatives of others."""

_KEPT: Final = "new  same  same  same  same  same  same  same"
_LOST: Final = "new  new   new   new   new   new   new   new"

# fmt: off
EXPECTED: Final[Mapping[str, Mapping[str, Outcome]]] = {
    #                             login   idle    waiting running transact. copy  pipeline cancel
    "application killed":   _row("-       -       -       -       -       -       -       -", _KEPT),
    "application stalls":   _row("08006   08006   08006   08006   08006   08006   08006   08006", _KEPT),
    "psql killed":          _row("-       -       -       -       -       -       -       -", _KEPT),
    "sidecar killed":       _row("cut     cut     cut     cut     cut     cut     cut     cut", _KEPT),
    "gateway killed":       _row("08006   08006   08006   08006   08006   08006   08006   08006", _LOST),
    "gateway killed, psql": _row("words   08006   08006   08006   08006   08006   08006   08006", _LOST),
    "gateway stalls":       _row("08006   08006   08006   08006   08006   08006   08006   08006", _KEPT),
    "backend terminated":   _row("answer  answer  answer  57P01   57P01   57P01   57P01   57P01", _LOST),
    "Postgres restarts":    _row("answer  answer  answer  08006   08006   08006   08006   08006", _LOST),
    "network silent":       _row("08006   08006   08006   08006   08006   08006   08006   08006", _KEPT),
}
# fmt: on

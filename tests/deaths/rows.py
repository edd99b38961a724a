"""The rows of the matrix: who the client is, and how the one who dies does.

A row is played in three steps: the stage is set and the client in its state, somebody dies, and in the end the client
says what it was told. What follows from all this is looked at by `play`, in the same way for each row.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from deaths.clients import ApplicationProcess, ApplicationTask, Psql
from deaths.matrix import Outcome
from deaths.stage import Stage
from helpers.datagrams import relay
from helpers.waiting import until

if TYPE_CHECKING:
    from helpers.site import Site

__all__ = ["ROWS", "database_of", "play_row"]

NOBODY: Final = "-"


async def application_killed(stage: Stage) -> str:
    await stage.prepare()
    client = ApplicationProcess(stage.port, stage.ca_file)
    await stage.enter(client)
    client.process.kill()
    await stage.until_given_up()
    return NOBODY


async def application_stalls(stage: Stage) -> str:
    await stage.prepare()
    client = ApplicationProcess(stage.port, stage.ca_file)
    await stage.enter(client)
    client.process.send_signal(signal.SIGSTOP)
    await stage.until_given_up()
    client.process.send_signal(signal.SIGCONT)
    return await client.told(stage.state)


async def psql_killed(stage: Stage) -> str:
    await stage.prepare()
    client = Psql(await stage.sidecar())
    await stage.enter(client)
    client.process.kill()
    await stage.until_given_up()
    return NOBODY


async def sidecar_killed(stage: Stage) -> str:
    await stage.prepare()
    sidecar = await stage.sidecar()
    client = Psql(sidecar)
    await stage.enter(client)
    sidecar.process.kill()
    told = await client.told(stage.state)
    await stage.until_given_up()
    return told


async def gateway_killed(stage: Stage) -> str:
    await stage.prepare_process()
    client = ApplicationTask(stage.port, stage.ca_file)
    await stage.enter(client)
    stage.process.send(signal.SIGKILL)
    told = await client.told(stage.state)
    stage.open_gate()
    await stage.replace_gateway()
    # The trunk finds the new gateway by itself.
    assert await client.ask_again() == "answer"
    return told


async def gateway_killed_psql(stage: Stage) -> str:
    await stage.prepare_process()
    client = Psql(await stage.sidecar())
    await stage.enter(client)
    stage.process.send(signal.SIGKILL)
    told = await client.told(stage.state)
    stage.open_gate()
    await stage.replace_gateway()
    return told


async def gateway_stalls(stage: Stage) -> str:
    await stage.prepare_process()
    client = ApplicationTask(stage.port, stage.ca_file)
    await stage.enter(client)
    stage.process.send(signal.SIGSTOP)
    told = await client.told(stage.state)
    stage.process.send(signal.SIGCONT)
    stage.open_gate()
    return told


async def backend_terminated(stage: Stage) -> str:
    await stage.prepare()
    client = ApplicationTask(stage.port, stage.ca_file)
    await stage.enter(client)
    (pid,) = stage.pids
    stage.site.admin.execute("SELECT pg_terminate_backend(%s)", pid)
    await until(lambda: pid not in stage.site.admin.backends())
    await stage.holder_is_lost()
    return await client.told(stage.state)


async def postgres_restarts(stage: Stage) -> str:
    await stage.prepare()
    client = ApplicationTask(stage.port, stage.ca_file)
    await stage.enter(client)
    postgres, gateway = stage.site.postgres, stage.gateway
    await stage.bystander.rest()
    await asyncio.to_thread(postgres.stop, "immediate")
    await until(lambda: gateway.counts(backends=0))
    telling = asyncio.create_task(client.told(stage.state))
    stage.bystander.go_on()
    await until(lambda: gateway.counts(waiting=2) or (telling.done() and gateway.counts(waiting=1)))
    await asyncio.to_thread(postgres.start)
    stage.site.admin.reconnect()
    stage.open_gate()
    await stage.holder_is_lost()
    return await telling


async def network_silent(stage: Stage) -> str:
    await stage.prepare()
    wire = await stage.enter_async_context(relay(stage.port))
    client = ApplicationTask(wire.port, stage.ca_file)
    await stage.enter(client)
    wire.is_silent = True
    told = await client.told(stage.state)
    await stage.until_given_up()
    wire.is_silent = False
    stage.open_gate()
    await stage.end_holder()
    assert await client.ask_again() == "answer"
    return told


HALF_LOGIN: Final = frozenset({"backend terminated", "Postgres restarts"})
"""Rows in which "login" is half a StartupMessage, see the matrix."""

ONE_BY_ONE: Final = frozenset({"Postgres restarts"})
"""Rows whose cells would be in each other's way."""

ROWS: Final[Mapping[str, Callable[[Stage], Awaitable[str]]]] = {
    "application killed": application_killed,
    "application stalls": application_stalls,
    "psql killed": psql_killed,
    "sidecar killed": sidecar_killed,
    "gateway killed": gateway_killed,
    "gateway killed, psql": gateway_killed_psql,
    "gateway stalls": gateway_stalls,
    "backend terminated": backend_terminated,
    "Postgres restarts": postgres_restarts,
    "network silent": network_silent,
}


async def play_row(who: str, states: Sequence[str], site: Site) -> dict[str, Outcome | Exception]:
    """Plays the cells of a row, at the same time unless Postgres itself is what dies -> what came of each."""
    starting = asyncio.Semaphore(2)
    if who in ONE_BY_ONE:
        return {state: await _kept(play(who, state, site, starting)) for state in states}
    outcomes = await asyncio.gather(*(_kept(play(who, state, site, starting)) for state in states))
    return dict(zip(states, outcomes, strict=True))


async def _kept(playing: Awaitable[Outcome]) -> Outcome | Exception:
    try:
        return await playing
    # Whatever it is, it is raised again where the cell's own test asks for its outcome.
    except Exception as failure:
        return failure


async def play(who: str, state: str, site: Site, starting: asyncio.Semaphore) -> Outcome:
    """Plays one cell -> what came of it; fails where something is left behind, or a bystander was harmed."""
    own_state = "half a login" if state == "login" and who in HALF_LOGIN else state
    async with Stage(site, database_of(state), own_state, starting) as stage:
        told = await ROWS[who](stage)
        stage.open_gate()
        await stage.no_trace()
        await stage.end_holder()
        pid = await stage.look()
        await stage.bystander.goes_on()
        await stage.leave()
        return Outcome(told, "same" if pid in stage.pids else "new")


def database_of(state: str) -> str:
    """The states of a row are played at the same time, each in a database of its own."""
    return f"deaths_{state}"

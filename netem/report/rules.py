"""What is asked of each scenario's figures: which arms are compared in what, and why that is of interest.

A rule names ways (:func:`netem.report.words.way`), not arms: of these, those with as many sessions are compared. The
words here frame; they hold no figures, since figures come from what is stored (a test looks for digits).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["FRAMES", "UNKNOWN", "Frame", "Rule"]


@dataclass(frozen=True, slots=True)
class Rule:
    """``ours`` against ``theirs`` in one figure."""

    figure: str
    ours: str
    theirs: str
    headline: bool = False
    """Whether it belongs to the page's first section."""
    unequal: bool = False
    """Whether unequal sessions are compared too, beside equal ones."""
    base: str = ""
    """Compare the same arm with itself under this workload instead; ``ours`` is the way, ``theirs`` is not used."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Why a scenario is run, what to bear in mind, what is compared, and what is drawn along its settings."""

    why: str
    rules: tuple[Rule, ...]
    along: tuple[str, ...] = ("p99_ms",)
    over_time: bool = False
    """Whether every plot over time is drawn, or that of the p99 alone."""
    unequal: tuple[tuple[str, str], ...] = ()
    """Arms of unequal sessions that rules marked so compare as well: those of the original experiment."""


def _quic(figure: str, *theirs: str, headline: str = "", unequal: str = "") -> tuple[Rule, ...]:
    """QUIC in process against each of these; those in ``headline`` and ``unequal`` are marked so."""
    return tuple(
        Rule(figure, "quic", each, headline=each in headline.split(), unequal=each in unequal.split())
        for each in theirs
    )


_COSTS: Final = (*_quic("pooler_cpu_us", "pgbouncer", "tcp"), *_quic("client_cpu_us", "pgbouncer"))

FRAMES: Final[dict[str, Frame]] = {
    "ramp": Frame(
        "A session has one question under way at a time, so the round trip bounds what it can ask each second; when "
        "more is asked than all sessions can carry, questions queue, and latency counts that. The original of this "
        "experiment gave QUIC several times the sessions of TCP, which answers a question about sessions. Arms with "
        "as many sessions on either side answer the question about QUIC.",
        (
            *_quic("mean_ms", "pgbouncer", "tcp", "direct", headline="pgbouncer", unequal="pgbouncer"),
            *_quic("p99_ms", "pgbouncer", "tcp", "direct"),
            *_quic("per_second", "pgbouncer", "tcp"),
            *_quic("seconds", "pgbouncer", "tcp", unequal="pgbouncer"),
            *_quic("client_rss_mb", "pgbouncer", headline="pgbouncer", unequal="pgbouncer"),
            *_quic("pooler_rss_mb", "pgbouncer"),
            *_quic("pooler_cpu_us", "pgbouncer", "tcp", headline="pgbouncer"),
            *_quic("client_cpu_us", "pgbouncer"),
        ),
        along=(),
        over_time=True,
        unequal=(("quic-50x40", "pgbouncer-500"), ("quic-1x40", "pgbouncer-10"), ("quic-5x40", "pgbouncer-10")),
    ),
    "loss": Frame(
        "Where a single small packet is under way, nothing behind it reveals its loss: TCP waits for its "
        "retransmission timeout, whose floor is the system's. QUIC's timers are shorter, other streams of a connection "
        "reveal a loss for it, and small frames are sent a second time while packets are being lost. TCP with a lower "
        "floor is here as well, since who may change routes on both ends can have that without QUIC; and all sessions "
        "over one TCP connection, which is what streams that do not wait for each other are to be held against.",
        (
            *_quic("p99_ms", "pgbouncer", "pgbouncer-rto30", "mux", "direct", headline="pgbouncer pgbouncer-rto30 mux"),
            *_quic("p99.9_ms", "pgbouncer", "pgbouncer-rto30", "mux"),
            *_quic("p50_ms", "pgbouncer", headline="pgbouncer"),
            *_quic("p99_ms", "tcp", "sidecar"),
            *_quic("p99_ms", "quic-plain", headline="quic-plain"),
            *_quic("packets_per_answer", "quic-plain"),
            *_quic("stalled_sessions", "pgbouncer", "mux", headline="mux"),
            *_quic("stalled_per_loss", "pgbouncer", "mux"),
            *_quic("pooler_cpu_us", "pgbouncer", "tcp", headline="pgbouncer"),
            *_quic("client_cpu_us", "pgbouncer"),
        ),
        along=("p99_ms", "p50_ms", "p99.9_ms"),
    ),
    "setup": Frame(
        "A new TCP session pays for its handshake, for TLS, and for the login, one round trip after the other. A new "
        "stream on a connection that stands pays for the login alone.",
        (
            *_quic("round_trips", "pgbouncer", "pgbouncer-tls", "tls", "direct", headline="pgbouncer-tls"),
            *_quic("round_trips_warm", "pgbouncer", "pgbouncer-tls", "tls", "direct", headline="pgbouncer-tls"),
            *_quic("login_round_trips", "pgbouncer-tls", "tls"),
            *_quic("elapsed_ms", "pgbouncer", "pgbouncer-tls", "tls", "direct", headline="pgbouncer"),
            *_quic("elapsed_ms_warm", "pgbouncer", "pgbouncer-tls", "tls", "direct"),
            *_quic("last_ms", "pgbouncer", "pgbouncer-tls", "tls", "direct", headline="pgbouncer-tls"),
            *_quic("last_ms_warm", "pgbouncer", "pgbouncer-tls", "tls", "direct"),
        ),
        along=(),
    ),
    "first_row": Frame(
        "Each of these is a round trip. TCP: the connection, SSLRequest, TLS, the startup packet, each of two "
        "further messages of SCRAM; then asyncpg has the query parsed, and then it runs. QUIC has the "
        "connection and TLS in one, and on a trunk that is there nothing of that; the first message of SCRAM "
        "travels with the startup packet where the trunk knows the method from before; and a trunk on its way "
        "back sends both as early data, in the flight in which its handshake begins. With a client's "
        "certificate a trunk waits, cold, until the gateway has accepted it.",
        (
            *_quic("round_trips", "pgbouncer-tls", "tls", headline="pgbouncer-tls"),
            *_quic("round_trips_warm", "pgbouncer-tls", "tls", headline="pgbouncer-tls"),
            *_quic("elapsed_ms", "pgbouncer-tls", "tls"),
            *_quic("elapsed_ms_warm", "pgbouncer-tls", "tls"),
        ),
        along=("round_trips_resumed", "elapsed_ms_resumed"),
    ),
    "transactions": Frame(
        "A transaction that is written statement by statement holds a backend over the long link while its client "
        "thinks; written as one statement, it holds it for as long as it runs. Both can be done over either transport.",
        (
            Rule("pinned_ms", "*", "", base="transaction", headline=True),
            Rule("per_second", "*", "", base="transaction"),
            *_quic("per_second", "pgbouncer", "tcp", "direct", headline="pgbouncer"),
            *_quic("pinned_ms", "pgbouncer", "tcp", headline="pgbouncer"),
            *_quic("p50_ms", "pgbouncer"),
            *_quic("p99_ms", "pgbouncer"),
        ),
        along=("per_second", "pinned_ms"),
    ),
    "bulk": Frame(
        "A large result and short questions share the link. On one TCP connection the short ones wait behind the "
        "large one; on connections of their own, or on streams, they need not.",
        (
            *_quic("p99_ms", "pgbouncer", "mux", "tcp", "direct", headline="pgbouncer mux"),
            *_quic("p50_ms", "pgbouncer", "mux"),
            *_quic("per_second", "pgbouncer", headline="pgbouncer"),
            *_quic("bulk_mbit_s", "pgbouncer", "tcp", "direct", "mux", headline="pgbouncer"),
            *_COSTS,
        ),
        along=("p99_ms", "bulk_mbit_s"),
    ),
    "bottleneck": Frame(
        "What is sent twice takes room. On a link that has none to spare it would make matters worse, so copies stop "
        "when a queue stands. A TCP flow beside shows whether each leaves the other its share.",
        (
            *_quic("p50_ms", "quic-plain", "pgbouncer", headline="quic-plain pgbouncer"),
            *_quic("p99_ms", "quic-plain", "pgbouncer", headline="quic-plain pgbouncer"),
            Rule("p99_ms", "quic-shared", "quic-plain-shared"),
            Rule("p99_ms", "quic-shared", "pgbouncer-shared"),
            Rule("competing_mbit_s", "quic-shared", "pgbouncer-shared", headline=True),
            Rule("competing_mbit_s", "quic-shared", "quic-plain-shared"),
        ),
    ),
    "burst": Frame(
        "All questions of a burst are there at once; with fewer sessions than questions the last one waits for as many "
        "round trips as there are questions for each session. Whether streams do better than connections shows where "
        "there are as many of both.",
        (
            *_quic("max_ms", "pgbouncer", "tcp", "direct", headline="pgbouncer", unequal="pgbouncer"),
            *_quic("p50_ms", "pgbouncer", "tcp"),
            *_quic("p99_ms", "pgbouncer"),
            *_quic("client_rss_mb", "pgbouncer"),
        ),
        along=(),
        over_time=True,
        unequal=(("quic-1x40", "pgbouncer-10"), ("quic-5x40", "pgbouncer-10")),
    ),
    "pooled": Frame(
        "Users who insert and think, as a web application has them. A connection for each request pays for its set-up "
        "each time, and straight to Postgres runs into its limit of clients; a pool does neither.",
        (
            *_quic("p95_ms", "direct-each", "pgbouncer", headline="direct-each pgbouncer"),
            *_quic("errors_percent", "direct-each", "pgbouncer-each", "pgbouncer", headline="direct-each"),
            *_quic("p95_ms", "pgbouncer-noreset", headline="pgbouncer-noreset"),
            *_quic("p95_ms", "direct", "tcp", "pgbouncer-each"),
            *_quic("p99_ms", "direct-each", "pgbouncer", "pgbouncer-noreset", "tcp"),
            Rule("p95_ms", "quic-each", "direct-each"),
            Rule("p95_ms", "quic-each", "pgbouncer-each"),
            Rule("p95_ms", "quic", "quic-each"),
            *_quic("per_second", "direct-each", "pgbouncer"),
            *_quic("client_rss_mb", "pgbouncer"),
        ),
        along=("p95_ms", "p99_ms", "errors_percent"),
        over_time=True,
    ),
    "rows": Frame(
        "Many small answers share a packet; large ones fill many. The larger the answers, the more it is the "
        "transport's throughput that counts, and what an octet costs: TCP is the kernel's, QUIC here is Python's.",
        (
            *_quic("per_second", "pgbouncer", "direct", "tcp", headline="pgbouncer"),
            *_quic("p50_ms", "pgbouncer"),
            *_quic("p99_ms", "pgbouncer"),
            *_COSTS,
        ),
        along=("per_second", "p50_ms", "pooler_cpu_us"),
    ),
    "cpu": Frame(
        "A datagram costs what it costs, whether it carries one question or thirty. Where few are asked at a time, or "
        "over many connections, each pays for its own. The kernel's TCP does that work outside of the processes whose "
        "time is counted here.",
        (
            *_quic("pooler_cpu_us", "pgbouncer", "tcp", headline="pgbouncer tcp"),
            *_quic("client_cpu_us", "pgbouncer", "tcp", headline="pgbouncer"),
            *_quic("packets_per_answer", "pgbouncer", "tcp"),
            *_quic("p50_ms", "pgbouncer"),
            *_quic("p99_ms", "pgbouncer"),
        ),
        along=("pooler_cpu_us", "client_cpu_us", "packets_per_answer"),
    ),
    "ceiling": Frame(
        "Client, gateway, Postgres and link share this machine's cores; what is asked beyond what they can do queues. "
        "Each but Postgres is one process, and that cannot use more than one core: who comes near to it is in the way.",
        (
            *_quic("per_second", "pgbouncer", "tcp"),
            *_quic("p99_ms", "pgbouncer", "tcp"),
            *_quic("pooler_cpu_percent", "pgbouncer", "tcp"),
            *_quic("client_cpu_percent", "pgbouncer", "tcp"),
        ),
        along=(
            "per_second",
            "p99_ms",
            "client_cpu_percent",
            "pooler_cpu_percent",
            "postgres_cpu_percent",
            "link_cpu_percent",
        ),
    ),
}
UNKNOWN: Final = Frame(
    "",
    (
        *_quic("p50_ms", "pgbouncer", "direct"),
        *_quic("p99_ms", "pgbouncer", "direct"),
        *_quic("per_second", "pgbouncer"),
    ),
)
"""For a scenario that is not in the table."""

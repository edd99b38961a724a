"""What one run does: which way sessions take (arm), what they ask (workload), how often (load). Values, as JSON too."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from netem.errors import LabError

__all__ = [
    "AT_ONCE",
    "Arm",
    "ArmKind",
    "Beside",
    "Load",
    "LoadKind",
    "Login",
    "Run",
    "Thresholds",
    "Workload",
    "WorkloadKind",
    "checked_kind",
]

ArmKind = Literal["direct", "pgbouncer", "pgbouncer-tls", "tcp", "tls", "quic", "sidecar", "mux"]
"""direct: TCP to Postgres; pgbouncer: TCP to PgBouncer; tcp, tls: TCP to our gateway; quic: a trunk in the client's
process; sidecar: the same through `pgtrunk sidecar`; mux: all over one TCP connection to our gateway, to compare."""
Login = Literal["", "trust", "md5", "scram", "cert"]
LoadKind = Literal["fixed", "ramp", "closed", "burst", "connect"]
WorkloadKind = Literal["select", "rows", "insert", "transaction", "cte", "function"]
Beside = Literal["", "copy-out", "copy-in", "rows"]
"""What other sessions do meanwhile without a pause: COPY to the client, COPY from it, or answers of one large row."""

AT_ONCE = 50
"""Sessions that are opened at a time; more would make a storm, which is an experiment of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to Postgres. ``sessions`` at most; over QUIC on ``connections`` with ``streams`` each."""

    kind: ArmKind
    sessions: int
    connections: int = 0
    streams: int = 0
    rto_min: float = 0.0
    """Seconds; TCP's smallest retransmission timeout on both ends. 0: the system's, 200 ms."""
    congestion: str = ""
    """TCP's congestion control; "": the system's."""
    redundancy: Literal["", "off"] = ""
    """off: neither the client nor the gateway sends anything twice ahead of a loss."""
    per_request: bool = False
    """A connection of its own for each request."""
    initial: int = 0
    """Sessions that a pool (asyncpg's) opens first, the others on demand. 0: no pool, and all of them first."""
    reset: bool = True
    """Whether a pool resets what comes back, as asyncpg's does unless told otherwise; a trunk's never does."""
    tls_at_once: bool = False
    """TLS begins with the first octet, without PostgreSQL's request for it (sslnegotiation=direct)."""
    login: Login = ""
    """How sessions prove who they are; "": as the servers' defaults have it."""
    competing: bool = False
    """A bulk TCP flow shares the link, in the direction of the answers."""
    links: tuple[str, ...] = ()
    """Specifications of the links under which this arm runs; empty: all of the scenario's."""
    loads: tuple[str, ...] = ()
    """Names of the loads under which it runs; empty: all."""

    @property
    def name(self) -> str:
        """Such as ``quic-10x40`` or ``pgbouncer-400-rto30``: unique in a scenario."""
        marks = (
            f"rto{self.rto_min * 1000:g}" if self.rto_min else "",
            self.congestion,
            "plain" if self.redundancy == "off" else "",
            "each" if self.per_request else "",
            self.login,
            "" if self.reset else "noreset",
            "atonce" if self.tls_at_once else "",
            "shared" if self.competing else "",
        )
        size = f"{self.connections}x{self.streams}" if self.connections else str(self.sessions)
        return "-".join((self.kind, size, *filter(None, marks)))

    @property
    def starts_sidecar(self) -> bool:
        """Whether the client starts its sidecar itself, so that there is one without a trunk: where logins count."""
        return self.kind == "sidecar" and bool(self.login)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How often something is asked. Times in seconds.

    fixed: ``rate`` per second; ramp: from 0 to ``rate``; closed: each session asks as soon as it has an answer, after
    ``think``; burst: ``size`` at once, every ``every`` seconds. These count latency from the moment when something was
    to be asked, whether or not a session was free then. connect: sessions are opened, all of the arm's at once, by a
    client that has none yet (cold) and then by one that has had some (warm); a single session ``size`` times over.
    """

    kind: LoadKind
    seconds: float
    rate: float = 0.0
    step: float = 0.0
    """ramp: asked at each step of so many seconds, at the rate of then, rounded down to whole queries; 0: evenly."""
    patience: float = 0.0
    """Seconds after its end for what is still under way; 0: a minute."""
    turns: bool = False
    """Open loops: of the free sessions the one asks that has been free for longest, so all are used evenly. Otherwise
    the one that was used last, as pools do it: then a trunk's later connections are used alone."""
    think: tuple[float, float] = (0.0, 0.0)
    """Between these, evenly."""
    size: int = 0
    every: float = 1.0
    users: int = 0
    """closed: who asks, over the sessions there are; 0: one for each session."""
    name: str = ""
    """Its part in a setting's name, such as ``500``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is asked. ``octets`` is the size of an answer (rows), or of a transfer beside."""

    kind: WorkloadKind = "select"
    octets: int = 100
    beside: Beside = ""
    beside_sessions: int = 2
    """How many move data beside, besides the arm's sessions."""
    think: float = 0.0
    """Seconds that an application thinks after each statement of a transaction; in one statement, ahead of it."""
    name: str = ""
    """Its part in a setting's name, where a scenario has several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What users would put up with; 0: anything. The report says which runs were within them."""

    p95_ms: float = 0.0
    p99_ms: float = 0.0
    errors: float = 0.0
    """As a share of all that was asked."""
    too_late_ms: float = 0.0
    """An answer after this counts as an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the client program. ``address`` is where its sessions go."""

    arm: Arm
    load: Load
    workload: Workload
    host: str
    port: int
    database: str
    user: str
    password: str = field(repr=False)
    ca_file: str = ""
    warmup: float = 1.0
    """Seconds of the same load ahead of the measured one, at a tenth of a ramp's rate."""
    seed: int = 1
    rtt: float = 0.0
    """Seconds, of the link as it was asked for."""
    cert_file: str = ""
    key_file: str = ""
    """The client's certificate, for those logins that want one."""
    late_after: float = 0.0
    """Seconds from its sending after which an answer is noted as late, with its session; 0: none is."""
    thresholds: Thresholds = field(default_factory=Thresholds)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Run:
        arm, load = dict(data["arm"]), dict(data["load"])
        for part, key in ((load, "think"), (arm, "links"), (arm, "loads")):
            part[key] = tuple(part[key])
        parts = {
            "arm": Arm(**arm),
            "load": Load(**load),
            "workload": Workload(**data["workload"]),
            "thresholds": Thresholds(**data["thresholds"]),
        }
        return cls(**{**data, **parts})


def checked_kind(kind: str, kinds: Any) -> str:
    """``kind``, where it is one of a Literal. Raises :class:`LabError`."""
    if kind not in get_args(kinds):
        raise LabError(f'unknown kind "{kind}"; known are {", ".join(get_args(kinds))}')
    return kind

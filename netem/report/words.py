"""How arms, settings and numbers are named for readers; knows nothing of what came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from netem.report.figures import FIGURES

if TYPE_CHECKING:
    from netem.report.data import Group, Stored

__all__ = [
    "KINDS",
    "Setting",
    "arm_label",
    "capital",
    "login_label",
    "number",
    "sessions",
    "setting",
    "titles",
    "way",
    "with_unit",
]

KINDS = {
    "quic": "QUIC",
    "sidecar": "Sidecar",
    "tcp": "Gateway/TCP",
    "tls": "Gateway/TLS",
    "pgbouncer": "PgBouncer",
    "pgbouncer-tls": "PgBouncer/TLS",
    "direct": "Postgres",
    "mux": "One TCP",
}
"""Short enough for a plot's margin; the page explains them."""
_WORKLOADS = {
    "select": "point selects",
    "rows": "answers of {octets}",
    "insert": "inserts",
    "transaction": "statement by statement",
    "cte": "one CTE",
    "function": "one function",
}
_BESIDE = {
    "copy-out": "COPY to the client beside",
    "copy-in": "COPY from the client beside",
    "rows": "answers of {octets} beside",
}


def _marks(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """What makes an arm special, as its name has it and as readers do."""
    rto, congestion = plan.get("rto_min") or 0, plan.get("congestion") or ""
    marks = [
        (f"rto{rto * 1000:g}" if rto else "", f"RTO {rto * 1000:g}"),
        (congestion, congestion),
        ("plain" if plan.get("redundancy") == "off" else "", "no copies"),
        ("each" if plan.get("per_request") else "", "per request"),
        (plan.get("login") or "", login_label(plan)),
        ("shared" if plan.get("competing") else "", "+ TCP flow"),
        ("noreset" if plan.get("reset") is False else "", "no reset"),
        ("atonce" if plan.get("tls_at_once") else "", "TLS at once"),
    ]
    return [mark for mark in marks if mark[0]]


def login_label(plan: dict[str, Any]) -> str:
    """How its sessions prove who they are; empty where the arm does not say."""
    login = plan.get("login") or ""
    return {"md5": "MD5", "scram": "SCRAM", "cert": "certificate"}.get(login, login)


def way(group: Group) -> str:
    """The arm's name without its size, such as ``pgbouncer-rto30``: what makes arms of other sizes the same."""
    return "-".join([group.plan["kind"], *(name for name, _ in _marks(group.plan))])


def arm_label(plan: dict[str, Any]) -> str:
    """Such as ``QUIC 10×40`` or ``PgBouncer 400, RTO 30``."""
    connections, streams = plan.get("connections"), plan.get("streams")
    size = f"{connections}×{streams}" if connections else number(plan.get("sessions", 0))
    return ", ".join([f"{KINDS.get(plan['kind'], plan['kind'])} {size}", *(words for _, words in _marks(plan))])


def capital(words: str) -> str:
    """As a sentence begins; names of percentiles stay as they are."""
    return words if words[1:2].isdigit() else words[0].upper() + words[1:]


def sessions(ours: Group, theirs: Group) -> str:
    """Always said: how many sessions each of two has."""
    if ours.sessions == theirs.sessions:
        return f"{number(ours.sessions)} {'session' if ours.sessions == 1 else 'sessions'} each"
    return f"unequal sessions: {number(ours.sessions)} against {number(theirs.sessions)}"


def number(value: float) -> str:
    """Three digits or more where there are."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def with_unit(value: float, figure: str) -> str:
    unit = FIGURES[figure].unit
    return number(value) + (unit if unit == "/s" else f"\u00a0{unit}" if unit else "")


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run is set to: its link, load and workload in words."""

    link: str
    load: str
    workload: str


def setting(run: Stored) -> Setting:
    return Setting(_link(run), _load(run.part("plan", "load")), _workload(run.part("plan", "workload")))


def titles(found: Sequence[Group]) -> dict[str, str]:
    """For each setting of a scenario what tells it from the others; the whole of it where there is one only."""
    settings = {group.setting: setting(group.runs[0]) for group in found}
    parts = ("link", "load", "workload")
    varying = [part for part in parts if len({getattr(each, part) for each in settings.values()}) > 1] or parts
    names = {
        name: ", ".join(filter(None, (getattr(each, part) for part in varying))) for name, each in settings.items()
    }
    # Where the words do not tell all apart, the names under which they are stored do.
    return names if len(set(names.values())) == len(names) else {name: name for name in names}


def _link(run: Stored) -> str:
    asked = run.part("link", "asked", "there")
    parts = []
    if (delay := asked.get("delay", 0) + run.part("link", "asked", "back").get("delay", 0)) and abs(
        delay - 0.03
    ) > 1e-9:
        parts.append(f"{delay * 1000:g}\u00a0ms")
    if asked.get("burst"):
        parts.append("loss in bursts")
    if asked.get("loss"):
        parts.append(f"loss\u00a0{asked['loss'] * 100:g}\u00a0%")
    if asked.get("rate"):
        parts.append(f"{asked['rate'] / 1e6:g}\u00a0Mbit/s")
        parts += [f"{_size(asked['buffer'])} of buffer"] if asked.get("buffer") else []
    if asked.get("jitter"):
        parts.append(f"jitter {asked['jitter'] * 1000:g} ms" + (", reordered" if asked.get("reorder") else ""))
    return ", ".join(parts) or "no loss"


def _load(load: dict[str, Any]) -> str:
    seconds, rate = load.get("seconds", 0), load.get("rate", 0)
    match load.get("kind"):
        case "fixed":
            return f"{rate:,g}/s"
        case "ramp":
            return f"from 0 to {rate:,g}/s in {seconds:g} s"
        case "burst":
            return f"{load.get('size', 0)} at once every {load.get('every', 1):g} s"
        case "closed" if load.get("users"):
            return f"{load['users']} users"
        case "closed":
            return "each session asks again at once"
        case "connect":
            return "new sessions: one after the other, or all at once"
    return ""


def _workload(workload: dict[str, Any]) -> str:
    size = _size(workload.get("octets", 0))
    kind, beside = str(workload.get("kind", "")), str(workload.get("beside") or "")
    think = workload.get("think") or 0
    beside = _BESIDE.get(beside, beside).format(octets=size)
    parts = [beside if beside and kind == "select" else _WORKLOADS.get(kind, kind).format(octets=size)]
    return ", ".join(filter(None, [*parts, f"thinking {think * 1000:g}\u00a0ms" if think else ""]))


def _size(octets: int) -> str:
    for unit, factor in (("MB", 1_000_000), ("kB", 1000)):
        if octets >= factor:
            return f"{octets / factor:g}\u00a0{unit}"
    return f"{octets} B"

"""What TCP really does on the long link: congestion control and retransmission timeout of its sockets, as `ss` shows.

An arm may ask for these; a route that does not take them would make a result with a wrong name.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from netem.errors import LabError
from netem.topology import ADDRESSES, WAN_DEVICE, Host

if TYPE_CHECKING:
    from netem.hosts import Hosts
    from netem.plan import Arm

__all__ = ["Sockets", "check", "read", "sockets"]

_CLIENT, _GATEWAY = ADDRESSES["client", WAN_DEVICE], ADDRESSES["gateway", WAN_DEVICE]
_WHOSE: Mapping[Host, tuple[str, str, str]] = {
    "client": ("src", _CLIENT, "dport"),
    "gateway": ("src", _GATEWAY, "sport"),
    # Of direct sessions only: a pooler's are not on the long link.
    "database": ("dst", _CLIENT, "sport"),
}
_ABOUT = re.compile(r"^\s+(?:\w+ )*?(?P<congestion>[a-z]\w*) wscale:.*?\brto:(?P<rto>[\d.]+)")


@dataclass(frozen=True, slots=True)
class Sockets:
    """Established connections by their congestion control; ``rto_ms`` is the median of their timeouts now."""

    congestion: dict[str, int]
    rto_ms: float


def read(said: Iterable[str]) -> Sockets:
    """Of the lines of `ss -tin`."""
    found = [about for line in said if (about := _ABOUT.match(line))]
    timeouts = sorted(float(each["rto"]) for each in found)
    return Sockets(
        congestion=dict(Counter(each["congestion"] for each in found)),
        rto_ms=timeouts[len(timeouts) // 2] if timeouts else 0.0,
    )


def sockets(hosts: Hosts, port: int | None) -> dict[Host, Sockets]:
    """Those of each host on the long link; of a server's ``port`` only, since other arms' servers may have some too."""
    found: dict[Host, Sockets] = {}
    for host, (way, address, end) in _WHOSE.items():
        only = [] if port is None else [end, "=", f":{port}"]
        argv = hosts.argv(host, ["ss", "-tinH", "state", "established", way, address, *only])
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
        if done.returncode:
            raise LabError(f"`ss` failed on {host}: {done.stderr.strip()}")
        found[host] = read(done.stdout.splitlines())
    return found


def check(arm: Arm, found: Mapping[Host, Sockets]) -> dict[str, Any]:
    """What is stored with the result. Raises :class:`LabError` where it is not what the arm asked for."""
    for host, each in found.items():
        if arm.congestion and set(each.congestion) - {arm.congestion}:
            raise LabError(
                f"{arm.name}: congestion = {arm.congestion} is not in force on {host}: its sockets have "
                f"{', '.join(each.congestion)}; see `sysctl net.ipv4.tcp_available_congestion_control`"
            )
    return {host: asdict(each) for host, each in found.items() if each.congestion}

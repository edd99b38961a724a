"""The laboratory's hosts, addresses and routes, as the commands that make them. Decides nothing at run time.

    client  --- WAN 10.77.0.0/24 ---  gateway  --- LAN 10.78.0.0/24 ---  database

The gateway forwards, so that a client reaches Postgres directly too, over both links.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from netem.errors import LabError

if TYPE_CHECKING:
    from netem.spec import Direction, LinkSpec

__all__ = [
    "ADDRESSES",
    "HOSTS",
    "LAN_DEVICE",
    "WAN_DEVICE",
    "Command",
    "Host",
    "hosts",
    "lan",
    "netem",
    "netem_options",
    "wan",
    "wan_pair",
]

Host = Literal["client", "gateway", "database"]
HOSTS: tuple[Host, ...] = ("client", "gateway", "database")

WAN_DEVICE, LAN_DEVICE = "wan0", "lan0"
ADDRESSES = {
    ("client", WAN_DEVICE): "10.77.0.1",
    ("gateway", WAN_DEVICE): "10.77.0.2",
    ("gateway", LAN_DEVICE): "10.78.0.1",
    ("database", LAN_DEVICE): "10.78.0.2",
}
_MTU = "1500"
_QUEUE = "10000"
"""Packets that a device holds for the link; the default of 500 loses bursts that no real network would."""

_BURST = "1600"
"""Octets that a tbf sends at once: one packet, with its head."""
_NO_RATE = 100e9
"""With a rate, whatever it is, no packet of netem's overtakes another by its jitter."""


@dataclass(frozen=True, slots=True)
class Command:
    """Something to run on a host."""

    host: Host
    argv: tuple[str, ...]


def _ip(host: Host, *words: str) -> Command:
    return Command(host, ("ip", *words))


def hosts() -> Iterator[Command]:
    """What each host needs, whatever the links are."""
    for host in HOSTS:
        yield _ip(host, "link", "set", "lo", "up")
    yield Command("gateway", ("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"))


def _address(host: Host, device: str) -> Iterator[Command]:
    # No IPv6 address: a link that nobody uses is silent.
    yield _ip(host, "link", "set", device, "addrgenmode", "none")
    yield _ip(host, "link", "set", device, "mtu", _MTU, "txqueuelen", _QUEUE)
    yield _ip(host, "addr", "add", f"{ADDRESSES[host, device]}/24", "dev", device)
    yield _ip(host, "link", "set", device, "up")


def wan() -> Iterator[Command]:
    """Addresses and routes of the long link, whose devices are there."""
    yield from _address("client", WAN_DEVICE)
    yield from _address("gateway", WAN_DEVICE)
    gateway = ADDRESSES["gateway", WAN_DEVICE]
    yield _ip("client", "route", "add", "10.78.0.0/24", "via", gateway)


def lan(peers: dict[Host, int]) -> Iterator[Command]:
    """The short link: a veth pair between the namespaces of the processes ``peers``."""
    yield from _pair("gateway", "database", LAN_DEVICE, peers)
    yield from _address("gateway", LAN_DEVICE)
    yield from _address("database", LAN_DEVICE)
    gateway = ADDRESSES["gateway", LAN_DEVICE]
    yield _ip("database", "route", "add", "10.77.0.0/24", "via", gateway)


def wan_pair(peers: dict[Host, int]) -> Iterator[Command]:
    """The long link's devices as a veth pair, for netem. Neighbours are fixed: ARP would be late and lost as well."""
    yield from _pair("client", "gateway", WAN_DEVICE, peers)
    yield from wan()
    ends: tuple[tuple[Host, Host], ...] = (("client", "gateway"), ("gateway", "client"))
    for host, other in ends:
        address = ADDRESSES[other, WAN_DEVICE]
        yield _ip(host, "neigh", "replace", address, "lladdr", _mac(other, WAN_DEVICE), "dev", WAN_DEVICE)


def _pair(one: Host, other: Host, device: str, peers: dict[Host, int]) -> Iterator[Command]:
    there = ("name", device, "address", _mac(other, device), "netns", str(peers[other]))
    yield _ip(one, "link", "add", device, "address", _mac(one, device), "type", "veth", "peer", *there)


def _mac(host: Host, device: str) -> str:
    numbers = (int(part) for part in ADDRESSES[host, device].split("."))
    return "02:77:" + ":".join(f"{number:02x}" for number in numbers)


def netem(spec: LinkSpec, before: LinkSpec | None) -> Iterator[Command]:
    """The qdiscs of the long link's two ends, which were as ``before`` has it; None: there are none yet.

    Where packets wait for a rate in a buffer of so many octets, that is a tbf behind netem, as the bottleneck is behind
    a part of the way. Raises :class:`LabError` for what netem cannot do.
    """
    ends: tuple[tuple[Host, Direction, Direction | None], ...] = (
        ("client", spec.there, before.there if before else None),
        ("gateway", spec.back, before.back if before else None),
    )
    for host, direction, was in ends:
        verb = "add" if was is None else "change"
        yield _tc(host, verb, "root", "handle", "1:", "netem", *netem_options(direction))
        if _is_buffered(direction):
            rate, limit = f"{direction.rate:.0f}bit", str(direction.buffer)
            yield _tc(
                host, "replace", "parent", "1:1", "handle", "10:", "tbf", "rate", rate, "burst", _BURST, "limit", limit
            )
        elif was is not None and _is_buffered(was):
            yield _tc(host, "del", "parent", "1:1")


def _tc(host: Host, verb: str, *words: str) -> Command:
    return Command(host, ("tc", "qdisc", verb, "dev", WAN_DEVICE, *words))


def _is_buffered(direction: Direction) -> bool:
    return bool(direction.rate and direction.buffer)


def netem_options(direction: Direction) -> list[str]:
    """``direction`` in the words of tc-netem(8). Raises :class:`LabError` for what netem cannot do."""
    rate = 0.0 if _is_buffered(direction) else direction.rate
    if direction.jitter and direction.reorder and rate:
        raise LabError("netem keeps packets in order where there is a rate: leave reorder= out, or take --link tun")
    if direction.burst is not None and direction.loss:
        raise LabError("netem has either loss or bursts: leave one out, or take --link tun")
    options = ["limit", str(direction.limit), "delay", f"{direction.delay * 1e6:.0f}us"]
    if direction.jitter:
        options.append(f"{direction.jitter * 1e6:.0f}us")
        if not direction.reorder:
            rate = rate or _NO_RATE
    if direction.burst is not None:
        begins, ends = direction.burst
        options += ["loss", "gemodel", f"{begins:.6%}", f"{ends:.6%}"]
    elif direction.loss:
        options += ["loss", f"{direction.loss:.6%}"]
    # None too: a change leaves the rate as it is where it is not named.
    return [*options, "rate", f"{rate:.0f}bit"]

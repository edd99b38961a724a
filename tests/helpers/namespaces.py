"""A gateway's network and a client's, joined by two links, each in a network namespace; for tests that run as root on
Linux, and are left out elsewhere.

A socket is of the namespace in which its thread was when it was made, so one process has both ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

__all__ = ["GATEWAY", "Links", "links"]

GATEWAY: Final = "10.99.0.1"
"""The gateway's address, which both links lead to."""

_NEW_NET: Final = 0x40000000
_numbers = itertools.count()


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=20)


@contextlib.contextmanager
def _within(name: str) -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net", "rb") as before, open(f"/run/netns/{name}", "rb") as wanted:
        if libc.setns(wanted.fileno(), _NEW_NET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            libc.setns(before.fileno(), _NEW_NET)


class Links:
    """Two links, number 1 and 2. Number 1 is in use, until it is not there any more."""

    def __init__(self) -> None:
        unique = f"{os.getpid()}x{next(_numbers)}"
        self.client, self.gateway = f"pgtc{unique}", f"pgtg{unique}"

    def make(self) -> None:
        for name in (self.client, self.gateway):
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", self.gateway, "addr", "add", f"{GATEWAY}/32", "dev", "lo")
        for number in (1, 2):
            _run(
                *("ip", "-n", self.client, "link", "add", f"c{number}", "type", "veth"),
                *("peer", "name", f"g{number}", "netns", self.gateway),
            )
            _run("ip", "-n", self.gateway, "addr", "add", f"10.99.{number}.1/24", "dev", f"g{number}")
            _run("ip", "-n", self.gateway, "link", "set", f"g{number}", "up")
            self.plug_in(number)

    def plug_in(self, number: int) -> None:
        """The client has the link, with an address and a route."""
        _run("ip", "-n", self.client, "addr", "replace", f"10.99.{number}.2/24", "dev", f"c{number}")
        _run("ip", "-n", self.client, "link", "set", f"c{number}", "up")
        route = (GATEWAY, "via", f"10.99.{number}.1", "dev", f"c{number}", "metric", str(number))
        _run("ip", "-n", self.client, "route", "replace", *route)

    def unplug(self, number: int) -> None:
        """The link is down, and its routes are gone; its address too."""
        _run("ip", "-n", self.client, "link", "set", f"c{number}", "down")
        _run("ip", "-n", self.client, "addr", "flush", "dev", f"c{number}")

    def mute(self, number: int) -> None:
        """The link is there and everything is lost on it; new sockets take the other one."""
        _run("ip", "-n", self.gateway, "link", "set", f"g{number}", "down")
        route = (GATEWAY, "via", f"10.99.{number}.1", "dev", f"c{number}", "metric", str(number))
        _run("ip", "-n", self.client, "route", "del", *route)
        # What is connected already has the address of this link, and goes on using it.
        _run("ip", "-n", self.client, "rule", "add", "from", f"10.99.{number}.2", "lookup", "99")
        _run("ip", "-n", self.client, "route", "add", "blackhole", "default", "table", "99")

    def mtu(self, number: int, size: int, *, told: bool) -> None:
        """No larger packets come through: told by our own interface, or by nobody at all."""
        if told:
            _run("ip", "-n", self.client, "link", "set", f"c{number}", "mtu", str(size))
        _run("ip", "-n", self.gateway, "link", "set", f"g{number}", "mtu", str(size))

    @contextlib.contextmanager
    def at_client(self) -> Iterator[None]:
        """Sockets made meanwhile are the client's."""
        with _within(self.client):
            yield

    @contextlib.contextmanager
    def at_gateway(self) -> Iterator[None]:
        """Sockets made meanwhile are the gateway's."""
        with _within(self.gateway):
            yield

    def remove(self) -> None:
        for name in (self.client, self.gateway):
            with contextlib.suppress(subprocess.SubprocessError):
                _run("ip", "netns", "del", name)


@contextlib.contextmanager
def links() -> Iterator[Links]:
    """Two links; the test is left out where there can be none."""
    if sys.platform != "linux" or os.geteuid() or not Path("/run").is_dir():
        pytest.skip("network namespaces need root on Linux")
    made = Links()
    try:
        try:
            made.make()
        except (OSError, subprocess.SubprocessError) as exc:
            pytest.skip(f"no network namespaces here: {exc}")
        yield made
    finally:
        made.remove()

"""The kinds of long link behind one interface, and the choice between them.

`TcLink` is the kernel's own netem, where it has one; `TunLink` is our shuttle, for kernels without. The third kind,
`netem.uml`, is a `TcLink` in a kernel of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from netem import topology
from netem.errors import LabError
from netem.hosts import Hosts, end
from netem.tun import has_tun

if TYPE_CHECKING:
    from netem.spec import LinkSpec

__all__ = ["Link", "LinkKind", "TcLink", "TunLink", "choose"]

LinkKind = Literal["tc", "tun"]
_ROOT = str(Path(__file__).resolve().parents[1])


class Link(Protocol):
    """The long link between client and gateway."""

    kind: LinkKind

    def open(self, spec: LinkSpec) -> None:
        """Makes it. Raises :class:`LabError`."""

    def configure(self, spec: LinkSpec) -> None:
        """It is otherwise from now on; what is under way is not touched."""

    def counters(self) -> dict[str, Any]:
        """What it has carried and lost; its keys are those of the kind."""
        ...

    def drops(self) -> dict[str, list[list[float]]] | None:
        """For each way, when packets were dropped since it was configured (seconds of the monotonic clock), and the
        client's port of each; None where the kind does not know."""
        ...

    @property
    def pid(self) -> int | None:
        """The process that carries the packets; None where the kernel does."""
        ...

    def close(self) -> None: ...


class TcLink:
    """A veth pair with a netem qdisc at either end."""

    kind: LinkKind = "tc"

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._spec: LinkSpec | None = None

    def open(self, spec: LinkSpec) -> None:
        self._hosts.run(topology.wan_pair(self._hosts.pids))
        self.configure(spec)

    def configure(self, spec: LinkSpec) -> None:
        self._hosts.run(list(topology.netem(spec, self._spec)))
        self._spec = spec

    def counters(self) -> dict[str, Any]:
        return {"there": self._show("client"), "back": self._show("gateway")}

    def drops(self) -> None:
        """The kernel counts them, and no more."""
        return

    @property
    def pid(self) -> None:
        return None

    def _show(self, host: topology.Host) -> dict[str, Any]:
        argv = self._hosts.argv(host, ["tc", "-s", "-j", "qdisc", "show", "dev", topology.WAN_DEVICE])
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=True)
        # netem itself; behind it there may be a tbf, whose drops it counts as its own.
        qdisc = next(each for each in json.loads(done.stdout) if each.get("root"))
        return {key: qdisc[key] for key in ("packets", "bytes", "drops", "backlog") if key in qdisc}

    def close(self) -> None:
        """It goes with the namespaces."""


class TunLink:
    """Two TUN devices and the process that carries packets between them."""

    kind: LinkKind = "tun"

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._shuttle: subprocess.Popen[str] | None = None
        self._turn = threading.Lock()
        """Who asks has to read the answer before another asks."""

    def open(self, spec: LinkSpec) -> None:
        hosts = self._hosts
        argv = [sys.executable, "-m", "netem.shuttle", hosts.namespace("client"), hosts.namespace("gateway")]
        self._shuttle = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *argv, topology.WAN_DEVICE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        )
        assert self._shuttle.stdout is not None and self._shuttle.stderr is not None
        if self._shuttle.stdout.readline() != "open\n":
            said = self._shuttle.stderr.read().strip().rpartition("\n")[2]
            raise LabError(f"the TUN link could not be opened: {said}")
        hosts.run(topology.wan())
        self.configure(spec)

    def configure(self, spec: LinkSpec) -> None:
        self._order(spec.as_json())
        # An answer means that what was ordered before it is done.
        self.counters()

    def counters(self) -> dict[str, Any]:
        return self._asked(None)

    def drops(self) -> dict[str, list[list[float]]]:
        return self._asked("drops")

    @property
    def pid(self) -> int | None:
        return None if self._shuttle is None else self._shuttle.pid

    def _asked(self, order: object) -> dict[str, Any]:
        with self._turn:
            self._order(order)
            assert self._shuttle is not None and self._shuttle.stdout is not None
            line = self._shuttle.stdout.readline()
        if not line:
            raise LabError("the TUN link's process has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _order(self, order: object) -> None:
        if self._shuttle is None or self._shuttle.stdin is None:
            raise LabError("the TUN link is not open")
        try:
            print(json.dumps(order), file=self._shuttle.stdin, flush=True)
        except OSError as error:
            raise LabError("the TUN link's process has ended") from error

    def close(self) -> None:
        if self._shuttle is not None:
            end(self._shuttle)
            self._shuttle = None


def choose(hosts: Hosts, wanted: LinkKind | None) -> tuple[Link, str]:
    """The link to use, and why it is that one. ``hosts`` are open. Raises :class:`LabError` where none can be had."""
    netem = _netem_trouble(hosts)
    if wanted == "tc" or (wanted is None and netem is None):
        if netem is not None:
            raise LabError(f"--link tc: this kernel has no netem ({netem}); --link tun does without")
        return TcLink(hosts), "asked for" if wanted else "this kernel has netem"
    if not has_tun():
        raise LabError("this kernel has neither netem nor TUN devices (/dev/net/tun), or keeps them from us: no link")
    return TunLink(hosts), "asked for" if wanted else f"this kernel has no netem ({netem})"


def _netem_trouble(hosts: Hosts) -> str | None:
    """Why netem is not to be had; None where it is."""
    add = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    done = subprocess.run(hosts.argv("client", add), capture_output=True, text=True, timeout=10, check=False)
    if done.returncode:
        return done.stderr.strip().rpartition("\n")[2]
    remove = ["tc", "qdisc", "del", "dev", "lo", "root"]
    subprocess.run(hosts.argv("client", remove), capture_output=True, timeout=10, check=True)
    return None

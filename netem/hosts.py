"""Hosts: a network namespace each, held by a process that dies with us, and so with all that runs in it.

A namespace without a name lives as long as a process is in it. Each process that is started here gets SIGKILL from the
kernel when its parent ends, in whatever way (PR_SET_PDEATHSIG). So nothing is left after a kill -9 either, and there is
nothing to tidy up at the next start.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from typing import IO, Any

from netem.errors import LabError
from netem.topology import HOSTS, Command, Host

__all__ = ["Hosts", "end", "require_root"]

_DEADLINE = 10.0
_DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")


def require_root() -> None:
    """Raises :class:`LabError` where namespaces and devices cannot be made."""
    if os.name != "posix" or not os.path.exists("/proc/self/ns/net"):
        raise LabError("the laboratory needs network namespaces, which only Linux has")
    if os.geteuid() != 0:
        raise LabError("the laboratory needs root: it makes network namespaces and devices (sudo python -m netem ...)")
    for program in ("ip", "tc", "setpriv", "nsenter", "unshare"):
        if not any(os.access(f"{folder}/{program}", os.X_OK) for folder in os.get_exec_path()):
            raise LabError(f"there is no `{program}` here: install iproute2 and util-linux")


class Hosts:
    """Three namespaces, from :meth:`open` to :meth:`close`."""

    def __init__(self) -> None:
        self._holders: dict[Host, subprocess.Popen[bytes]] = {}
        self._started: list[subprocess.Popen[Any]] = []

    def open(self) -> None:
        """Makes the namespaces. Raises :class:`LabError`."""
        for host in HOSTS:
            argv = [*_DIES_WITH_US, "unshare", "--net", "sleep", "infinity"]
            nothing = subprocess.DEVNULL
            self._holders[host] = subprocess.Popen(
                argv, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
            )
        ours = os.readlink("/proc/self/ns/net")
        deadline = time.monotonic() + _DEADLINE
        for host in HOSTS:
            while _namespace_of(self._holders[host].pid) in (ours, None):
                if self._holders[host].poll() is not None or time.monotonic() > deadline:
                    raise LabError(f"no network namespace for {host}: `unshare --net` failed")
                time.sleep(0.005)

    @property
    def pids(self) -> dict[Host, int]:
        return {host: holder.pid for host, holder in self._holders.items()}

    def namespace(self, host: Host) -> str:
        """The file that stands for the namespace."""
        return f"/proc/{self._holders[host].pid}/ns/net"

    def argv(self, host: Host, argv: Sequence[str]) -> list[str]:
        """``argv`` as a command that runs on ``host``, and dies with us."""
        return [*_DIES_WITH_US, "nsenter", f"--net={self.namespace(host)}", "--", *argv]

    def run(self, commands: Iterable[Command]) -> None:
        """Runs short commands one after the other. Raises :class:`LabError` with what the first said that failed."""
        for command in commands:
            done = subprocess.run(
                self.argv(command.host, command.argv), capture_output=True, text=True, timeout=_DEADLINE, check=False
            )
            if done.returncode:
                said = (done.stderr or done.stdout).strip()
                raise LabError(f"on {command.host}: `{' '.join(command.argv)}` failed: {said}")

    def popen(
        self, host: Host, argv: Sequence[str], *, stdin: int | IO[Any] | None = subprocess.DEVNULL, **options: Any
    ) -> subprocess.Popen[str]:
        """Starts a process on ``host``; it ends with :meth:`close` at the latest."""
        process = subprocess.Popen(self.argv(host, argv), stdin=stdin, text=True, **options)
        self._started.append(process)
        return process

    def close(self) -> None:
        """Ends all that was started, the youngest first, and with it the namespaces."""
        for process in [*reversed(self._started), *self._holders.values()]:
            end(process)
        self._started.clear()
        self._holders.clear()


def end(process: subprocess.Popen[Any], patience: float = 2.0) -> None:
    """SIGTERM, and SIGKILL where that was not enough."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    if process.poll() is None:
        process.kill()
        process.wait(_DEADLINE)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _namespace_of(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None

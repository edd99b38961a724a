"""A temporary folder with a process that lives in it, both of which end with us whatever becomes of us.

A guard, a shell that does nothing but read a pipe from us, ends the process and removes the folder when the pipe
closes, and so even after a SIGKILL. PR_SET_PDEATHSIG would not do: the kernel sends it when the *thread* that started
the process ends, which for a worker thread is long before the program does. A child that we forked without exec holds
the pipe open too, so while such a child lives the guard waits.

Where we are root the folder belongs to `nobody`, and what runs in it runs as `nobody`. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

__all__ = ["Account", "CommandFailed", "GuardedFolder", "uninterrupted"]

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE = 60.0
"""Seconds that a command may take which takes one."""
_SOCKET_PATH_LIMIT = 103
"""Octets of a unix socket's path: 107 on Linux, 103 on macOS."""
# $0 is the folder. Each line read is the pid of what runs in it, or empty: nothing does. It leads a group, which may
# outlive it for a moment and write another file.
_GUARD = """
while read -r line; do pid=$line; done
if [ "$pid" ] && kill -QUIT "$pid"; then
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do kill -0 "$pid" || break; sleep 0.1; done
  kill -KILL "$pid"
  kill -KILL -- "-$pid"
fi
cd / && for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$0" && break; sleep 0.2; done
"""


class CommandFailed(Exception):
    """A command could not be run, or ended with an error; the message says how, with what it printed."""


@contextlib.contextmanager
def uninterrupted(tell: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Ctrl-C and SIGTERM wait for the end of this: an exception between the start of a process, or the making of a
    folder, and the note of it would leave it to nobody. ``tell`` hears of each, inside of the signal's handler."""
    if threading.current_thread() is not threading.main_thread():
        # No handler of Python's runs here.
        yield
        return
    came: list[int] = []

    def note(signum: int, _frame: object) -> None:
        came.append(signum)
        tell()

    handlers = {signum: signal.signal(signum, note) for signum in _INTERRUPTS}
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        if came:
            signal.raise_signal(came[0])


@dataclass(frozen=True, slots=True)
class Account:
    """Whom a process runs as; None: as we do."""

    user: int | None = None
    group: int | None = None
    extra_groups: tuple[int, ...] | None = None

    @classmethod
    def unprivileged(cls) -> Account:
        """Ourselves, or `nobody` where we are root."""
        if os.geteuid() != 0:
            return cls()
        with contextlib.suppress(KeyError):
            nobody = pwd.getpwnam("nobody")
            return cls(nobody.pw_uid, nobody.pw_gid, ())
        return cls(65534, 65534, ())

    def own(self, path: Path) -> None:
        if self.user is not None and self.group is not None:
            os.chown(path, self.user, self.group, follow_symlinks=False)

    def popen(
        self,
        command: list[str],
        *,
        cwd: Path,
        stdin: int = subprocess.DEVNULL,
        output: int | IO[bytes] = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Starts `command`; raises `CommandFailed` where that is not possible."""
        try:
            return subprocess.Popen(
                command,
                cwd=cwd,
                stdin=stdin,
                stdout=output,
                stderr=output,
                env={"PATH": os.defpath, "TZ": "UTC", "LC_ALL": "C", "HOME": str(cwd)},
                umask=0o077,
                # Ctrl-C in the terminal is for us: we stop what we have started in our own order.
                start_new_session=True,
                user=self.user,
                group=self.group,
                extra_groups=self.extra_groups,
            )
        except OSError as error:
            raise CommandFailed(f"{command[0]} cannot be run: {error}") from error

    def run(self, command: list[str], *, cwd: Path, started: Callable[[int], None] | None = None) -> None:
        """Runs `command` to its end; raises `CommandFailed` where it fails. `started` hears its pid."""
        with uninterrupted():
            process = self.popen(command, cwd=cwd, output=subprocess.PIPE)
            if started is not None:
                started(process.pid)
        with process:
            try:
                output, _ = process.communicate(timeout=_PATIENCE)
            except BaseException as error:
                # Ctrl-C too, which does not reach what runs in a session of its own.
                os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                raise CommandFailed(f"{command[0]} did not end within {_PATIENCE:.0f} s") from None
        if process.returncode:
            said = output.decode(errors="replace").strip()
            raise CommandFailed(f"{command[0]} failed with exit code {process.returncode}: {said or 'it said nothing'}")


class GuardedFolder:
    """The folder, at `path`; `remove` ends the guard, and with it whatever still runs, and leaves nothing."""

    def __init__(self, prefix: str = "pgtrunk-") -> None:
        """``prefix``: how its name begins."""
        self.account = Account.unprivileged()
        self._owner = os.getpid()
        with uninterrupted():
            self.path = _make_folder(self.account, prefix)
            command = ["/bin/sh", "-c", _GUARD, str(self.path)]
            # As ourselves, not as the account: what it ends may be a process of ours, what it removes may be our files.
            self._guard = Account().popen(command, cwd=self.path, stdin=subprocess.PIPE)

    def popen(
        self, command: list[str], *, stdin: int = subprocess.DEVNULL, output: int | IO[bytes] = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Starts `command` in the folder, as its account."""
        return self.account.popen(command, cwd=self.path, stdin=stdin, output=output)

    def run(self, command: list[str]) -> None:
        """Runs `command` in the folder, as its account, while nothing else does; raises `CommandFailed` where it
        fails."""
        try:
            self.account.run(command, cwd=self.path, started=self.holds)
        finally:
            self.holds(None)

    def holds(self, pid: int | None) -> None:
        """Tells the guard which process to end; None: there is none any more."""
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(b"%d\n" % pid if pid is not None else b"\n")
            self._guard.stdin.flush()

    def adopt(self, source: Path, name: str) -> Path:
        """Copies the tree `source` into the folder as `name`, readable for its account -> the copy."""
        copy = self.path / name
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("include", "doc", "*.a"))
        for path in (copy, *copy.rglob("*")):
            self.account.own(path)
        return copy

    def remove(self) -> None:
        """Idempotent; nothing in a forked child, whose folder it is not."""
        assert self._guard.stdin is not None
        if os.getpid() != self._owner:
            return
        self._guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(10.0)
        # The guard has done it, unless someone has ended the guard.
        shutil.rmtree(self.path, ignore_errors=True)


def _make_folder(account: Account, prefix: str) -> Path:
    reasons = []
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        try:
            path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).resolve()
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror}")
            continue
        account.own(path)
        reason = _objection(path, account)
        if reason is None:
            return path
        reasons.append(f"{parent}: {reason}")
        path.rmdir()
    raise CommandFailed(f"no temporary folder can be used ({'; '.join(reasons)}); set TMPDIR")


def _objection(path: Path, account: Account) -> str | None:
    if len(os.fsencode(path / ".s.PGSQL.65535")) > _SOCKET_PATH_LIMIT:
        return "its name is too long for the path of a unix socket"
    try:
        # Named, not only entered: entering is done before the account is changed.
        account.run(["/bin/sh", "-c", 'cd "$0"', str(path)], cwd=path)
    except CommandFailed:
        return "the account that the server runs as cannot reach it"
    return None

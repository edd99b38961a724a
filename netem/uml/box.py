"""A User-Mode Linux in a box: started, followed, and surely ended.

The box has mounts and processes of its own. Its folder, a tmpfs that no other process sees, is what the guest shares
with us; it and all of UML's processes go with us, whatever ends us, and so there is nothing to tidy up.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from netem.errors import LabError
from netem.uml import xstate
from netem.uml.order import PLACES, Order, box_argv, kernel_arguments, settings, vacant
from netem.uml.said import Lines, Said, parse

__all__ = ["Box", "kernel_program"]

_HERE = Path(__file__).resolve().parent
_POLL = 0.05
"""Seconds between two looks at what the guest has said: a file of another kernel's tells nobody that it has grown."""
_END = 20.0


def kernel_program() -> str:
    """UML's program. Raises :class:`LabError` where it is not installed."""
    found = shutil.which("linux.uml")
    if found is None:
        raise LabError("--link uml: user-mode-linux is not installed: apt-get install user-mode-linux")
    return found


class Box:
    """One guest, which obeys one order. ``python`` and ``project`` are where the machine has them."""

    def __init__(self, python: Path, project: Path, *, environment: Mapping[str, str]) -> None:
        self._python = python
        self._project = project
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """The shared folder; it can be read until the box is closed, after the guest's end too."""
        return Path(f"/proc/{os.getpid()}/fd/{self._folder}")

    def boot(self, order: Order) -> None:
        """Starts the guest. Raises :class:`LabError`."""
        program = kernel_program()
        # The interpreter's library may be elsewhere than the interpreter is.
        paths = [path for value in self._environment.values() for path in value.split(os.pathsep)]
        needed = [self._python, self._python.resolve(), self._project, *map(Path, paths)]
        place = vacant([each for each in needed if each.is_absolute()], _existing())
        cpus = sorted(os.sched_getaffinity(0))
        is_larger = xstate.is_larger(Path("/proc/cpuinfo").read_text())
        argv = box_argv(
            place,
            kernel_arguments(program, place),
            cpu=cpus[os.getpid() % len(cpus)],  # not the same for all who have a guest
            preload=f"{place}/xstate.so" if is_larger else None,
        )
        self._open(argv, place)
        if is_larger:
            xstate.build(self.folder / "xstate.so")
        shutil.copy(_HERE / "init.sh", self.folder / "init.sh")
        (self.folder / "init.sh").chmod(0o755)
        (self.folder / "settings").write_text(settings(self._python, self._project, self._environment))
        (self.folder / "order").write_text(order.as_json())
        (self.folder / "said").touch()
        (self.folder / "uml").mkdir()
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def _open(self, argv: list[str], place: str) -> None:
        pipe = subprocess.PIPE
        # A session of its own: Ctrl-C in the terminal is for us, and `close` ends all of it at once.
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True)
        self._process = process
        assert process.stdout is not None
        said = process.stdout.readline()
        if said != b"mounted\n":
            words = said.decode(errors="replace").strip() or "it said nothing"
            raise LabError(f"--link uml: no namespaces and mounts for it: {words}")
        self._folder = os.open(f"/proc/{process.pid}/root{place}", os.O_RDONLY | os.O_DIRECTORY)

    def follow(self, seconds: float) -> Iterator[Said]:
        """What the guest says, until it has ended. Raises :class:`LabError` when that takes longer than ``seconds``."""
        assert self._process is not None
        deadline = time.monotonic() + seconds
        lines = Lines()
        with (self.folder / "said").open("rb") as file:
            is_over = False
            while not is_over:
                # Before the last look, or what it says in between would be missed.
                is_over = self._process.poll() is not None
                for each in lines.add(file.read()):
                    yield parse(each)
                if time.monotonic() > deadline:
                    raise LabError(f"the guest has not ended after {seconds:.0f} s: {self.last_words()}")
                if not is_over:
                    time.sleep(_POLL)

    def code(self) -> int:
        """The exit code of the program in the guest. Raises :class:`LabError` where the guest has died before that."""
        try:
            return int((self.folder / "code").read_text())
        except (FileNotFoundError, ValueError):
            raise LabError(f"the guest has died: {self.last_words()}") from None

    def last_words(self) -> str:
        """The last lines of what the program wrote, or of the console where it wrote nothing."""
        for name in ("log", "console"):
            with contextlib.suppress(FileNotFoundError):
                lines = (self.folder / name).read_text(errors="replace").strip().splitlines()
                if lines:
                    return " | ".join(each.strip() for each in lines[-4:])
        return "it said nothing"

    def close(self) -> None:
        """Ends the guest, and waits until all of its processes are gone."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            assert process.stdin is not None and process.stdout is not None
            _read_to_end(process.stdout.fileno())
            process.wait(_END)
            process.stdin.close()
            process.stdout.close()
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1


def _read_to_end(fd: int) -> None:
    """Until nobody has the other end open any more. Raises :class:`LabError` where that takes too long."""
    deadline = time.monotonic() + _END
    while (left := deadline - time.monotonic()) > 0:
        if select.select([fd], (), (), left)[0] and not os.read(fd, 4096):
            return
    raise LabError(f"processes of the guest have not ended within {_END:.0f} s of their SIGKILL")


def _existing() -> list[str]:
    return [each for each in PLACES if Path(each).is_dir()]

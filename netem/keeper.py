"""Keeps a laboratory up between commands: ``up`` starts a keeper, ``down`` ends it.

The keeper holds a lock for as long as it lives, so that whether a laboratory is up is never a guess: a file that a
killed keeper left says nothing. Its namespaces, devices and processes die with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netem.errors import LabError
from netem.lab import Lab
from netem.spec import LinkSpec

if TYPE_CHECKING:
    from netem.links import LinkKind

__all__ = ["down", "keep", "status", "up"]

_ROOT = str(Path(__file__).resolve().parents[1])
_DEADLINE = 30.0


def _state_file() -> Path:
    folder = Path("/run") if os.access("/run", os.W_OK) else Path("/tmp")
    return folder / "pgtrunk-netem.json"


def status() -> dict[str, Any] | None:
    """The laboratory that is up: its keeper's ``pid``, ``link``, ``why``, ``spec``, a pid for each host; or None."""
    try:
        with _state_file().open() as file:
            if _lock(file.fileno(), fcntl.LOCK_SH):
                return None
            state: dict[str, Any] = json.load(file)
            return state
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def up(spec: LinkSpec, link: LinkKind | None) -> dict[str, Any]:
    """Starts a keeper and returns its state when the laboratory is there. Raises :class:`LabError`."""
    if (running := status()) is not None:
        raise LabError(f"a laboratory is up already (keeper pid {running['pid']}); `python -m netem down` ends it")
    argv = [sys.executable, "-m", "netem.keeper", json.dumps(spec.as_json()), link or ""]
    keeper = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        start_new_session=True,
    )
    assert keeper.stderr is not None
    # It says nothing and closes it when all is there; else it says why not.
    said = keeper.stderr.read().strip()
    if said:
        keeper.wait(_DEADLINE)
        raise LabError(said.rpartition("\n")[2])
    state = status()
    if state is None:
        raise LabError("the laboratory ended right after its start")
    return state


def down() -> bool:
    """Ends the laboratory that is up -> whether there was one. Raises :class:`LabError` where it does not end."""
    state = status()
    if state is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(state["pid"], signal.SIGTERM)
    deadline = time.monotonic() + _DEADLINE
    while status() is not None:
        if time.monotonic() > deadline:
            raise LabError(f"the keeper (pid {state['pid']}) has not ended; kill -9 {state['pid']} takes all with it")
        time.sleep(0.02)
    return True


def keep(spec: LinkSpec, link: LinkKind | None) -> int:
    """The keeper: until a signal ends it."""
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    path = _state_file()
    try:
        with path.open("a+") as file:
            deadline = time.monotonic() + 1.0
            while not _lock(file.fileno(), fcntl.LOCK_EX):
                # It may be somebody who only looks.
                if time.monotonic() > deadline:
                    raise LabError("a laboratory is up already")
                time.sleep(0.01)
            with Lab(spec, link) as lab:
                file.truncate(0)
                json.dump(_state(lab), file)
                file.flush()
                _say_nothing_more()
                signal.pause()
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{path}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _state(lab: Lab) -> dict[str, Any]:
    pids = lab.hosts.pids
    return {"pid": os.getpid(), "link": lab.link.kind, "why": lab.why, "spec": lab.spec.as_json(), "hosts": pids}


def _say_nothing_more() -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stderr.fileno())
    os.close(nothing)


def _lock(fd: int, kind: int) -> bool:
    """Whether the lock is ours now; it is given back when the file is closed."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end(_signum: int, _frame: object) -> None:
    sys.exit(0)


def _main(spec: str, link: str) -> int:
    kinds: dict[str, LinkKind | None] = {"": None, "tc": "tc", "tun": "tun"}
    return keep(LinkSpec.from_json(json.loads(spec)), kinds[link])


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))

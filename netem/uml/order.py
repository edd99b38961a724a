"""What a guest is to do, and how it is started: values, a command line, settings for its shell. Starts nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any, Literal

from netem.errors import LabError

__all__ = ["BOX_SCRIPT", "PLACES", "Order", "box_argv", "kernel_arguments", "settings", "vacant"]

MEMORY = "1536M"
"""Of the guest, kept in a tmpfs: only what it touches is used. A run with Postgres and 100 sessions touches a third."""
PLACES = ("/mnt", "/media", "/srv", "/opt", "/boot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the program in the guest does: ``check`` measures a link, ``run`` runs a scenario."""

    verb: Literal["check", "run"]
    specs: tuple[dict[str, Any], ...] = ()
    """check: the long links, one after the other, as a `LinkSpec` has itself as JSON."""
    scenario: str = ""
    quick: bool = False
    share: float = 1.0
    """run: how much of the scenario's rates and sessions; see `netem.uml.scale`."""
    without: tuple[str, ...] = ()
    """run: kinds of arms that are left out."""
    command: str = ""
    """run: what was typed, to be stored with the results."""

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        data = json.loads(text)
        return cls(**{**data, "specs": tuple(data["specs"]), "without": tuple(data["without"])})


BOX_SCRIPT = """\
place=$1
shift
mount -t tmpfs -o mode=711 uml "$place" || exit 1
echo mounted
read -r _ || exit 1
"$@" 3>&1 </dev/null >"$place/console" 2>&1
"""
"""The shell that is PID 1 of the box: an ending UML gives itself a signal that the kernel keeps from a PID 1. $1 is the
place for the folder, the rest is UML's command line, which waits for a line on standard input. Descriptor 3 is open in
all processes, so that its end is the end of all."""


def box_argv(place: str, kernel: Sequence[str], *, cpu: int | None, preload: str | None) -> list[str]:
    """What starts ``kernel`` in a box: mounts and processes of its own, all of which the system ends with us.

    UML is several processes that trace each other. Were its first one killed alone, the traced could live on and run
    the guest's system calls on the machine; the end of a PID namespace's first process takes all with it. The folder
    at ``place``, which holds UML's memory too, goes with the last of them.
    """
    dies_with_us = ["setpriv", "--pdeathsig", "KILL", "--"]
    box = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--"]
    # It is the link, too: what else the machine does should not make that longer.
    pinned = ["nice", "-n", "-10", *([] if cpu is None else ["taskset", "--cpu-list", str(cpu)])]
    environment = ["env", f"TMPDIR={place}", *([] if preload is None else [f"LD_PRELOAD={preload}"])]
    return [*dies_with_us, *box, "/bin/sh", "-c", BOX_SCRIPT, "uml", place, *environment, *pinned, *kernel]


def kernel_arguments(program: str, place: str) -> list[str]:
    """UML's command line. What it does not know goes into the environment of the guest's init."""
    return [
        program,
        f"mem={MEMORY}",
        "rootfstype=hostfs",
        "root=/dev/root",
        "ro",
        f"init={place}/init.sh",
        f"OUT={place}",
        # Files that it keeps while it runs, beside its memory ($TMPDIR).
        f"uml_dir={place}/uml/",
        "con=null",
        "con0=null,fd:1",
        "quiet",
    ]


def settings(python: PurePath, project: PurePath, environment: Mapping[str, str]) -> str:
    """Assignments for init.sh; ``environment`` is for all that runs in the guest."""
    own = {"PYTHON": str(python), "PROJECT": str(project)}
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in own.items()]
    lines += [f"export {name}={shlex.quote(value)}\n" for name, value in environment.items()]
    return "".join(lines)


def vacant(needed: Sequence[PurePath], folders: Sequence[str]) -> str:
    """A folder of the machine's that nothing ``needed`` is in: inside the box the laboratory's lies over it.

    Raises :class:`LabError` where each of ``folders`` holds some of it.
    """
    for folder in folders:
        if not any(path.is_relative_to(folder) for path in needed):
            return folder
    raise LabError(f"--link uml needs a folder to lie over, and what the guest needs is in all of {', '.join(folders)}")

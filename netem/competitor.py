"""A bulk TCP flow that shares the long link with a run, in the direction of the answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from netem.errors import LabError
from netem.topology import ADDRESSES, WAN_DEVICE

if TYPE_CHECKING:
    from netem.hosts import Hosts

__all__ = ["Competitor"]

_ROOT = str(Path(__file__).resolve().parents[1])
_PORT = 7078
_PATIENCE = 30.0


class Competitor:
    """Begins when it is made, and sends for so many seconds. Raises :class:`LabError`."""

    def __init__(self, hosts: Hosts, seconds: float) -> None:
        address, probe = ADDRESSES["client", WAN_DEVICE], [sys.executable, "-m", "netem.probe"]
        pipe = subprocess.PIPE
        self._sink = hosts.popen("client", [*probe, "sink", address, str(_PORT)], stdout=pipe, stderr=pipe, cwd=_ROOT)
        assert self._sink.stdout is not None
        if self._sink.stdout.readline() != "open\n":
            raise LabError("nothing could receive the competing flow on client")
        blast = [*probe, "blast", address, str(_PORT), str(seconds)]
        self._blast = hosts.popen("gateway", blast, stdout=pipe, stderr=pipe, cwd=_ROOT)

    def figures(self) -> dict[str, float]:
        """What it has carried, once it has ended; the rate is that of its second half."""
        self._blast.communicate(timeout=_PATIENCE)
        out, said = self._sink.communicate(timeout=_PATIENCE)
        if self._sink.returncode:
            raise LabError(f"the competing flow failed: {said.strip().rpartition(chr(10))[2]}")
        found = json.loads(out)
        return {"competing_octets": found["octets"], "competing_mbit_s": found["mbit_s"]}

    def close(self) -> None:
        """Ends it where it still runs."""
        for process in (self._blast, self._sink):
            if process.poll() is None:
                process.kill()
                process.communicate(timeout=_PATIENCE)

"""The laboratory as a whole: hosts, both links, and their certain end.

``with Lab(spec) as lab`` makes it; ``lab.popen("client", [...])`` runs something on a host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from netem import topology
from netem.hosts import Hosts, require_root
from netem.links import LinkKind, choose
from netem.spec import WAN, LinkSpec

if TYPE_CHECKING:
    from netem.links import Link

__all__ = ["Lab"]


class Lab:
    """Three hosts on this machine. ``why`` says why the link is of its kind."""

    def __init__(self, spec: LinkSpec = WAN, link: LinkKind | None = None) -> None:
        self.spec = spec
        self.hosts = Hosts()
        self.link: Link
        self.why = ""
        self._wanted: LinkKind | None = link

    def open(self) -> None:
        """Makes it. Raises :class:`LabError`; then nothing is left of it."""
        require_root()
        try:
            self.hosts.open()
            self.hosts.run(topology.hosts())
            self.link, self.why = choose(self.hosts, self._wanted)
            self.link.open(self.spec)
            self.hosts.run(topology.lan(self.hosts.pids))
        except BaseException:
            self.close()
            raise

    def configure(self, spec: LinkSpec) -> None:
        """Another long link, from now on."""
        self.link.configure(spec)
        self.spec = spec

    def close(self) -> None:
        if hasattr(self, "link"):
            self.link.close()
        self.hosts.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

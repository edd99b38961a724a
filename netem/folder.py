"""A temporary folder of the laboratory's, which goes with whoever made it, whatever ends them."""

from __future__ import annotations

from netem.errors import LabError
from pgtrunk_gateway.demo.guarded_folder import CommandFailed, GuardedFolder

__all__ = ["make_folder"]


def make_folder() -> GuardedFolder:
    """A new one; its ``remove`` is for ends in good order. Blocks. Raises :class:`LabError`."""
    try:
        return GuardedFolder(prefix="pgtrunk-wan-")
    except CommandFailed as error:
        raise LabError(str(error)) from error

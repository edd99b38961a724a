"""What the gateway needs: the client of the same version, whose one place is the pyproject.toml above this folder.

An sdist has neither that file nor a need of it: hatchling reads back what it wrote into the sdist's PKG-INFO.
"""

from __future__ import annotations

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["Dependencies"]

DEPENDENCIES = (
    "h11>=0.16",  # asks Patroni, where a database has that; imported then
    "uvloop>=0.21; sys_platform != 'win32'",
)


class Dependencies(MetadataHookInterface):
    """Fills in ``dependencies``; hatchling has found the version by then."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Takes the table ``project``."""
        metadata["dependencies"] = [f"pgtrunk=={metadata['version']}", *DEPENDENCIES]

"""Socket addresses as people write them."""

from __future__ import annotations

from typing import Any

__all__ = ["readable"]


def readable(address: tuple[Any, ...]) -> str:
    """A socket address as a person would write it."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

"""The gateway itself."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING

from pgtrunk_gateway.console.columns import texts
from pgtrunk_gateway.console.registry import show

if TYPE_CHECKING:
    from pgtrunk_gateway.console.columns import Row
    from pgtrunk_gateway.console.view import View


@show("VERSION", texts("version"))
def show_version(view: View) -> Iterable[Row]:
    yield (f"pgtrunk-gateway {version('pgtrunk')}",)

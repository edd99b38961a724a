"""The command `pgtrunk`: parses the command line, and turns errors into one line and an exit code.

0 success, 1 it did not work, 2 the command line is wrong. Subcommands register themselves: each sets ``run``, a
function of the parsed arguments that returns the exit code.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

from pgtrunk import certs, ping
from pgtrunk.errors import PgtrunkError
from pgtrunk.sidecar import command as sidecar

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except (PgtrunkError, OSError) as exc:
        print(f"pgtrunk: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pgtrunk", description="Postgres sessions as streams over a few QUIC connections: tools for clients."
    )
    parser.add_argument("--version", action="version", version=f"pgtrunk {version('pgtrunk')}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    certs.register(subparsers)
    ping.register(subparsers)
    sidecar.register(subparsers)
    return parser


if __name__ == "__main__":
    sys.exit(main())

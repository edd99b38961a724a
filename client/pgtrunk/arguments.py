"""Arguments that several commands have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

__all__ = ["add_certificates"]


def add_certificates(parser: argparse.ArgumentParser) -> None:
    """Whom to take for the gateway, and what to show to it."""
    group = parser.add_argument_group("certificates")
    group.add_argument(
        "--ca", metavar="FILE", help="CAs that the gateway's certificate must lead to (default: the system's)"
    )
    group.add_argument("--cert", metavar="FILE", help="client certificate")
    group.add_argument("--key", metavar="FILE", help="its key")
    group.add_argument("--server-name", metavar="NAME", help="name that the certificate must carry (default: HOST)")
    group.add_argument("--dangerously-skip-certificate-verification", action="store_true", help="trust whoever answers")

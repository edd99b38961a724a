"""The command line of `pgtrunk ping`.

Exit codes: 0 it answers; 1 it cannot be reached, or something else went wrong; 2 the command line is wrong; 3 UDP is
blocked; 4 the certificate is wrong; 5 the login is refused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, TextIO

from pgtrunk.address import Address
from pgtrunk.arguments import add_certificates
from pgtrunk.errors import CertificateError, LoginRefused, PgtrunkError, UdpBlocked, UsageError

if TYPE_CHECKING:
    from pgtrunk.ping.survey import Asked

__all__ = ["register"]

CODES = ((UdpBlocked, 3), (CertificateError, 4), (LoginRefused, 5))


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to those of `pgtrunk`."""
    parser = subparsers.add_parser(
        "ping",
        help="open a QUIC connection to a gateway, and say what is found there",
        epilog="exit codes: 0 it answers, 1 it cannot be reached, 2 the command line is wrong, 3 UDP is blocked, "
        "4 the certificate is wrong, 5 the login is refused",
    )
    parser.add_argument("gateway", metavar="HOST[:PORT]", help="the gateway, port 6432 unless given")
    parser.add_argument(
        "-c", "--count", metavar="N", type=_count, default=3, help="pings to send once it is open, default: 3"
    )
    parser.add_argument(
        "-i", "--interval", metavar="SECONDS", type=float, default=0.2, help="between two of them, default: 0.2"
    )
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=5.0, help="of each step, default: 5")
    parser.add_argument("--json", action="store_true", help="print one JSON object, also of an error")
    parser.add_argument("--qlog", metavar="DIR", help="write a log of the packets there (qlog)")
    add_certificates(parser)
    _add_login(parser)
    parser.set_defaults(run=_run)


def _add_login(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "login",
        "With a user it logs in too, and counts round trips. The password comes from PGPASSWORD, or is asked for.",
    )
    group.add_argument("-U", "--user", metavar="NAME", help="log in as this user")
    group.add_argument("-d", "--database", metavar="NAME", help="to this database, default: the user's name")
    group.add_argument("--password-file", metavar="FILE", help="its first line is the password")
    group.add_argument("-w", "--no-password", action="store_true", help="never ask for one")


def _count(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError("from 0 to 1000000")
    return value


def _run(arguments: argparse.Namespace) -> int:
    from pgtrunk.ping.survey import survey

    try:
        asked = _asked(arguments)
        report = asyncio.run(survey(asked, say=_silent if arguments.json else _say, ask=_asking(arguments)))
    except PgtrunkError as exc:
        if not arguments.json:
            _say(f"pgtrunk: {exc}", sys.stderr)
        else:
            found = {
                "error": str(exc),
                "kind": type(exc).__name__,
                "sqlstate": exc.sqlstate,
                "retry_safe": exc.retry_safe,
            }
            if isinstance(exc, CertificateError):
                found |= {"presented": exc.presented, "expected": exc.expected}
            _say(json.dumps({"gateway": arguments.gateway, **found}))
        return next((code for kind, code in CODES if isinstance(exc, kind)), 1)
    if arguments.json:
        _say(json.dumps(report.as_json()))
    for warning in report.warnings():
        _say(f"pgtrunk: warning: {warning}", sys.stderr)
    return 0 if not report.round_trips or any(each is not None for each in report.round_trips) else 1


def _asked(arguments: argparse.Namespace) -> Asked:
    from pgtrunk.options import qlog_folder, require_seconds
    from pgtrunk.ping.survey import Asked
    from pgtrunk.quic import ClientConfig, QuicLimits
    from pgtrunk.quic.ticket_store import TicketStore

    require_seconds(timeout=arguments.timeout)
    if not 0 <= arguments.interval < float("inf"):
        raise UsageError(f"--interval {arguments.interval:g}: seconds are needed, and not for ever")
    return Asked(
        address=Address.parse(arguments.gateway),
        config=ClientConfig(
            limits=QuicLimits(max_streams=0),
            ca_file=arguments.ca,
            server_name=arguments.server_name,
            cert_file=arguments.cert,
            key_file=arguments.key,
            verify=not arguments.dangerously_skip_certificate_verification,
            timings=False,
            tickets=TicketStore(),
            qlog=qlog_folder(arguments.qlog),
        ),
        timeout=arguments.timeout,
        count=arguments.count,
        interval=arguments.interval,
        user=arguments.user,
        database=arguments.database or arguments.user,
        password=_password(arguments),
    )


def _password(arguments: argparse.Namespace) -> str | None:
    if arguments.password_file is None:
        return os.environ.get("PGPASSWORD")
    try:
        with open(arguments.password_file, encoding="utf-8") as file:
            return file.readline().rstrip("\r\n")
    except (OSError, UnicodeError) as exc:
        raise UsageError(f'--password-file "{arguments.password_file}" cannot be read: {exc}') from exc


def _asking(arguments: argparse.Namespace) -> str | None:
    """The prompt for a password, where somebody is there to be asked."""
    if arguments.no_password or arguments.json or not sys.stdin.isatty():
        return None
    return f"Password for user {arguments.user}: "


def _silent(line: str) -> None:
    pass


def _say(line: str, file: TextIO | None = None) -> None:
    print(line, file=file, flush=True)

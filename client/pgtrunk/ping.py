"""`pgtrunk ping`: whether a gateway answers over QUIC, with a certificate that is accepted, and how quickly."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from pgtrunk.address import Address

if TYPE_CHECKING:
    import argparse

__all__ = ["register"]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to those of `pgtrunk`."""
    parser = subparsers.add_parser("ping", help="open a QUIC connection to a gateway, and say how long that took")
    parser.add_argument("gateway", metavar="HOST[:PORT]", help="the gateway, port 6432 unless given")
    parser.add_argument(
        "--ca", metavar="FILE", help="CAs that the gateway's certificate must lead to (default: the system's)"
    )
    parser.add_argument("--cert", metavar="FILE", help="client certificate")
    parser.add_argument("--key", metavar="FILE", help="its key")
    parser.add_argument("--server-name", metavar="NAME", help="name that the certificate must carry (default: HOST)")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=5.0, help="default: 5")
    parser.add_argument(
        "--dangerously-skip-certificate-verification", action="store_true", help="trust whoever answers"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_ping(arguments))


async def _ping(arguments: argparse.Namespace) -> int:
    from pgtrunk.quic import ClientConfig, connect
    from pgtrunk.quic.config import QuicLimits

    address = Address.parse(arguments.gateway)
    config = ClientConfig(
        limits=QuicLimits(max_streams=0),
        ca_file=arguments.ca,
        server_name=arguments.server_name,
        cert_file=arguments.cert,
        key_file=arguments.key,
        verify=not arguments.dangerously_skip_certificate_verification,
    )
    start = time.perf_counter()
    connection = await connect(address.host, address.port, config=config, timeout=arguments.timeout)
    took = time.perf_counter() - start
    try:
        answer = f"{address}: connected in {took * 1000:.1f} ms, {connection.stream_credit} streams allowed"
        print(answer)  # noqa: T201 - it is what the command is for
    finally:
        connection.close()
        await connection.wait_closed()
    return 0

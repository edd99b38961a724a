"""What the suite starts in the gateway's place where its SQL shall go through a sidecar and QUIC.

The gateway gives up its TCP port, and has QUIC on the number instead, which is UDP's; at the TCP port is a sidecar. The
unix socket keeps the number in its name, so the console is where the suite looks for it. This process is the gateway:
signals, exit code and log are the gateway's own. The sidecar is its child, and ends when the gateway has ended,
however: it reads a pipe of which the gateway holds the other end. What both need is imported before they part, since
the suite gives a pooler five seconds to come up.

Runs by itself, in an environment that has the gateway; it is copied to where the suite is.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pgtrunk.quic.client  # noqa: F401 - or the sidecar's trunk would import it, and in its own time
from pgtrunk import StreamManager
from pgtrunk.errors import PgtrunkError
from pgtrunk.sidecar.endpoint import TcpEndpoint
from pgtrunk.sidecar.server import Sidecar
from pgtrunk_gateway.cli import main as gateway
from pgtrunk_gateway.config.load import load

_INI = """\
%include {theirs}
[pgbouncer]
listen_addr =
quic_listen_addr = 127.0.0.1
quic_listen_port = {port}
quic_cert_file = {certificates}/server.pem
quic_key_file = {certificates}/server.key
"""
_PATIENCE = 3.0
"""Seconds that a sidecar waits for the port, which the one before it gives up once its gateway has ended."""
_LOOK = 0.02


def main(arguments: Sequence[str]) -> int:
    """Runs the gateway, and returns its exit code. Arguments: the folder that `pgtrunk certs` has made, and those that
    the gateway is given."""
    certificates, *theirs = arguments
    try:
        port = load(theirs[-1]).config.listen_port
    except (PgtrunkError, IndexError):
        # The gateway says what is wrong, or what it was asked.
        return gateway(theirs)
    ini = Path(os.path.abspath(theirs[-1]))
    ours = ini.with_name(f"sidecar-{ini.name}")
    ours.write_text(_INI.format(theirs=ini, port=port, certificates=certificates))
    _start_sidecar(port, Path(certificates) / "ca.pem")
    return gateway([*theirs[:-1], str(ours)])


def _start_sidecar(port: int, ca_file: Path) -> None:
    """Returns when it listens; ends the process where it cannot."""
    is_ready, ready = os.pipe()
    gateway_ends, held = os.pipe()
    if os.fork() == 0:
        os.close(is_ready)
        os.close(held)
        for signum in (signal.SIGINT, signal.SIGTERM):
            # They are for the gateway.
            signal.signal(signum, signal.SIG_IGN)
        asyncio.run(_sidecar(port, ca_file, ready, gateway_ends))
        os._exit(0)
    os.close(ready)
    os.close(gateway_ends)
    if not os.read(is_ready, 1):
        sys.exit("the sidecar did not start: the lines above say why")
    os.close(is_ready)


async def _sidecar(port: int, ca_file: Path, ready: int, gateway_ends: int) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(gateway_ends, ended.set)
    async with StreamManager(f"127.0.0.1:{port}", ca_file=str(ca_file)) as manager:
        sidecar = Sidecar(manager, [TcpEndpoint("127.0.0.1", port)])
        await _open(sidecar)
        try:
            os.write(ready, b".")
            os.close(ready)
            await ended.wait()
        finally:
            await sidecar.close()
        asyncio.get_running_loop().remove_reader(gateway_ends)


async def _open(sidecar: Sidecar) -> None:
    deadline = asyncio.get_running_loop().time() + _PATIENCE
    while True:
        try:
            return await sidecar.open()
        except OSError as error:
            if error.errno != errno.EADDRINUSE or asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(_LOOK)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

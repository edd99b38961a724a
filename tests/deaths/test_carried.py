"""FIN, reset and pauses, carried both ways by a sidecar process between a driver's socket and a real gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helpers.sidecars import program, sidecar_process
from helpers.site import DATABASE, USER
from helpers.waiting import until
from pgtrunk.wire import backend, frontend
from pgtrunk.wire.framing import messages
from pgtrunk.wire.startup import StartupMessage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from helpers.gateways import LocalGateway, Start
    from helpers.sidecars import SidecarProcess

SLEEP: Final = frontend.query(b"SELECT pg_sleep(600)")
LARGE: Final = 40_000_000
"""Octets that somebody does not take."""
HELD: Final = 20_000_000
"""Octets that a sidecar may grow by meanwhile: the windows of a stream and a connection, sockets, Python's own."""
AT_ONCE: Final = 5.0
"""Half of quic_idle_timeout: what comes sooner has not come from silence."""


@asynccontextmanager
async def behind_a_sidecar(start: Start) -> AsyncIterator[tuple[LocalGateway, SidecarProcess]]:
    gateway = await start(auth_type="trust", default_pool_size=1)
    async with sidecar_process(gateway.site, gateway.quic.port) as sidecar:
        yield gateway, sidecar


class Driver:
    """A driver's socket, over TCP; all of it with a deadline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def log_in(cls, sidecar: SidecarProcess) -> Driver:
        driver = cls(*await asyncio.open_connection("127.0.0.1", sidecar.port))
        driver.writer.write(StartupMessage(parameters={"user": USER, "database": DATABASE}).encode())
        await driver.read_until(b"Z\0\0\0\x05I")
        return driver

    async def read_until(self, end: bytes) -> bytes:
        async with asyncio.timeout(20):
            return await self._reader.readuntil(end)

    async def read_to_the_end(self) -> bytes:
        async with asyncio.timeout(20):
            return await self._reader.read()

    def reset(self) -> None:
        """Closes the socket so that the other side is sent RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def test_a_drivers_fin_ends_what_runs(start: Start) -> None:
    async with behind_a_sidecar(start) as (gateway, sidecar):
        driver = await Driver.log_in(sidecar)
        driver.writer.write(SLEEP)
        await until(lambda: gateway.site.admin.running("pg_sleep"))
        driver.writer.write_eof()
        await until(lambda: not gateway.site.admin.running("pg_sleep"), AT_ONCE)
        assert await driver.read_to_the_end() == b""
        driver.writer.close()


async def test_a_drivers_reset_ends_what_runs(start: Start) -> None:
    async with behind_a_sidecar(start) as (gateway, sidecar):
        driver = await Driver.log_in(sidecar)
        driver.writer.write(SLEEP)
        await until(lambda: gateway.site.admin.running("pg_sleep"))
        driver.reset()
        await until(lambda: not gateway.site.admin.running("pg_sleep"), AT_ONCE)
        await until(lambda: gateway.counts(sessions=0, quic_streams=0), AT_ONCE)


async def test_terminate_and_fin_let_what_runs_end(start: Start) -> None:
    async with behind_a_sidecar(start) as (gateway, sidecar):
        gateway.site.admin.execute("DROP TABLE IF EXISTS carried")
        driver = await Driver.log_in(sidecar)
        driver.writer.write(
            frontend.query(b"CREATE TABLE carried AS SELECT 1 AS n FROM pg_sleep(0.1)") + frontend.TERMINATE_MESSAGE
        )
        driver.writer.write_eof()
        await driver.read_to_the_end()
        driver.writer.close()
        await until(lambda: gateway.site.admin.rows("SELECT FROM pg_tables WHERE tablename = 'carried'"))


async def test_the_gateways_last_words_and_fin_reach_the_driver(start: Start) -> None:
    async with behind_a_sidecar(start) as (gateway, sidecar):
        driver = await Driver.log_in(sidecar)
        for session in gateway.gateway.context.sessions:
            session.end_if_idle()
        said = await driver.read_to_the_end()
        assert said[:1] == b"E" and backend.parse_error(said[5:]).sqlstate == "57P01"
        driver.writer.close()
        await until(lambda: gateway.counts(sessions=0, quic_streams=0), AT_ONCE)


async def test_the_gateways_reset_is_told_to_the_driver(start: Start) -> None:
    async with behind_a_sidecar(start) as (gateway, sidecar):
        driver = await Driver.log_in(sidecar)
        for session in gateway.gateway.context.sessions:
            session.transport.abort()
        said = await driver.read_to_the_end()
        assert said[:1] == b"E" and backend.parse_error(said[5:]).sqlstate == "08006"
        driver.writer.close()


def memory(process: asyncio.subprocess.Process) -> int:
    """Octets that it has in memory."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_driver_that_pauses_pauses_postgres(start: Start) -> None:
    async with behind_a_sidecar(start) as (gateway, sidecar):
        admin = gateway.site.admin
        before = memory(sidecar.process)
        text = f"COPY (SELECT repeat('x', 999) FROM generate_series(1, {LARGE // 1000})) TO STDOUT"
        psql = await program("psql", sidecar, "-XAtq", "-c", text, "-o", "/dev/null")
        await until(lambda: admin.running("repeat"))
        psql.send_signal(signal.SIGSTOP)
        paused = "SELECT FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND query LIKE 'COPY%%repeat%%'"
        # Postgres may wait for a moment all the time; here it waits and nobody takes any more.
        await until(lambda: admin.rows(paused) and admin.rows(paused) and admin.rows(paused))
        assert memory(sidecar.process) - before < HELD
        psql.send_signal(signal.SIGCONT)
        async with asyncio.timeout(40):
            _, said = await psql.communicate()
        assert (psql.returncode, said) == (0, b"")


async def test_a_postgres_that_pauses_pauses_the_driver(start: Start) -> None:
    async with behind_a_sidecar(start) as (_, sidecar):
        driver = await Driver.log_in(sidecar)
        driver.writer.write(frontend.query(b"CREATE TEMP TABLE taken (x text); SELECT pg_backend_pid()"))
        (pid,) = [int(data[11:]) for kind, data in _split(await driver.read_until(b"Z\0\0\0\x05I")) if kind == "D"]
        before = memory(sidecar.process)
        driver.writer.write(frontend.query(b"BEGIN; COPY taken FROM STDIN"))
        await driver.read_until(b"G\0\0\0\x09\0\0\x01\0\0")
        os.kill(pid, signal.SIGSTOP)
        try:
            sent = await _until_blocked(driver.writer)
            assert sent < HELD
            assert memory(sidecar.process) - before < HELD
        finally:
            os.kill(pid, signal.SIGCONT)
        driver.writer.write(frontend.COPY_DONE_MESSAGE + frontend.query(b"SELECT count(*) FROM taken"))
        assert f"COPY {sent // _ROW}".encode() in await driver.read_until(b"Z\0\0\0\x05T")
        driver.writer.close()


_ROW: Final = 1000


async def _until_blocked(writer: asyncio.StreamWriter) -> int:
    """Sends rows until the socket takes no more for a while -> octets of them."""
    rows = frontend.copy_data((b"x" * (_ROW - 1) + b"\n") * 100)
    sent = 0
    while True:
        writer.write(rows)
        sent += _ROW * 100
        try:
            async with asyncio.timeout(1):
                await writer.drain()
        except TimeoutError:
            return sent


def _split(data: bytes) -> list[tuple[str, bytes]]:
    return [(chr(kind), data[begin:end]) for kind, begin, end in messages(data)]

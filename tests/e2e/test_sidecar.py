"""psql, pgbench and psycopg through `pgtrunk sidecar`, a process of its own, and a real gateway."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
import urllib.request
from typing import TYPE_CHECKING

import psycopg
import pytest

from helpers.gateways import LocalGateway
from helpers.sidecars import command, program, run_program, sidecar_process
from helpers.site import USER
from helpers.waiting import until

if TYPE_CHECKING:
    from helpers.gateways import Start
    from helpers.site import Site


@pytest.fixture
def table(site: Site) -> str:
    """A table with one row, to be locked."""
    site.admin.execute("DROP TABLE IF EXISTS sidecar_rows")
    site.admin.execute("CREATE TABLE sidecar_rows AS SELECT 1 AS id, 0 AS value")
    site.admin.execute("GRANT ALL ON sidecar_rows TO PUBLIC")
    return "sidecar_rows"


LOCK = ("-c", "BEGIN", "-c", "UPDATE sidecar_rows SET value = value + 1", "-c", "SELECT pg_sleep(60)")


# -- drivers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [None, "127.0.0.1"])
async def test_psql(start: Start, host: str | None) -> None:
    gateway = await start()
    async with sidecar_process(gateway.site, gateway.quic.port) as sidecar:
        told = await run_program("psql", sidecar, "-XAt", "-c", "SELECT current_user", host=host)
        assert told == (0, f"{USER}\n", "")
        code, out, err = await run_program(
            "psql", sidecar, "-XAt", "-c", "COPY (SELECT repeat('x', 99) FROM generate_series(1, 50000)) TO STDOUT"
        )
        assert (code, len(out), err) == (0, 5_000_000, "")
        await until(lambda: gateway.counts(sessions=0))


async def test_as_many_drivers_as_the_system_allows(start: Start) -> None:
    gateway = await start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        async with sidecar_process(gateway.site, gateway.quic.port) as sidecar:
            assert resource.prlimit(sidecar.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_pgbench(start: Start) -> None:
    gateway = await start()
    async with sidecar_process(gateway.site, gateway.quic.port) as sidecar:
        code, _, err = await run_program("pgbench", sidecar, "-i", "-s", "1", "-q")
        assert code == 0, err
        for mode, host in (("prepared", None), ("simple", "127.0.0.1")):
            arguments = ("-M", mode, "-c", "20", "-t", "10")
            code, out, err = await run_program("pgbench", sidecar, *arguments, host=host)
            assert code == 0, err
            assert "transactions actually processed: 200/200" in out
        # More sessions than the trunk has streams wait for their turn; pgbench opens all of them first.
    options = ("--connections", "1", "--streams-per-connection", "4", "--acquire-timeout", "0.5")
    async with sidecar_process(gateway.site, gateway.quic.port, *options) as sidecar:
        code, _, err = await run_program("pgbench", sidecar, "-S", "-c", "5", "-t", "1")
        assert code == 1
        assert "no stream became free within acquire_timeout=0.5 s" in err


async def test_psycopg(start: Start) -> None:
    gateway = await start()

    def use(conninfo: dict[str, str]) -> None:
        with psycopg.connect(**conninfo) as connection:  # type: ignore[arg-type]
            connection.execute("CREATE TEMP TABLE t (n int, x text) ON COMMIT DROP")
            with connection.cursor().copy("COPY t FROM STDIN") as copy:
                for n in range(10_000):
                    copy.write_row((n, "x" * 100))
            with connection.pipeline():
                cursors = [connection.execute("SELECT count(*), %s::int FROM t", (n,)) for n in range(50)]
            assert [cursor.fetchone() for cursor in cursors] == [(10_000, n) for n in range(50)]
            with connection.cursor().copy("COPY t TO STDOUT") as copy:
                assert sum(len(chunk) for chunk in copy) > 1_000_000
            connection.commit()
            for _ in range(7):  # more than prepare_threshold
                assert connection.execute("SELECT %s::int + 1", (1,)).fetchone() == (2,)

    async with sidecar_process(gateway.site, gateway.quic.port) as sidecar:
        await asyncio.to_thread(use, sidecar.conninfo())
        await asyncio.to_thread(use, sidecar.conninfo(host="127.0.0.1", port=sidecar.port))
        async with await psycopg.AsyncConnection.connect(**sidecar.conninfo(), autocommit=True) as connection:
            async with connection.pipeline():
                cursors = [await connection.execute("SELECT %s::int", (n,)) for n in range(10)]
            assert [await cursor.fetchone() for cursor in cursors] == [(n,) for n in range(10)]


# -- cancels -----------------------------------------------------------------------------------------------------------


async def test_cancel_by_psycopg_at_the_cap(start: Start) -> None:
    gateway = await start()
    options = ("--connections", "1", "--streams-per-connection", "1")
    async with (
        sidecar_process(gateway.site, gateway.quic.port, *options) as sidecar,
        await psycopg.AsyncConnection.connect(**sidecar.conninfo(), autocommit=True) as connection,
    ):
        for _ in range(3):
            query = asyncio.create_task(connection.execute("SELECT pg_sleep(60)"))
            await until(lambda: gateway.site.admin.running("pg_sleep"))
            await connection.cancel_safe(timeout=20)
            with pytest.raises(psycopg.errors.QueryCanceled):
                await query
        assert await (await connection.execute("SELECT 1")).fetchone() == (1,)


async def test_control_c_in_psql(start: Start) -> None:
    gateway = await start()
    options = ("--connections", "1", "--streams-per-connection", "1")
    async with sidecar_process(gateway.site, gateway.quic.port, *options) as sidecar:
        psql = await program("psql", sidecar, "-X", "-c", "SELECT pg_sleep(60)")
        await until(lambda: gateway.site.admin.running("pg_sleep"))
        psql.send_signal(signal.SIGINT)
        async with asyncio.timeout(20):
            _, said = await psql.communicate()
        assert b"canceling statement due to user request" in said
        assert psql.returncode == 1
        assert not gateway.site.admin.running("pg_sleep")


# -- deaths ------------------------------------------------------------------------------------------------------------


@pytest.mark.alone
async def test_when_psql_dies_its_locks_are_free_at_once(start: Start, site: Site, table: str) -> None:
    gateway = await start()
    async with sidecar_process(site, gateway.quic.port) as sidecar:
        psql = await program("psql", sidecar, "-X", *LOCK)
        await until(lambda: site.admin.running("pg_sleep"))
        assert site.admin.is_locked(table)
        psql.kill()
        await psql.communicate()
        died = time.monotonic()
        await until(lambda: not site.admin.is_locked(table))
        # A fifth of the time in which the gateway gives up a peer that is silent.
        assert time.monotonic() - died < 2
        assert site.admin.value("SELECT value FROM sidecar_rows") == 0
        await until(lambda: gateway.counts(sessions=0, leased=0))


async def test_when_the_sidecar_dies_locks_are_free_after_the_idle_timeout(
    start: Start, site: Site, table: str
) -> None:
    gateway = await start()
    async with sidecar_process(site, gateway.quic.port) as sidecar:
        psql = await program("psql", sidecar, "-X", *LOCK)
        await until(lambda: site.admin.running("pg_sleep"))
        sidecar.process.kill()
        died = time.monotonic()
        _, said = await psql.communicate()
        assert psql.returncode == 2
        assert b"server closed the connection unexpectedly" in said
        await until(lambda: not site.admin.is_locked(table))
        assert time.monotonic() - died < 12
        await until(lambda: gateway.counts(sessions=0, leased=0))
        folder = sidecar.folder
    async with sidecar_process(site, gateway.quic.port, folder=folder) as sidecar:
        # In the same place, where a dead socket lies.
        assert (await run_program("psql", sidecar, "-XAt", "-c", "SELECT 1"))[1] == "1\n"


async def test_a_gateway_that_comes_back(start: Start, site: Site) -> None:
    first = LocalGateway(site, {})
    await first.gateway.start()
    port = first.quic.port
    async with sidecar_process(site, port, "--acquire-timeout", "20") as sidecar:
        connection = await psycopg.AsyncConnection.connect(**sidecar.conninfo())
        await connection.execute("SELECT 1")
        await first.close()
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("SELECT 1")
        await connection.close()
        again = await start(listen_port=port)
        # It waits until the trunk has found the gateway again.
        code, out, err = await run_program("psql", sidecar, "-XAt", "-c", "SELECT 1")
        assert (code, out) == (0, "1\n"), err
        await until(lambda: again.counts(sessions=0))


async def test_where_there_is_no_gateway_the_driver_is_told(site: Site) -> None:
    async with sidecar_process(site, 1) as sidecar:
        code, _, err = await run_program("psql", sidecar, "-X", "-c", "SELECT 1")
        assert code == 2
        assert "FATAL:  gateway 127.0.0.1:1 cannot be reached" in err
        with pytest.raises(psycopg.OperationalError, match="nothing listens on that UDP port"):
            await psycopg.AsyncConnection.connect(**sidecar.conninfo(host="127.0.0.1", port=sidecar.port))
        raw = await asyncio.open_unix_connection(f"{sidecar.folder}/.s.PGSQL.5432")
        raw[1].write(b"\0\0\0\x10\0\3\0\0user\0a\0\0")
        assert b"\0C08001\0" in await raw[0].read()
        raw[1].close()


async def test_a_gateway_that_is_not_trusted(start: Start) -> None:
    gateway = await start()
    async with sidecar_process(gateway.site, gateway.quic.port, "--server-name", "other.example.net") as sidecar:
        code, _, err = await run_program("psql", sidecar, "-X", "-c", "SELECT 1")
        assert code == 2
        assert f"FATAL:  gateway 127.0.0.1:{gateway.quic.port} cannot be used" in err
        assert "other.example.net" in err


# -- its own end -------------------------------------------------------------------------------------------------------


async def test_sigterm_waits_for_sessions(start: Start) -> None:
    gateway = await start()
    async with sidecar_process(gateway.site, gateway.quic.port) as sidecar:
        async with await psycopg.AsyncConnection.connect(**sidecar.conninfo()) as connection:
            sidecar.process.send_signal(signal.SIGTERM)
            await sidecar.says("waiting for 1 sessions, at most 60 s")
            assert not os.listdir(sidecar.folder)
            with pytest.raises(psycopg.OperationalError):
                await psycopg.AsyncConnection.connect(**sidecar.conninfo())
            assert await (await connection.execute("SELECT 1")).fetchone() == (1,)
        assert await sidecar.ended() == 0


@pytest.mark.parametrize("how", ["twice", "timeout", "interrupt"])
async def test_what_does_not_wait_tells_the_sessions(start: Start, how: str) -> None:
    gateway = await start()
    options = ("--shutdown-timeout", "0.1") if how == "timeout" else ()
    async with sidecar_process(gateway.site, gateway.quic.port, *options) as sidecar:
        connection = await psycopg.AsyncConnection.connect(**sidecar.conninfo())
        await connection.execute("SELECT 1")
        sidecar.process.send_signal(signal.SIGINT if how == "interrupt" else signal.SIGTERM)
        if how == "twice":
            await sidecar.says("waiting for 1 sessions")
            sidecar.process.send_signal(signal.SIGTERM)
        with pytest.raises(psycopg.OperationalError, match="the sidecar is shutting down"):
            while True:
                await connection.execute("SELECT pg_sleep(0.1)")
        assert await sidecar.ended() == 0
        assert "shutting down, 1 sessions are left" in sidecar.log[-1]
        await until(lambda: gateway.counts(sessions=0, leased=0))


async def test_metrics_for_prometheus(start: Start) -> None:
    gateway = await start()
    async with sidecar_process(gateway.site, gateway.quic.port, "--metrics", "127.0.0.1:0") as sidecar:
        (line,) = [line for line in sidecar.log if "metrics at" in line]
        url = line.split()[-1]
        code, out, _ = await run_program("psql", sidecar, "-Atc", "select 1")
        assert (code, out) == (0, "1\n")

        def scrape() -> str:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return str(answer.read(), "utf-8")

        text = await asyncio.to_thread(scrape)
        assert f'pgtrunk_sessions_opened_total{{trunk="127.0.0.1:{gateway.quic.port}"}} 1.0' in text
        occupied = url.removeprefix("http://").removesuffix("/metrics")
        refused, said = await told("--listen", "127.0.0.1:0", "--metrics", occupied)
        assert (refused, said) == (1, f"pgtrunk: --metrics {occupied}: Address already in use\n")


async def told(*options: str) -> tuple[int | None, str]:
    """Exit code and last words of a sidecar that cannot be."""
    process = await asyncio.create_subprocess_exec(
        *command("127.0.0.1:1"), *options, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        _, said = await process.communicate()
    return process.returncode, said.decode()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--listen", "nowhere"], 1, "'nowhere' is no place to listen at"),
        (["--listen", "0.0.0.0:0"], 1, "can be reached from other machines"),
        (["--listen", "127.0.0.1:0", "--ca", "missing.pem"], 1, "missing.pem"),
        (["--listen", "127.0.0.1:0", "--connections", "0"], 1, "connections=0"),
        (["--listen", "127.0.0.1:0", "--shutdown-timeout", "inf"], 1, "--shutdown-timeout"),
        (["--listen", "127.0.0.1:0", "--metrics", "/run"], 1, "--metrics /run: host:port is expected"),
        (["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:x"], 1, "the port is a number"),
        (["--listen", "127.0.0.1:0", "-q", "-v"], 2, "not allowed with"),
        ([], 2, "--listen"),
    ],
)
async def test_what_cannot_be_served_is_told_at_once(options: list[str], code: int, words: str) -> None:
    returned, said = await told(*options)
    assert returned == code
    assert words in said.splitlines()[-1]
    assert code == 2 or (said.startswith("pgtrunk: ") and said.count("\n") == 1)

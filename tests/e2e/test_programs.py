"""PostgreSQL's own programs, and psycopg where libpq has what asyncpg has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.pq import ExecStatus

from helpers.processes import GatewayProcess, gateway_process, run_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from helpers.site import Site

LIBPQ = pytest.mark.parametrize("libpq", ["tcp", "unix"])


@pytest.fixture(scope="module")
def gateway(site: Site) -> Iterator[GatewayProcess]:
    """A process for all tests here, with four backends."""
    with gateway_process(site, default_pool_size=4, max_client_conn=200) as gateway:
        gateway.port()
        yield gateway
        assert gateway.stop() == 0
    # Of root it warns, and rightly.
    assert not [line for line in gateway.log if not line.startswith("LOG") and "running as root" not in line]


SCRIPT = r"""
\set ON_ERROR_STOP off
SELECT 'first';
\d pg_class
BEGIN; SELECT 1 / 0; SELECT 'not seen'; ROLLBACK;
SELECT 'second' \; SELECT 'third';
CREATE TEMP TABLE p (n int) \; COPY p FROM STDIN \; SELECT 'sum ' || sum(n) FROM p \; DROP TABLE p;
1
2
\.
COPY (SELECT 'copied') TO STDOUT;
SELECT $1 || ' bound' \bind 'parameter' \g
SELECT $1 || ' parsed' \parse named
\bind_named named 'by name' \g
\startpipeline
SELECT 'in a ' || $1 \bind 'pipeline' \sendpipeline
SELECT 'another' \bind \sendpipeline
\endpipeline
\watch c=2 i=0.01
\conninfo
SHOW application_name;
"""


@LIBPQ
def test_psql(gateway: GatewayProcess, libpq: str) -> None:
    done = run_program("psql", gateway.conninfo(libpq, application_name="me"), "-X", "-A", "-t", stdin=SCRIPT)
    for words in (
        "first", "relname|name", "second", "third", "sum 3", "copied", "parameter bound", "by name parsed",
        "in a pipeline", "another", "me",
    ):  # fmt: skip
        assert words in done.stdout
    assert "not seen" not in done.stdout
    assert done.stderr.splitlines()[0].endswith("ERROR:  division by zero")


@LIBPQ
@pytest.mark.parametrize("version", ["3.0", "3.2"])
def test_each_version_of_the_protocol(gateway: GatewayProcess, libpq: str, version: str, tmp_path: Path) -> None:
    conninfo = gateway.conninfo(libpq, min_protocol_version=version, max_protocol_version=version)
    assert f"Protocol Version|{version}\n" in run_program("psql", conninfo, "-XAtc", r"\conninfo").stdout
    script = tmp_path / "script.sql"
    script.write_text("SELECT 1;\n")
    for more in ((), ("-C",)):
        done = run_program("pgbench", conninfo, "-n", "-M", "extended", "-c", "8", "-t", "10", "-f", str(script), *more)
        assert "number of transactions actually processed: 80/80" in done.stdout


@LIBPQ
def test_psql_takes_what_is_newest(gateway: GatewayProcess, libpq: str) -> None:
    conninfo = gateway.conninfo(libpq, min_protocol_version="3.0", max_protocol_version="latest")
    assert "Protocol Version|3.2\n" in run_program("psql", conninfo, "-XAtc", r"\conninfo").stdout


@LIBPQ
def test_psql_in_another_encoding(gateway: GatewayProcess, libpq: str) -> None:
    conninfo = gateway.conninfo(libpq, client_encoding="LATIN1")
    assert run_program("psql", conninfo, "-XAtc", r"SELECT length(E'\u00e9')").stdout == "1\n"


@LIBPQ
@pytest.mark.parametrize("program", ["pg_dump", "pg_isready", "vacuumdb"])
def test_other_programs(gateway: GatewayProcess, libpq: str, program: str) -> None:
    done = run_program(program, gateway.conninfo(libpq), check=False)
    if program == "vacuumdb":
        assert done.returncode == 0
    if program == "pg_isready":
        assert "accepting connections" in done.stdout
    if program == "pg_dump":
        # It sets what transaction pooling cannot carry, so it is not promised; but it ends, one way or the other.
        assert done.returncode in (0, 1)
    assert run_program("psql", gateway.conninfo(libpq), "-XAtc", "SELECT 1").stdout == "1\n"


@LIBPQ
def test_pgbench_makes_its_tables(gateway: GatewayProcess, libpq: str) -> None:
    for steps in ("dtgvp", "dtGvpf"):
        run_program("pgbench", gateway.conninfo(libpq), "-i", "-q", "-I", steps)
    done = run_program("pgbench", gateway.conninfo(libpq), "-c", "8", "-t", "50")
    assert "number of failed transactions: 0 (0.000%)" in done.stdout
    assert "number of transactions actually processed: 400/400" in done.stdout


@LIBPQ
def test_psycopg_prepares_by_itself(gateway: GatewayProcess, libpq: str) -> None:
    with gateway.connect(libpq) as session, gateway.connect(libpq, prepare_threshold=1) as other:
        for number in range(20):
            for connection in (session, other):
                row = connection.execute("SELECT %s::int + 1, %s", (number, "x")).fetchone()
                assert row == (number + 1, "x")
                with connection.transaction(), connection.cursor(binary=True) as cursor:
                    assert cursor.execute("SELECT %b::int", (number,)).fetchone() == (number,)


@LIBPQ
def test_psycopg_pipelines_a_thousand_queries(gateway: GatewayProcess, libpq: str) -> None:
    with gateway.connect(libpq) as session:
        for _ in range(3):
            with session.pipeline():
                cursors = [session.execute("SELECT %s::int", (number,)) for number in range(1000)]
            assert [cursor.fetchone() for cursor in cursors] == [(number,) for number in range(1000)]


@LIBPQ
@pytest.mark.parametrize("prepare", [False, True])
def test_libpq_pipelines_around_errors(gateway: GatewayProcess, libpq: str, prepare: bool) -> None:
    """In every third batch the fourth query fails: so do those behind it, and nothing else."""
    with gateway.connect(libpq) as session:
        libpq_session = session.pgconn
        libpq_session.enter_pipeline_mode()
        for batch in range(30):
            query = b"SELECT 1 / ($1::int - 3)" if batch % 3 == 0 else b"SELECT $1::int"
            name = b"" if not prepare else b"divides" if batch % 3 == 0 else b"selects"
            if name and batch in (0, 1):
                libpq_session.send_prepare(name, query)
            for number in range(5):
                if name:
                    libpq_session.send_query_prepared(name, [b"%d" % number])
                else:
                    libpq_session.send_query_params(query, [b"%d" % number])
            libpq_session.pipeline_sync()
        for batch in range(30):
            told: list[ExecStatus] = []
            while not told or told[-1] != ExecStatus.PIPELINE_SYNC:
                if (result := libpq_session.get_result()) is not None:
                    told.append(ExecStatus(result.status))
            prepared = [ExecStatus.COMMAND_OK] if prepare and batch in (0, 1) else []
            fails = [ExecStatus.TUPLES_OK] * 3 + [ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED]
            answers = [ExecStatus.TUPLES_OK] * 5 if batch % 3 else fails
            assert told == [*prepared, *answers, ExecStatus.PIPELINE_SYNC]
        libpq_session.exit_pipeline_mode()
        assert session.execute("SELECT 1").fetchone() == (1,)


@LIBPQ
def test_psycopg_pipelines_a_transaction(gateway: GatewayProcess, libpq: str) -> None:
    with gateway.connect(libpq) as session:
        session.execute("DROP TABLE IF EXISTS piped; CREATE TABLE piped (n int)")
        with session.pipeline(), session.transaction():
            for number in range(100):
                session.execute("INSERT INTO piped VALUES (%s)", (number,))
        with pytest.raises(psycopg.errors.DivisionByZero), session.pipeline(), session.transaction():
            session.execute("INSERT INTO piped VALUES (1000)")
            session.execute("SELECT 1 / 0")
            session.execute("INSERT INTO piped VALUES (1001)")
        assert session.execute("SELECT count(*), max(n) FROM piped").fetchone() == (100, 99)


@LIBPQ
def test_psycopg_cursors(gateway: GatewayProcess, libpq: str) -> None:
    with gateway.connect(libpq) as session, session.transaction():
        with session.cursor("named") as cursor:
            cursor.itersize = 100
            cursor.execute("SELECT n FROM generate_series(1, 1000) n")
            assert [n for (n,) in cursor] == list(range(1, 1001))
        with session.cursor() as cursor:
            assert [n for (n,) in cursor.stream("SELECT n FROM generate_series(1, 1000) n")] == list(range(1, 1001))
            cursor.executemany("SELECT %s::int", [(n,) for n in range(100)], returning=True)
            assert [result.fetchone() for result in cursor.results()] == [(n,) for n in range(100)]

"""The login of a session: what each client is told, and that nothing of a failed one is left."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from helpers.lobby import PARAMETERS, USERS, Lobby
from helpers.waiting import until
from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import messages
from pgtrunk.wire.startup import PROTOCOL_3_0, PROTOCOL_3_2, CancelRequest, GSSENCRequest, SSLRequest, StartupMessage
from pgtrunk_gateway.auth import ClientExchange, Plain, Userlist
from pgtrunk_gateway.config.settings import Config, DatabaseConfig
from pgtrunk_gateway.errors import BackendUnavailable
from pgtrunk_gateway.session.parameters import pack
from pgtrunk_gateway.session.state import State


def kinds(data: bytes) -> str:
    return "".join(chr(kind) for kind, _, _ in messages(data))


def error(data: bytes) -> server.ErrorFields:
    """The only message in ``data``, or the last."""
    *_, (kind, start, end) = messages(data)
    assert chr(kind) == "E"
    return server.parse_error(data[start + 5 : end])


async def test_a_welcome_has_everything_in_postgres_order() -> None:
    lobby = Lobby()
    welcome = await lobby.startup(application_name="shop-7", datestyle="German")
    assert kinds(welcome) == "RSSSSKZ"
    reported = [server.parse_parameter_status(welcome[s + 5 : e]) for k, s, e in messages(welcome) if k == ord("S")]
    assert dict(reported) == {**PARAMETERS, "application_name": "shop-7", "DateStyle": "German"}
    assert server.backend_key_data(77, b"abcd") in welcome
    assert lobby.session.state is State.IDLE
    assert lobby.context.admitted == 1
    await lobby.end()


async def test_the_first_query_may_come_with_the_startup_packet() -> None:
    lobby = Lobby()
    packet = StartupMessage(parameters={"user": "app", "database": "shop"}).encode()
    welcome = await lobby.send(packet + client.TERMINATE_MESSAGE)
    assert kinds(welcome).endswith("KZ")
    assert lobby.session.state is State.CLOSED
    await lobby.end()


async def test_octet_by_octet() -> None:
    lobby = Lobby()
    packets = SSLRequest().encode() + StartupMessage(parameters={"user": "app", "database": "shop"}).encode()
    received = b""
    for at in range(len(packets)):
        received += await lobby.send(packets[at : at + 1])
    assert received[:1] == b"N"
    assert kinds(received[1:]) == "RSSSSKZ"
    await lobby.end()


async def test_encryption_is_declined_once_of_each_kind() -> None:
    lobby = Lobby()
    assert await lobby.send(GSSENCRequest().encode()) == b"N"
    assert await lobby.send(SSLRequest().encode()) == b"N"
    assert error(await lobby.send(SSLRequest().encode())).sqlstate == "08P01"
    await lobby.end()


@pytest.mark.parametrize(
    ("asked", "options", "told", "spoken"),
    [
        (PROTOCOL_3_0, {}, None, PROTOCOL_3_0),
        (PROTOCOL_3_0 + 1, {}, None, PROTOCOL_3_0),
        (PROTOCOL_3_2, {}, None, PROTOCOL_3_2),
        (PROTOCOL_3_2 + 1, {}, PROTOCOL_3_2, PROTOCOL_3_2),
        (PROTOCOL_3_0 + 9999, {"_pq_.a": "1", "_pq_.b": ""}, PROTOCOL_3_2, PROTOCOL_3_2),
        (PROTOCOL_3_2, {"_pq_.stream": "on"}, PROTOCOL_3_2, PROTOCOL_3_2),
        (PROTOCOL_3_0, {"_pq_.stream": "on"}, PROTOCOL_3_0, PROTOCOL_3_0),
        (PROTOCOL_3_0, {"_pq_.early_data": "read-only"}, None, PROTOCOL_3_0),
    ],
)
async def test_the_protocol_is_negotiated(asked: int, options: dict[str, str], told: int | None, spoken: int) -> None:
    lobby = Lobby()
    packet = StartupMessage(asked, {"user": "app", "database": "shop"}, options)
    answer = await lobby.send(packet.encode())
    if told is None:
        assert kinds(answer) == "RSSSSKZ"
    else:
        assert answer.startswith(server.negotiate_protocol(told, list(options)))
        assert kinds(answer) == "vRSSSSKZ"
    assert server.backend_key_data(77, b"abcd" * (8 if spoken == PROTOCOL_3_2 else 1)) in answer
    await lobby.end()


async def test_the_protocol_is_negotiated_before_the_login() -> None:
    lobby = Lobby(auth_type="plain", users=USERS)
    packet = StartupMessage(PROTOCOL_3_2 + 1, {"user": "app", "database": "shop"})
    assert kinds(await lobby.send(packet.encode())) == "vR"
    await lobby.end()


async def test_a_cancel_request_is_served_and_no_session() -> None:
    lobby = Lobby()
    assert await lobby.send(CancelRequest(7, b"1234").encode()) == b""
    assert lobby.cancels.served == [CancelRequest(7, b"1234")]
    assert lobby.transport.closing
    await lobby.end()


@pytest.mark.parametrize(
    ("parameters", "sqlstate", "words"),
    [
        ({"user": ""}, "28000", "no user name"),
        ({"database": "shoe"}, "3D000", "no such database: shoe"),
        ({"replication": "database"}, "0A000", "replication"),
        ({"work mem": "1GB"}, "42704", 'unrecognized configuration parameter "work mem"'),
        ({"options": "-d 3"}, "0A000", "unsupported options startup parameter: only '-c config=val' and"),
    ],
)
async def test_startup_packets_that_are_refused(parameters: dict[str, str], sqlstate: str, words: str) -> None:
    lobby = Lobby()
    refused = error(await lobby.startup(**parameters))
    assert (refused.severity, refused.sqlstate) == ("FATAL", sqlstate)
    assert words in refused.message
    assert lobby.transport.closing
    assert lobby.context.counters.refused == 1
    await lobby.end()


async def test_the_log_names_who_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    lobby = Lobby()
    await lobby.startup(user="a" * 100, database="shoe")
    assert (
        f"C-{lobby.session.id}: shoe/{'a' * 63}@{lobby.session.peer} closing because: no such database" in caplog.text
    )
    await lobby.end()


@pytest.mark.parametrize(
    ("garbage", "sqlstate"),
    [
        (b"\0\0\0\1", "08P01"),
        (b"GET / HTTP/1.1\r\n\r\n", "08P01"),
        (b"\0\0\0\x08\0\2\0\0", "0A000"),
        (b"\x16\x03\x01\x02\0\1", "08P01"),
    ],
)
async def test_what_is_no_startup_packet(garbage: bytes, sqlstate: str) -> None:
    lobby = Lobby()
    assert error(await lobby.send(garbage)).sqlstate == sqlstate
    assert lobby.transport.closing
    await lobby.end()


@pytest.mark.parametrize(("ignored", "others"), [((), {"search_path": "shop"}), (("search_path",), {})])
async def test_a_setting_that_this_server_does_not_report_is_not_told(
    ignored: tuple[str, ...], others: dict[str, str]
) -> None:
    """search_path, before PostgreSQL 18: it is made when a backend is there, unless it is to be ignored."""
    lobby = Lobby(ignore_startup_parameters=ignored)
    welcome = await lobby.startup(search_path="shop")
    assert kinds(welcome).endswith("Z")
    assert b"search_path" not in welcome
    assert lobby.session.profile[-1] == pack(others)
    await lobby.end()


async def test_settings_in_options_are_those_of_the_packet() -> None:
    lobby = Lobby(ignore_startup_parameters=("extra_float_digits",))
    options = "-c lock_timeout=5s --DateStyle=German -cextra_float_digits=3 -c application_name=theirs"
    welcome = await lobby.startup(options=options, work_mem="1MB", application_name="mine")
    assert server.parameter_status("DateStyle", "German") in welcome
    assert server.parameter_status("application_name", "mine") in welcome
    assert lobby.session.profile[-1] == pack({"lock_timeout": "5s", "work_mem": "1MB"})
    assert lobby.session.admission is not None
    assert not lobby.session.admission.certain
    await lobby.end()


async def test_ignored_parameters_are_dropped() -> None:
    lobby = Lobby(ignore_startup_parameters=("extra_float_digits",))
    assert kinds(await lobby.startup(extra_float_digits="3")).endswith("Z")
    await lobby.end()


async def test_no_more_than_max_client_conn() -> None:
    lobby = Lobby(max_client_conn=0)
    refused = error(await lobby.startup())
    assert (refused.sqlstate, refused.detail) == ("53300", "max_client_conn = 0.")
    await lobby.end()


async def test_a_gateway_that_drains_takes_nobody() -> None:
    lobby = Lobby()
    lobby.context.draining = True
    assert error(await lobby.startup()).sqlstate == "57P03"
    await lobby.end()


async def test_a_server_that_cannot_be_reached_is_told_at_login() -> None:
    lobby = Lobby()
    lobby.pool.error = BackendUnavailable("cannot connect to the server at 127.0.0.1:5432: refused")
    assert error(await lobby.startup()).sqlstate == "08001"
    await lobby.end()


async def test_a_client_that_says_nothing_is_not_waited_for_any_longer_than_told() -> None:
    lobby = Lobby(client_login_timeout=0.01)
    await until(lambda: lobby.transport.closing)
    refused = error(lobby.transport.take())
    assert (refused.sqlstate, refused.detail) == ("57014", "client_login_timeout = 0.01 s.")
    await lobby.end()


# -- SCRAM -----------------------------------------------------------------------------------------------------------


async def scram(lobby: Lobby, password: str, user: str = "app") -> bytes:
    """Logs in with SCRAM -> the last that the gateway says."""
    exchange = ClientExchange(nonce=b"n" * 18)
    assert kinds(await lobby.startup(user=user)) == "R"
    challenge = await lobby.send(client.sasl_initial_response("SCRAM-SHA-256", exchange.first()))
    derivation = exchange.challenge(challenge[9:], password)
    return await lobby.send(client.sasl_response(exchange.final(derivation.run())))


async def test_scram() -> None:
    lobby = Lobby(auth_type="scram-sha-256", users=USERS)
    assert kinds(await scram(lobby, "secret")) == "RRSSSSKZ"
    await lobby.end()


@pytest.mark.parametrize(("user", "password"), [("app", "wrong"), ("nobody", "secret")])
async def test_a_wrong_password_and_an_unknown_user_are_told_the_same(user: str, password: str) -> None:
    lobby = Lobby(auth_type="scram-sha-256", users=USERS)
    refused = error(await scram(lobby, password, user))
    assert refused == server.ErrorFields("FATAL", "28P01", "SASL authentication failed")
    await lobby.end()


@pytest.mark.parametrize("size", [65_530, 65_531])
async def test_passwords_may_be_as_long_as_in_postgres(size: int) -> None:
    secret = "a" * 65_530
    lobby = Lobby(auth_type="plain", users=Userlist({"app": Plain(secret)}))
    assert kinds(await lobby.startup()) == "R"
    answer = await lobby.send(client.password(b"a" * size))
    if size == len(secret):
        assert kinds(answer) == "RSSSSKZ"
    else:
        assert error(answer).sqlstate == "28P01"
    await lobby.end()


async def test_an_address_that_failed_too_often_must_wait() -> None:
    lobby = Lobby(auth_type="scram-sha-256", users=USERS)
    for _ in range(2):
        lobby.context.limiter.failed("192.0.2.1", asyncio.get_running_loop().time())
    refused = error(await lobby.startup())
    assert refused.sqlstate == "28000"
    assert "login_failure_limit" in refused.detail
    await lobby.end()


async def test_leaving_instead_of_proving_and_saying_something_else() -> None:
    for said in (client.TERMINATE_MESSAGE, client.query(b"select 1")):
        lobby = Lobby(auth_type="scram-sha-256", users=USERS)
        await lobby.startup()
        await lobby.send(said)
        assert lobby.session.state is State.CLOSED
        await lobby.end()


# -- ends ------------------------------------------------------------------------------------------------------------


async def test_a_client_that_is_gone_leaves_nothing_wherever_its_login_was() -> None:
    """Ends it at each point where it can be waiting."""
    for point in ("startup packet", "first message", "derivation", "server"):
        lobby = Lobby(auth_type="scram-sha-256", users=USERS)
        if point == "derivation":
            lobby.deriving.clear()
        if point == "server":
            lobby.pool.gate.clear()
        exchange = ClientExchange(nonce=b"n" * 18)
        if point != "startup packet":
            await lobby.startup()
        if point in ("derivation", "server"):
            challenge = await lobby.send(client.sasl_initial_response("SCRAM-SHA-256", exchange.first()))
            derivation = exchange.challenge(challenge[9:], "secret")
            await lobby.send(client.sasl_response(exchange.final(derivation.run())))
        assert lobby.session.state is State.LOGIN, point
        await lobby.end()
        assert len(asyncio.all_tasks()) == 1, point


async def test_a_login_that_is_stopped_by_the_gateways_end() -> None:
    lobby = Lobby()
    lobby.pool.gate.clear()
    await lobby.startup()
    lobby.session.end_if_idle()
    assert error(lobby.transport.take()).sqlstate == "57P01"
    await lobby.end()
    assert len(asyncio.all_tasks()) == 1


async def test_a_client_that_floods_before_it_is_read_is_stopped() -> None:
    lobby = Lobby(auth_type="scram-sha-256", users=USERS)
    lobby.deriving.clear()
    exchange = ClientExchange(nonce=b"n" * 18)
    await lobby.startup()
    await lobby.send(client.sasl_initial_response("SCRAM-SHA-256", exchange.first()))
    lobby.session.data_received(bytes(100_000))
    assert lobby.transport.paused
    lobby.deriving.set()
    await until(lambda: lobby.transport.closing)
    await lobby.end()


@pytest.mark.parametrize("user", [None, "app"])
async def test_whoever_it_is_logs_in_only_where_a_user_is_forced(
    user: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """SET auth_type = any must not let everybody be everybody in Postgres."""
    caplog.set_level("INFO")
    lobby = Lobby(auth_type="any")
    reloaded(lobby, DatabaseConfig(name="shop", user=user))
    if user is None:
        assert error(await lobby.startup(user="root")).message == "bouncer config error"
        assert "auth_type=any requires forced user" in caplog.text
    else:
        assert kinds(await lobby.startup(user="root")).endswith("KZ")
    await lobby.end()


# -- a reload in the middle --------------------------------------------------------------------------------------------


def reloaded(lobby: Lobby, *databases: DatabaseConfig, **config: Any) -> None:
    lobby.context.config = Config(databases={each.name: each for each in databases}, **config)


async def test_a_database_that_is_removed_while_the_client_thinks() -> None:
    lobby = Lobby(auth_type="plain", users=USERS)
    await lobby.startup()
    reloaded(lobby)
    assert error(await lobby.send(client.password(b"secret"))).message == "no such database: shop"
    assert lobby.pool.entrusted == []
    await lobby.end()


async def test_a_database_that_is_removed_while_the_server_is_waited_for() -> None:
    lobby = Lobby()
    lobby.pool.gate.clear()
    await lobby.startup()
    reloaded(lobby)
    lobby.pool.gate.set()
    assert error(await lobby.send(b"")).message == "no such database: shop"
    await lobby.end()


async def test_a_database_that_is_another_one_once_the_server_has_answered() -> None:
    """With another forced user, say: the session would be in a pool that is nobody's any more."""
    lobby = Lobby()
    lobby.pool.gate.clear()
    await lobby.startup()
    lobby.context.pool = cast("Any", lambda entry, user: object())
    lobby.pool.gate.set()
    assert error(await lobby.send(b"")).message == "database configuration changed"
    await lobby.end()


async def test_a_database_that_moves_while_the_client_thinks() -> None:
    """Its pool is to be made for where it is now."""
    lobby = Lobby(auth_type="plain", users=USERS)
    await lobby.startup()
    asked: list[DatabaseConfig] = []

    def pool(entry: DatabaseConfig, _: str) -> Any:
        asked.append(entry)
        return lobby.pool

    lobby.context.pool = pool
    moved = DatabaseConfig(name="shop", host="192.0.2.7", pool_mode="session")
    reloaded(lobby, moved)
    assert kinds(await lobby.send(client.password(b"secret"))).endswith("KZ")
    assert set(asked) == {moved}
    assert lobby.session.terms.pool_mode == "session"
    await lobby.end()


# -- a fault of ours ---------------------------------------------------------------------------------------------------


async def test_a_fault_ends_this_login_and_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    lobby = Lobby()

    def broken(entry: DatabaseConfig, user: str) -> Any:
        raise ValueError("a fault")

    lobby.context.pool = broken
    assert error(await lobby.startup()).message == "internal error"
    assert lobby.session.state is State.CLOSED
    assert lobby.context.admitted == 0
    assert "ValueError: a fault" in caplog.text
    await lobby.end()

"""The shell around a login, by each method: what is written, asked and counted, and what an end leaves behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers.lobby import Lobby
from pgtrunk.wire import backend as server
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import messages
from pgtrunk_gateway.auth import MD5, Derivation, Found, Plain, ScramKeys, Userlist
from pgtrunk_gateway.config.settings import DatabaseConfig
from pgtrunk_gateway.errors import LookupFailed
from pgtrunk_gateway.session.state import State

SCRAM = Derivation("secret", b"salt", 4).secret()
KEYS = Derivation("secret", b"salt", 4).run()
USERS = Userlist({"app": Plain("secret"), "stored": SCRAM, "hashed": MD5.of("hashed", "secret")})


def kinds(data: bytes) -> str:
    return "".join(chr(kind) for kind, _, _ in messages(data))


def error(data: bytes) -> server.ErrorFields:
    *_, (kind, start, end) = messages(data)
    assert chr(kind) == "E"
    return server.parse_error(data[start + 5 : end])


class Directory:
    """An auth_query of the test's own."""

    def __init__(self, *found: Found) -> None:
        self.users = {each.user: each for each in found}
        self.asked: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, database: DatabaseConfig, user: str) -> Found | None:
        self.asked.append((database.name, user))
        await self.gate.wait()
        return self.users.get(user)


def lobby_with(directory: Directory, **settings: Any) -> Lobby:
    lobby = Lobby(**{"auth_user": "asker", "auth_type": "plain", **settings})
    lobby.context.lookup = directory
    return lobby


async def test_a_password_in_clear() -> None:
    for user, given in (("app", None), ("stored", KEYS), ("hashed", None)):
        lobby = Lobby(auth_type="plain", users=USERS)
        assert await lobby.startup(user=user) == server.authentication_cleartext_password()
        assert kinds(await lobby.send(client.password(b"secret"))).endswith("KZ")
        assert lobby.pool.entrusted == [(USERS.get(user), given)]
        await lobby.end()


async def test_a_password_by_md5() -> None:
    lobby = Lobby(auth_type="md5", users=USERS)
    asked = await lobby.startup(user="hashed")
    assert asked[:9] == server.authentication_md5_password(bytes(4))[:9]
    answer = MD5.of("hashed", "secret").answer(asked[9:])
    assert kinds(await lobby.send(client.password(answer))).endswith("KZ")
    await lobby.end()


@pytest.mark.parametrize("auth_type", ["plain", "md5"])
@pytest.mark.parametrize("user", ["app", "hashed", "nobody"])
async def test_a_wrong_password_is_counted(auth_type: str, user: str) -> None:
    lobby = Lobby(auth_type=auth_type, users=Userlist({"app": Plain("secret"), "hashed": MD5.of("hashed", "secret")}))
    await lobby.startup(user=user)
    refused = error(await lobby.send(client.password(b"wrong")))
    assert refused == server.ErrorFields("FATAL", "28P01", "password authentication failed")
    assert len(lobby.context.limiter) == 1
    await lobby.end()


async def test_an_empty_password_is_refused_in_postgres_words() -> None:
    lobby = Lobby(auth_type="plain", users=USERS)
    await lobby.startup()
    assert error(await lobby.send(client.password(b""))).message == "empty password returned by client"
    await lobby.end()


@pytest.mark.parametrize("message", [client.query(b"SELECT 1"), b"p\0\0\0\x04", b"p\0\0\0\x09abc\0d"])
async def test_something_else_than_a_password(message: bytes) -> None:
    lobby = Lobby(auth_type="plain", users=USERS)
    await lobby.startup()
    assert error(await lobby.send(message)).sqlstate == "08P01"
    await lobby.end()


async def test_a_certificate_that_is_none() -> None:
    lobby = Lobby(auth_type="cert", users=USERS)
    assert error(await lobby.startup()).message == "certificate authentication failed"
    await lobby.end()


async def test_a_forced_users_pool_is_not_given_what_its_client_has() -> None:
    lobby = Lobby(auth_type="plain", users=USERS)
    databases = {"shop": DatabaseConfig(name="shop", user="stored")}
    object.__setattr__(lobby.context.config, "databases", databases)
    await lobby.startup(user="stored")
    assert kinds(await lobby.send(client.password(b"secret"))).endswith("KZ")
    assert lobby.pool.entrusted == []
    await lobby.end()


# -- auth_query --------------------------------------------------------------------------------------------------------


async def test_who_is_found() -> None:
    directory = Directory(Found("found", (Plain("secret"),)))
    lobby = lobby_with(directory)
    await lobby.startup(user="found")
    assert kinds(await lobby.send(client.password(b"secret"))).endswith("KZ")
    assert directory.asked == [("shop", "found")]
    assert lobby.pool.entrusted == [(Plain("secret"), None)]
    await lobby.end()


async def test_nobody_is_asked_for_in_a_database_that_does_not_exist() -> None:
    """But it is not told from one that does: the client is asked for its password all the same."""
    directory = Directory(Found("found", (Plain("secret"),)))
    lobby = lobby_with(directory)
    asked = await lobby.startup(user="found", database="nowhere")
    assert asked == server.authentication_cleartext_password()
    assert error(await lobby.send(client.password(b"secret"))).sqlstate == "28P01"
    assert directory.asked == []
    await lobby.end()


async def test_who_is_not_looked_up() -> None:
    directory = Directory()
    for settings in ({"auth_user": None}, {"users": Userlist({"app": Plain("secret")})}, {"auth_type": "any"}):
        lobby = lobby_with(directory, **settings)
        await lobby.startup()
        await lobby.end()
    assert directory.asked == []


async def test_a_failed_question_is_told_and_not_counted() -> None:
    async def failing(_database: DatabaseConfig, _user: str) -> Found | None:
        raise LookupFailed(log="no")

    lobby = lobby_with(Directory())
    lobby.context.lookup = failing
    refused = error(await lobby.startup(user="found"))
    assert (refused.sqlstate, refused.message) == ("F0000", "bouncer config error")
    assert len(lobby.context.limiter) == 0
    await lobby.end()


async def test_a_client_that_leaves_or_is_stopped_while_it_is_looked_up() -> None:
    for leaves in (True, False):
        directory = Directory()
        directory.gate.clear()
        lobby = lobby_with(directory)
        await lobby.startup(user="found")
        assert lobby.session.state is State.LOGIN
        if not leaves:
            lobby.session.end_if_idle()
            assert error(lobby.transport.take()).sqlstate == "57P01"
        await lobby.end()
        assert len(asyncio.all_tasks()) == 1


async def test_the_password_may_come_before_the_answer() -> None:
    directory = Directory(Found("found", (SCRAM,)))
    directory.gate.clear()
    lobby = lobby_with(directory)
    assert await lobby.startup(user="found") == b""
    assert await lobby.send(client.password(b"secret")) == b""
    directory.gate.set()
    await lobby.settle()
    assert kinds(lobby.transport.take()).endswith("KZ")
    assert lobby.pool.entrusted == [(SCRAM, KEYS)]
    await lobby.end()


async def test_two_derivations_for_two_secrets() -> None:
    """A password in clear that fits the first is not derived for the second."""
    other = Derivation("former", b"other", 4).secret()
    for password, derivations in ((b"secret", 1), (b"former", 2), (b"wrong", 2)):
        lobby = Lobby(auth_type="plain", users=Userlist({"app": SCRAM}, {"app": other}))
        run: list[Derivation] = []

        async def derive(derivation: Derivation, run: list[Derivation] = run) -> ScramKeys:
            run.append(derivation)
            return derivation.run()

        lobby.context.derive = derive
        await lobby.startup()
        answer = await lobby.send(client.password(password))
        assert kinds(answer).endswith("E" if password == b"wrong" else "KZ")
        assert len(run) == derivations
        await lobby.end()

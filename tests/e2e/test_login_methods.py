"""Each auth_type with real drivers, what it has to log in to Postgres with, and how long that counts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from helpers.certificates import CLIENT_AUTH, authority
from helpers.roles import Roles, log_in, refused
from helpers.site import DATABASE, PASSWORD, USER
from pgtrunk_gateway.auth import Derivation

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.gateways import LocalGateway, Start, Way
    from helpers.site import Site

THROUGH = "through"
WRONG_TYPE = ("28P01", "server login failed: wrong password type")


@pytest.fixture
def roles(site: Site) -> Iterator[Roles]:
    roles = Roles(site)
    try:
        roles.make(THROUGH, "secret")
        yield roles
    finally:
        roles.close()


async def login(gateway: LocalGateway, user: str = THROUGH, password: str = "secret", **more: Any) -> str:
    """Who is logged in, in Postgres."""
    return await log_in(gateway, user, password, **more)


async def refusal(gateway: LocalGateway, user: str = THROUGH, password: str = "secret", **more: Any) -> tuple[str, str]:
    """SQLSTATE and message."""
    return await refused(gateway, user, password, **more)


def reconnect(gateway: LocalGateway) -> None:
    for pool in gateway.gateway.pools:
        pool.reconnect()


# -- clients -----------------------------------------------------------------------------------------------------------


@pytest.mark.both_loops
@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
async def test_a_password_by_every_way_in(start: Start, pooled: Way, auth_type: str) -> None:
    gateway = await start(auth_type=auth_type)
    assert await login(gateway, USER, PASSWORD, way=pooled) == USER
    words = "SASL" if auth_type == "scram-sha-256" else "password"
    assert await refusal(gateway, USER, "wrong", way=pooled) == ("28P01", f"{words} authentication failed")
    assert await refusal(gateway, "nobody", "wrong", way=pooled) == ("28P01", f"{words} authentication failed")
    # The database is spoken of only after the login.
    assert (await refusal(gateway, "nobody", "wrong", database="nowhere"))[0] == "28P01"
    assert (await refusal(gateway, USER, PASSWORD, database="nowhere"))[0] == "3D000"


@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
@pytest.mark.parametrize("password", ["größe", "with 'quotes'", "x" * 1000])
async def test_libpq(roles: Roles, start: Start, auth_type: str, password: str) -> None:
    users = roles.userlist(**{USER: password})
    gateway = await start(auth_type=auth_type, auth_file=users, databases={DATABASE: own_password(roles.site)})
    connection = await psycopg.AsyncConnection.connect(**gateway.conninfo("tcp", password=password))
    async with connection:
        assert await (await connection.execute("SELECT 1")).fetchone() == (1,)
    with pytest.raises(psycopg.OperationalError, match="authentication failed"):
        await psycopg.AsyncConnection.connect(**gateway.conninfo("tcp", password=password + "x"))


def own_password(site: Site) -> str:
    """An entry of [databases] with a forced user."""
    return site.target(f"user={USER} password='{PASSWORD.replace(chr(39), chr(39) * 2)}'")


@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
async def test_guesses_are_limited(start: Start, auth_type: str) -> None:
    gateway = await start(auth_type=auth_type, login_failure_limit=3, login_failure_window=3600)
    told = [await refusal(gateway, USER, f"guess {number}") for number in range(5)]
    assert [sqlstate for sqlstate, _ in told] == ["28P01"] * 3 + ["28000"] * 2
    assert (await refusal(gateway, USER, PASSWORD))[0] == "28000"


async def test_certificates_over_quic(start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gateway = await start(auth_type="cert", quic_client_ca_file=(await start()).site.certificates.ca_cert)
    files = gateway.site.certificates
    await gateway.trunk(cert_file=str(files.client_cert), key_file=str(files.client_key))
    assert await login(gateway, USER, "is not asked for", way="quic") == USER
    assert await refusal(gateway, "nobody", way="quic") == ("28000", "certificate authentication failed")
    assert "no such user: 'nobody'" in caplog.text
    # Elsewhere there is none.
    for way in ("tcp", "unix"):
        assert await refusal(gateway, USER, PASSWORD, way=way) == ("28000", "certificate authentication failed")
    assert "TLS client certificate required" in caplog.text


async def test_certificates_over_tls(roles: Roles, start: Start, site: Site, tmp_path: Path, caplog: Any) -> None:
    ca = authority()
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    gateway = await start(
        auth_type="cert",
        client_tls_sslmode="verify-full",
        client_tls_cert_file=site.certificates.server_cert,
        client_tls_key_file=site.certificates.server_key,
        client_tls_ca_file=tmp_path / "ca.pem",
    )
    for name, gets_in in ((USER, True), ("another", False), (USER.upper(), False)):
        cert, key = ca.issue(name, usage=[CLIENT_AUTH]).save(tmp_path, name)
        os.chmod(key, 0o600)
        shown = {"sslmode": "require", "sslcert": cert, "sslkey": key}
        if gets_in:
            async with await psycopg.AsyncConnection.connect(**gateway.conninfo("tcp", **shown)) as connection:
                assert await (await connection.execute("SELECT current_user")).fetchone() == (USER,)
        else:
            with pytest.raises(psycopg.OperationalError, match="certificate authentication failed"):
                await psycopg.AsyncConnection.connect(**gateway.conninfo("tcp", **shown))
    assert "TLS certificate name mismatch: 'app' is not among ['another']" in caplog.text


async def test_channel_binding(start: Start, site: Site) -> None:
    gateway = await start(
        client_tls_sslmode="allow",
        client_tls_cert_file=site.certificates.server_cert,
        client_tls_key_file=site.certificates.server_key,
    )
    for wanted in ("require", "prefer", "disable"):
        conninfo = gateway.conninfo("tcp", sslmode="require", channel_binding=wanted)
        async with await psycopg.AsyncConnection.connect(**conninfo) as connection:
            assert await (await connection.execute("SELECT 1")).fetchone() == (1,)
    conninfo = gateway.conninfo("tcp", sslmode="require", channel_binding="require", password="wrong")
    with pytest.raises(psycopg.OperationalError, match="SASL authentication failed"):
        await psycopg.AsyncConnection.connect(**conninfo)
    # Without TLS there is none, and libpq says so itself.
    with pytest.raises(psycopg.OperationalError, match="channel binding"):
        await psycopg.AsyncConnection.connect(**gateway.conninfo("tcp", channel_binding="require"))


# -- pass-through ------------------------------------------------------------------------------------------------------


@pytest.mark.both_loops
@pytest.mark.parametrize("auth_type", ["scram-sha-256", "md5", "plain"])
async def test_who_proves_a_scram_secret_needs_no_password_in_the_gateway(
    roles: Roles, start: Start, pooled: Way, auth_type: str
) -> None:
    gateway = await start(auth_type=auth_type, auth_file=roles.userlist(**{THROUGH: roles.secret(THROUGH)}))
    assert await login(gateway, way=pooled) == THROUGH
    reconnect(gateway)
    assert await login(gateway, way=pooled) == THROUGH


@pytest.mark.parametrize("length", [1, 8, 16, 64])
@pytest.mark.parametrize("iterations", [1, 4096, 20_000])
async def test_any_salt_and_any_number_of_iterations(roles: Roles, start: Start, length: int, iterations: int) -> None:
    secret = Derivation("secret", os.urandom(length), iterations).secret().encode()
    roles.change(THROUGH, secret)
    assert roles.secret(THROUGH) == secret
    gateway = await start(auth_file=roles.userlist(**{THROUGH: secret}))
    assert await login(gateway) == THROUGH


async def test_nobody_has_proved_the_secret(roles: Roles, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    gateway = await start(auth_type="trust", auth_file=roles.userlist(**{THROUGH: roles.secret(THROUGH)}))
    assert await refusal(gateway) == WRONG_TYPE
    assert (
        "cannot do SCRAM authentication: password is SCRAM secret but client authentication did not provide SCRAM keys"
        in caplog.text
    )


async def test_postgres_has_another_secret_of_the_same_password(roles: Roles, start: Start) -> None:
    mine = roles.secret(THROUGH)
    roles.change(THROUGH, "secret")
    gateway = await start(auth_file=roles.userlist(**{THROUGH: mine}))
    sqlstate, words = await refusal(gateway)
    assert (sqlstate, words) == ("28P01", "server login failed: the server has another SCRAM secret of user 'through'")


async def test_a_forced_user_keeps_its_own_password(roles: Roles, start: Start, site: Site) -> None:
    """PgBouncer 1461: there a client's keys took its place."""
    users = roles.userlist(**{THROUGH: roles.secret(THROUGH)})
    gateway = await start(auth_file=users, databases={DATABASE: own_password(site)})
    for _ in range(3):
        assert await login(gateway) == USER
        reconnect(gateway)
    # Nor does a forced user get the keys of a client of the same name.
    gateway = await start(auth_file=users, databases={DATABASE: site.target(f"user={THROUGH}")})
    assert await refusal(gateway) == WRONG_TYPE


async def test_keys_count_for_as_long_as_the_secret(roles: Roles, start: Start) -> None:
    users = roles.userlist(**{THROUGH: roles.secret(THROUGH)})
    gateway = await start(auth_file=users)
    assert await login(gateway) == THROUGH
    await gateway.gateway.operations.reload()
    reconnect(gateway)
    connection = await gateway.connect("tcp", user=THROUGH, password="secret")
    assert await connection.fetchval("SELECT 1") == 1
    # Another password: the old keys are of no use, not even here.
    roles.change(THROUGH, "newer")
    users.write_text(f'"{THROUGH}" "{roles.secret(THROUGH)}"\n')
    await gateway.gateway.operations.reload()
    (pool,) = gateway.gateway.pools.of(DATABASE)
    assert pool.target.credentials.keys is None
    assert (await refusal(gateway))[1] == "SASL authentication failed"
    assert await login(gateway, password="newer") == THROUGH
    assert await connection.fetchval("SELECT 2") == 2


# -- what Postgres asks for --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["trust", "password", "md5", "scram-sha-256"])
@pytest.mark.parametrize("secret", ["secret", "md5", "scram"])
async def test_what_serves_which_method_of_postgres(
    roles: Roles, start: Start, caplog: pytest.LogCaptureFixture, method: str, secret: str
) -> None:
    encryption = "md5" if method == "md5" or secret == "md5" else "scram-sha-256"
    roles.change(THROUGH, "secret", encryption=encryption)
    stored = roles.secret(THROUGH) if secret != "scram" else Derivation("secret", b"salt", 1).secret().encode()
    if secret == "scram" and method == "scram-sha-256":
        roles.change(THROUGH, stored)
    gateway = await start(
        auth_type="plain", auth_file=roles.userlist(**{THROUGH: secret if secret == "secret" else stored})
    )
    with roles.asked_for(through=method):
        serves = (
            method == "trust" or secret == "secret" or (secret, method) in (("md5", "md5"), ("scram", "scram-sha-256"))
        )
        if serves:
            assert await login(gateway) == THROUGH
            reconnect(gateway)
            assert await login(gateway) == THROUGH
            # Once, not for each connection.
            assert caplog.text.count("password sent in clear") == (method == "password")
        else:
            assert await refusal(gateway) == WRONG_TYPE


async def test_without_a_password_for_postgres(roles: Roles, start: Start) -> None:
    gateway = await start(auth_type="any", databases={DATABASE: roles.site.target(f"user={THROUGH}")}, auth_file=None)
    sqlstate, words = await refusal(gateway, "whoever", "")
    assert (sqlstate, words) == ("28P01", f"no password for user '{THROUGH}', which the server asks for")


# -- two secrets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
async def test_a_password_is_changed_without_a_moment_of_refusals(roles: Roles, start: Start, auth_type: str) -> None:
    users = roles.userlist()
    users.write_text(f'"{THROUGH}" "secret"\n')
    gateway = await start(auth_type=auth_type, auth_file=users)
    session = await gateway.connect("tcp", user=THROUGH, password="secret")
    assert await session.fetchval("SELECT 1") == 1
    roles.change(THROUGH, "newer")
    users.write_text(f'"{THROUGH}" "newer" previous "secret"\n')
    await gateway.gateway.operations.reload()
    assert await login(gateway, password="secret") == await login(gateway, password="newer") == THROUGH
    assert (await refusal(gateway, password="wrong"))[0] == "28P01"
    users.write_text(f'"{THROUGH}" "newer"\n')
    await gateway.gateway.operations.reload()
    assert (await refusal(gateway, password="secret"))[0] == "28P01"
    assert await login(gateway, password="newer") == THROUGH
    assert await session.fetchval("SELECT 2") == 2


async def test_many_logins_at_once_by_each_method(roles: Roles, start: Start) -> None:
    users = roles.userlist(**{THROUGH: "secret"})
    for auth_type in ("plain", "md5", "scram-sha-256"):
        gateway = await start(auth_type=auth_type, auth_file=users)
        assert set(await asyncio.gather(*(login(gateway) for _ in range(50)))) == {THROUGH}

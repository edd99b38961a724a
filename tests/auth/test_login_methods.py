"""The login by each method but SCRAM, by auth_query, and with two secrets: who gets in, and what the others learn."""

from __future__ import annotations

import datetime
import itertools
import os
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from helpers.logins import ITERATIONS, KEY, NONCE, SALT, Dialogue, secret_of
from pgtrunk_gateway.auth import (
    MD5,
    Accepted,
    AuthType,
    ClientCertificate,
    Derivation,
    Login,
    LoginPolicy,
    LookUp,
    Plain,
    ScramSecret,
    Secret,
    SendCleartext,
    SendMD5,
    SendSasl,
    Userlist,
)
from pgtrunk_gateway.errors import (
    AuthenticationFailed,
    GatewayError,
    LoginRefused,
    ProtocolError,
    TooManyFailures,
)

SCRAM = secret_of("secret")
USERS = Userlist({"plain": Plain("secret"), "scram": SCRAM, "md5": MD5.of("md5", "secret"), "empty": Plain("")})
OTHER = secret_of("former", b"another salt....")


def log_in(
    user: str,
    auth_type: AuthType,
    password: str = "secret",
    *,
    users: Userlist | None = USERS,
    looked_up: tuple[Secret, ...] | None = None,
    asks_query: bool = False,
) -> Dialogue:
    """A login that is over."""
    policy = LoginPolicy(auth_type=auth_type, userlist=users, mock_key=KEY, iterations=ITERATIONS)
    login = Login(policy, user, nonce=NONCE, retry_after=lambda: 0.0, asks_query=asks_query)
    dialogue = Dialogue(login, password, looked_up)
    dialogue.run()
    return dialogue


# -- passwords in clear, and MD5 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["plain", "scram", "md5"])
@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
def test_which_secret_serves_which_method(user: str, auth_type: AuthType) -> None:
    gets_in = (user, auth_type) != ("md5", "scram-sha-256")
    assert log_in(user, auth_type).gets_in is gets_in
    assert not log_in(user, auth_type, "wrong").gets_in


@pytest.mark.parametrize(
    ("user", "auth_type", "asked"),
    [
        ("plain", "plain", SendCleartext()),
        ("scram", "plain", SendCleartext()),
        ("plain", "md5", SendMD5(NONCE[:4])),
        ("md5", "md5", SendMD5(NONCE[:4])),
        ("scram", "md5", SendSasl(("SCRAM-SHA-256",))),
    ],
)
def test_what_the_client_is_asked_for(user: str, auth_type: AuthType, asked: object) -> None:
    assert log_in(user, auth_type).asked == asked


@pytest.mark.parametrize("user", ["plain", "scram", "md5", "empty", "unknown"])
@pytest.mark.parametrize("auth_type", ["plain", "md5"])
def test_a_wrong_password(user: str, auth_type: AuthType) -> None:
    login = log_in(user, auth_type, "wrong")
    word = "SASL" if isinstance(login.asked, SendSasl) else "password"
    assert type(login.error) is AuthenticationFailed
    assert (login.error.message, login.error.sqlstate) == (f"{word} authentication failed", "28P01")
    assert (login.error.detail, login.error.hint) == (None, None)
    log = {"empty": "empty password", "unknown": "no such user: 'unknown'"}.get(
        user, f"wrong password for user '{user}'"
    )
    assert log in (login.error.log or "")


@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
@pytest.mark.parametrize("password", ["", "secret", "md5" + "0" * 32, SCRAM.encode(), USERS.get("md5").digest])  # type: ignore[union-attr]
def test_nobody_gets_in_with_an_empty_password_or_with_the_secret_itself(auth_type: AuthType, password: str) -> None:
    for user in ("empty", "unknown", *(("scram", "md5") if password != "secret" else ())):
        assert not log_in(user, auth_type, password).gets_in


def test_the_hash_that_is_sent_with_one_salt_is_of_no_use_with_another() -> None:
    policy = LoginPolicy(auth_type="md5", userlist=USERS, mock_key=KEY)
    seen = Login(policy, "md5", nonce=NONCE, retry_after=lambda: 0.0)
    dialogue = Dialogue(seen, "secret")
    dialogue.run()
    replayed = Login(policy, "md5", nonce=b"x" * 18, retry_after=lambda: 0.0)
    replayed.start()
    assert not any(isinstance(action, Accepted) for action in replayed.message(dialogue.sent[-1]))


@pytest.mark.parametrize("auth_type", ["plain", "md5"])
@pytest.mark.parametrize("body", [b"", b"secret", b"secret\0x", b"secret\0\0"])
def test_what_is_no_password_message(auth_type: AuthType, body: bytes) -> None:
    login = Login(
        LoginPolicy(auth_type=auth_type, userlist=USERS, mock_key=KEY), "plain", nonce=NONCE, retry_after=lambda: 0.0
    )
    login.start()
    (refused,) = login.message(body)
    assert type(refused.error) is ProtocolError  # type: ignore[union-attr]


def test_octets_that_are_no_utf_8() -> None:
    users = Userlist({"raw": Plain("caf\udce9")})
    for auth_type in ("plain", "md5", "scram-sha-256"):
        assert log_in("raw", auth_type, "caf\udce9", users=users).gets_in


def test_a_password_in_clear_gives_the_keys_of_a_scram_secret_too() -> None:
    keys = Derivation("secret", SALT, ITERATIONS).run()
    methods: tuple[AuthType, ...] = ("plain", "md5", "scram-sha-256")
    for auth_type in methods:
        accepted = log_in("scram", auth_type).accepted
        assert accepted is not None and (accepted.secret, accepted.keys) == (SCRAM, keys)
    for user, auth_type in itertools.product(("plain", "md5"), methods[:2]):
        accepted = log_in(user, auth_type).accepted
        assert accepted is not None and (accepted.secret, accepted.keys) == (USERS.get(user), None)


@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256", "cert"])
def test_the_limiter_is_asked_first_by_every_method(auth_type: AuthType) -> None:
    policy = LoginPolicy(auth_type=auth_type, userlist=USERS, mock_key=KEY)
    (refused,) = Login(policy, "plain", nonce=NONCE, retry_after=lambda: 1.0).start()
    assert isinstance(refused.error, TooManyFailures)  # type: ignore[union-attr]


@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
@pytest.mark.parametrize("user", ["plain", "scram", "unknown"])
def test_the_limiter_is_asked_again_before_a_password_is_looked_at(auth_type: AuthType, user: str) -> None:
    delays = iter([0.0])
    policy = LoginPolicy(auth_type=auth_type, userlist=USERS, mock_key=KEY, iterations=ITERATIONS)
    dialogue = Dialogue(Login(policy, user, nonce=NONCE, retry_after=lambda: next(delays, 1.0)), "secret")
    dialogue.run()
    assert isinstance(dialogue.error, TooManyFailures)


@pytest.mark.parametrize("user", ["scram", "unknown"])
def test_the_limiter_is_asked_once_more_after_a_derivation(user: str) -> None:
    """Of logins that were begun together, each password would be looked at otherwise: derivations take their time."""
    delays = iter([0.0, 0.0])
    users = Userlist({"scram": SCRAM})
    policy = LoginPolicy(auth_type="plain", userlist=users, mock_key=KEY, iterations=ITERATIONS)
    dialogue = Dialogue(Login(policy, user, nonce=NONCE, retry_after=lambda: next(delays, 1.0)), "secret")
    dialogue.run()
    assert isinstance(dialogue.error, TooManyFailures)


# -- those who do not exist ------------------------------------------------------------------------------------------


def kinds(users: Userlist | None, auth_type: AuthType, names: list[str]) -> set[object]:
    """What these users are seen to have: the messages, and the iterations and the length of the salt in them."""
    seen: set[object] = set()
    for name in names:
        first, second = (log_in(name, auth_type, "wrong", users=users) for _ in range(2))
        assert first.seen == second.seen
        seen.add(first.kind)
    return seen


STRANGERS = [f"stranger{number}" for number in range(40)]


@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
@pytest.mark.parametrize(
    "secrets",
    [
        [Plain("secret")],
        [MD5.of("user0", "secret")],
        [secret_of("secret", b"short", 7)],
        [secret_of("secret", os.urandom(48), 9), secret_of("secret", b"short", 7)],
        [Plain("secret"), secret_of("secret", b"short", 7)],
        [Plain("secret"), MD5.of("user1", "secret"), secret_of("secret", b"short", 7)],
    ],
)
def test_who_does_not_exist_is_like_some_who_do(auth_type: AuthType, secrets: list[Secret]) -> None:
    users = Userlist({f"user{number}": secret for number, secret in enumerate(secrets)})
    # A user who cannot log in by this method is treated as one who does not exist.
    able = [
        f"user{number}" for number, s in enumerate(secrets) if not (auth_type == "scram-sha-256" and isinstance(s, MD5))
    ]
    real = kinds(users, auth_type, able)
    shown = kinds(users, auth_type, STRANGERS)
    assert shown == real if real else len(shown) == 1


def test_without_any_user_all_seem_to_have_what_postgres_makes() -> None:
    for users in (None, Userlist({})):
        assert kinds(users, "scram-sha-256", STRANGERS) == kinds(users, "md5", STRANGERS)
        (kind,) = kinds(users, "scram-sha-256", STRANGERS)
        assert kind == ("SendSasl", "SendSaslContinue", 16, ITERATIONS)


# -- certificates ----------------------------------------------------------------------------------------------------


def by_certificate(
    user: str, *names: str, users: Userlist | None = USERS, asks_query: bool = False, found: bool = False
) -> Accepted | GatewayError | None:
    policy = LoginPolicy(auth_type="cert", userlist=users, mock_key=KEY)
    certificate = ClientCertificate(frozenset(names)) if names else None
    login = Login(policy, user, nonce=NONCE, retry_after=lambda: 0.0, certificate=certificate, asks_query=asks_query)
    dialogue = Dialogue(login, "", () if found else None)
    dialogue.run()
    return dialogue.accepted or dialogue.error


def test_a_certificate_lets_in_whom_it_names() -> None:
    assert by_certificate("scram", "scram") == Accepted("scram", SCRAM)
    assert by_certificate("scram", "app", "scram") == Accepted("scram", SCRAM)
    assert by_certificate("anyone", "anyone", users=None) == Accepted("anyone")
    assert by_certificate("found", "found", asks_query=True, found=True) == Accepted("found")


@pytest.mark.parametrize(
    ("user", "names", "log"),
    [
        ("scram", (), "TLS client certificate required"),
        ("scram", ("plain",), "TLS certificate name mismatch"),
        ("scram", ("Scram",), "TLS certificate name mismatch"),
        ("scram", ("*", "s*"), "TLS certificate name mismatch"),
        ("unknown", ("unknown",), "no such user: 'unknown'"),
    ],
)
def test_whom_a_certificate_does_not_let_in(user: str, names: tuple[str, ...], log: str) -> None:
    error = by_certificate(user, *names)
    assert type(error) is LoginRefused
    assert (error.message, error.sqlstate) == ("certificate authentication failed", "28000")
    assert (error.log or "").startswith(log)
    assert type(by_certificate(user, *names, asks_query=True)) in (LoginRefused, Accepted)


Make = Callable[[list[str], list[str]], x509.Certificate]


def test_the_names_in_a_certificate(make: Make) -> None:
    assert ClientCertificate.of(make(["app"], [])).names == {"app"}
    assert ClientCertificate.of(make(["app"], ["one.example", "*.two.example"])).names == {
        "app", "one.example", "*.two.example",
    }  # fmt: skip
    assert ClientCertificate.of(make([], ["one.example"])).names == {"one.example"}
    assert ClientCertificate.of(make(["app", "admin"], [])).names == frozenset()


@pytest.fixture(scope="module")
def make() -> Make:
    key = ec.generate_private_key(ec.SECP256R1())

    def make(common: list[str], dns: list[str]) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each) for each in common])
        now = datetime.datetime(2026, 1, 1)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        if dns:
            names = x509.SubjectAlternativeName([x509.DNSName(each) for each in dns])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(key, hashes.SHA256())

    return make


# -- auth_query ------------------------------------------------------------------------------------------------------


def test_auth_file_wins_over_auth_query() -> None:
    login = log_in("scram", "scram-sha-256", asks_query=True, looked_up=(Plain("another"),))
    assert login.gets_in and not login.looked_up


def test_without_auth_query_nobody_is_looked_up() -> None:
    assert not log_in("unknown", "scram-sha-256").looked_up


@pytest.mark.parametrize("secret", [Plain("secret"), SCRAM, MD5.of("found", "secret")])
@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256", "trust"])
@pytest.mark.parametrize("users", [None, USERS])
def test_what_auth_query_finds_serves_as_if_it_were_in_auth_file(
    secret: Secret, auth_type: AuthType, users: Userlist | None
) -> None:
    login = log_in("found", auth_type, users=users, asks_query=True, looked_up=(secret,))
    assert login.gets_in is not (isinstance(secret, MD5) and auth_type == "scram-sha-256")
    if login.accepted is not None:
        assert login.accepted.secret == secret
        assert (login.accepted.keys is not None) is (isinstance(secret, ScramSecret) and auth_type != "trust")


@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
@pytest.mark.parametrize("password", ["", "secret", "md5"])
def test_a_user_without_password_and_one_who_is_not_found(auth_type: AuthType, password: str) -> None:
    seen = set()
    for looked_up in ((), None):
        login = log_in("x", auth_type, password, asks_query=True, looked_up=looked_up)
        assert not login.gets_in and login.error is not None
        seen.add((login.kind, login.error.message))
    assert len(seen) == 1


def test_who_is_not_found_is_like_those_whose_secret_postgres_has() -> None:
    found = log_in("found", "md5", "wrong", asks_query=True, looked_up=(SCRAM,))
    unknown = log_in("unknown", "md5", "wrong", asks_query=True, looked_up=None)
    assert found.kind == unknown.kind


def test_trust_and_auth_query() -> None:
    assert log_in("found", "trust", users=None, asks_query=True, looked_up=()).gets_in
    refused = log_in("unknown", "trust", users=None, asks_query=True)
    assert isinstance(refused.error, LoginRefused) and refused.error.message == "no such user"
    assert not log_in("unknown", "any", asks_query=True).looked_up


def test_the_limiter_is_asked_before_auth_query_is() -> None:
    policy = LoginPolicy(auth_type="md5", userlist=None, mock_key=KEY)
    actions = Login(policy, "x", nonce=NONCE, retry_after=lambda: 1.0, asks_query=True).start()
    assert not any(isinstance(action, LookUp) for action in actions)


# -- two secrets -----------------------------------------------------------------------------------------------------


FORMER = secret_of("former", SALT)
PAIRS: list[tuple[Secret, Secret, set[str]]] = [
    # The present secret, the previous one, and the methods by which the previous one gets in.
    (Plain("secret"), Plain("former"), {"plain", "md5", "scram-sha-256"}),
    (Plain("secret"), FORMER, {"plain", "md5", "scram-sha-256"}),
    (Plain("secret"), MD5.of("user", "former"), {"plain", "md5"}),
    (SCRAM, Plain("former"), {"plain", "md5", "scram-sha-256"}),
    (SCRAM, FORMER, {"plain", "md5", "scram-sha-256"}),
    (SCRAM, OTHER, {"plain"}),
    (SCRAM, MD5.of("user", "former"), {"plain"}),
    (MD5.of("user", "secret"), Plain("former"), {"plain", "md5", "scram-sha-256"}),
    (MD5.of("user", "secret"), FORMER, {"plain", "scram-sha-256"}),
    (MD5.of("user", "secret"), MD5.of("user", "former"), {"plain", "md5"}),
    (Plain("secret"), Plain(""), set()),
]


@pytest.mark.parametrize(("present", "previous", "methods"), PAIRS)
@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
def test_two_secrets(present: Secret, previous: Secret, methods: set[str], auth_type: AuthType) -> None:
    users = Userlist({"user": present}, {"user": previous})
    if not (isinstance(present, MD5) and auth_type == "scram-sha-256"):
        assert log_in("user", auth_type, "secret", users=users).gets_in
    former = log_in("user", auth_type, "former", users=users)
    assert former.gets_in is (auth_type in methods)
    for password in ("", "wrong"):
        assert not log_in("user", auth_type, password, users=users).gets_in
    if former.accepted is not None:
        # The login at Postgres goes by the present one, whose keys nobody knows from the other.
        assert (former.accepted.secret, former.accepted.keys) == (present, None)

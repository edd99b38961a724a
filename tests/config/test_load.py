"""Loading: defaults, what one key takes from another, and every error and remark once, word for word."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pgtrunk_gateway.config import Config, DatabaseConfig, InvalidConfig, Loaded, PeerConfig, UserConfig, load
from pgtrunk_gateway.config.entries import Place
from pgtrunk_gateway.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

DATABASES = "[databases]\nshop = host=127.0.0.1\n"
NO_SOCKET = "an empty unix_socket_dir does without a unix socket"
QUIC = "listen_addr = ::1\nquic_cert_file = users.txt\nquic_key_file = users.txt\n"
USED_UP = "one connection could use up all"
EXAMPLE = "shop = host=127.0.0.1 port=5432"
NO_QUIC = "is set, but not quic_cert_file, without which there is no QUIC"
NOTHING = "nothing to listen on: set listen_addr (TCP), quic_cert_file and quic_key_file (QUIC), or unix_socket_dir"
NO_USERS = "but auth_file is not set: no user could log in"
SECONDS = "expected a number of seconds, such as 15 or 0.5"
AUTH_TYPES = "expected one of any, trust, plain, md5, scram-sha-256, cert"
ATTRS = "one of any, read-write, read-only, primary, standby, prefer-standby"
POOL_MODES = "expected one of session, transaction, statement"
TLS = "client_tls_key_file = users.txt\nclient_tls_cert_file = users.txt\n"
NEEDS_CERTIFICATE = "quic_client_ca_file (QUIC), or client_tls_sslmode = verify-full (TCP)"
EACH_OTHER = "and server_tls_key_file need each other"
MINIMAL = DATABASES + "[pgtrunk]\nauth_file = users.txt\n"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, in which names in a configuration are looked up."""
    monkeypatch.chdir(tmp_path)
    write("users.txt", "")
    return tmp_path


def write(name: str, text: str, mode: int = 0o600) -> None:
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(name, mode)


def load_text(text: str) -> Loaded:
    write("g.ini", text)
    return load("g.ini")


def errors_of(text: str) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        load_text(text)
    assert caught.value.sqlstate == "F0000"
    return str(caught.value).split("\n")


def remarks_of(text: str) -> list[tuple[str, bool]]:
    return [(str(remark), remark.serious) for remark in load_text(text).remarks]


def test_minimal() -> None:
    loaded = load_text(MINIMAL)
    assert loaded.config == Config(
        auth_file="users.txt", databases={"shop": DatabaseConfig(name="shop", host="127.0.0.1")}
    )
    assert loaded.remarks == ()


def test_all_sections() -> None:
    config = load_text(
        MINIMAL
        + """\
        listen_addr = 127.0.0.1, ::1
        listen_port = 7000
        default_pool_size = 5
        query_wait_timeout = 2.5
        [databases]
        'my db' = dbname=d host=db.example,db2.example port=5433 user=u password='p w' pool_size=3 min_pool_size=1 \
server_lifetime=60 query_wait_timeout=0 pool_mode=transaction
        * = pool_size=-1 server_lifetime=0
        [users]
        app = pool_size=2 query_wait_timeout=1 idle_transaction_timeout=7
        [peers]
        1 = host=/tmp/one
        2 = host=two port=6000 pool_size=9 long_keys=1 server_tls_sslmode=verify-full
        """
    ).config
    assert (config.listen_addr, config.listen_port, config.query_wait_timeout) == (("127.0.0.1", "::1"), 7000, 2.5)
    assert config.databases["my db"] == DatabaseConfig(
        name="my db",
        dbname="d",
        host="db.example",
        port=5433,
        others=(Place("db2.example", 5433),),
        user="u",
        password="p w",
        pool_size=3,
        min_pool_size=1,
        server_lifetime=60.0,
        query_wait_timeout=0.0,
        pool_mode="transaction",
    )
    assert config.any_database == DatabaseConfig(name="*")
    assert config.users == {
        "app": UserConfig(name="app", pool_size=2, query_wait_timeout=1.0, idle_transaction_timeout=7.0)
    }
    assert config.peers == {
        1: PeerConfig(peer_id=1, host="/tmp/one"),
        2: PeerConfig(peer_id=2, host="two", port=6000, pool_size=9, long_keys=True, server_tls_sslmode="verify-full"),
    }


def test_the_last_of_several_wins() -> None:
    config = load_text(MINIMAL + "listen_port = 1\nlisten_port = 2\n[databases]\nshop = port=3 port=4\n").config
    assert config.listen_port == 2
    # The whole entry, not key by key: as in PgBouncer.
    assert config.databases["shop"] == DatabaseConfig(name="shop", port=4)


def test_both_names_of_the_main_section_are_one_section() -> None:
    settings = "auth_file = users.txt\nauth_type = md5\npool_mode = transaction\nlisten_port = 1\n"
    write("pgbouncer.ini", DATABASES + "[pgbouncer]\n" + settings)
    loaded = load_text("%include pgbouncer.ini\n[pgtrunk]\nlisten_port = 2\nshutdown_timeout = 3\n")
    assert (loaded.config.listen_port, loaded.config.shutdown_timeout) == (2, 3.0)
    assert loaded.remarks == ()


def test_a_database_without_host_is_where_our_own_socket_is(directory: Path) -> None:
    config = load_text(f"[databases]\nshop =\n[pgtrunk]\nauth_file = users.txt\nunix_socket_dir = {directory}\n").config
    assert config.databases["shop"].host == str(directory)


def with_quic(more: str) -> Config:
    write("c.pem", "")
    write("k.pem", "")
    return load_text(MINIMAL + f"quic_cert_file = c.pem\nquic_key_file = k.pem\n{more}").config


def test_quic_listens_where_tcp_does() -> None:
    config = with_quic("listen_addr = *\nlisten_port = 7000\n")
    assert (config.quic_listen_addr, config.quic_listen_port, config.quic_enabled) == (("*",), 7000, True)


def test_quic_may_listen_elsewhere() -> None:
    config = with_quic("quic_listen_addr = ::1\nquic_listen_port = 0\n")
    assert (config.listen_addr, config.quic_listen_addr, config.quic_listen_port) == ((), ("::1",), 0)


def test_without_a_certificate_there_is_no_quic() -> None:
    assert not load_text(MINIMAL).config.quic_enabled


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("listen_prot = 1", 'unknown key "listen_prot" in [pgtrunk]; did you mean "listen_port"?'),
        ("xyz = 1", 'unknown key "xyz" in [pgtrunk]'),
        ("dbname = x", 'unknown key "dbname" in [pgtrunk]; it belongs into [databases]'),
        ("listen_port = abc", 'listen_port: bad value "abc": expected a whole number from 0 to 65535'),
        ("auth_type = md6", f'auth_type: bad value "md6": {AUTH_TYPES}'),
        ("auth_type = hba", f'auth_type: "hba" is not available yet: {AUTH_TYPES}'),
        ("pool_mode = sessions", f'pool_mode: bad value "sessions": {POOL_MODES}'),
        ("server_round_robin = no", 'server_round_robin: bad value "no": expected 0 or 1'),
        ("[databse]", 'unknown section "databse"; did you mean "databases"?'),
        ("[x]\nx = y", 'unknown section "x"'),
        ("nonsense", 'expected key = value, found no = after "nonsense"'),
        ("%include none.ini", '%include of "none.ini": cannot be read: No such file or directory'),
        ("[databases] pgbouncer = host=x", 'database "pgbouncer": the name is reserved for the admin console'),
        (f"[databases] {'d' * 64} = host=x", f'database "{"d" * 57}...": the name is longer than 63 bytes'),
        ("[databases] x = hots=x", 'database "x": unknown key "hots"; did you mean "host"?'),
        ("[databases] x = listen_port=1", 'database "x": unknown key "listen_port"; it belongs into [pgtrunk]'),
        ("[databases] x = =1", 'database "x": expected key=value, found nothing before the ='),
        ("[databases] x = port=0", 'database "x": port: bad value "0": expected a whole number from 1 to 65535'),
        ("[databases] x = pool_mode=none", f'database "x": pool_mode: bad value "none": {POOL_MODES}'),
        ("[users] app = port=1", 'user "app": unknown key "port"; it belongs into [databases]'),
        ("[users] app = query_wait_timeout=x", 'user "app": query_wait_timeout: bad value "x": ' + SECONDS),
        ("[peers] one = host=x", 'peer "one": a peer\'s name is its peer_id, a number from 1 to 16383'),
        ("[peers] 16384 = host=x", 'peer "16384": a peer\'s name is its peer_id, a number from 1 to 16383'),
        ("[peers] 1 = port=1", 'peer "1": host is not set'),
        ("auth_file = none.txt", 'auth_file: cannot read "none.txt": No such file or directory'),
        ("auth_file = .", 'auth_file: cannot read ".": Is a directory'),
        ("server_tls_ca_file = none", 'server_tls_ca_file: cannot read "none": No such file or directory'),
        (
            "[databases] x = server_tls_ca_file=none",
            'database "x": server_tls_ca_file: cannot read "none": No such file or directory',
        ),
        (
            "[peers] 1 = host=x server_tls_ca_file=none",
            'peer "1": server_tls_ca_file: cannot read "none": No such file or directory',
        ),
        ("unix_socket_dir = /none", 'unix_socket_dir: "/none" does not exist; ' + NO_SOCKET),
        ("unix_socket_dir = users.txt", 'unix_socket_dir: "users.txt" is not a directory; ' + NO_SOCKET),
        ("unix_socket_group = no such", 'unix_socket_group: this system has no group "no such"'),
        ("quic_key_file = users.txt", f"quic_key_file {NO_QUIC}"),
        ("quic_client_ca_file = users.txt", f"quic_client_ca_file {NO_QUIC}"),
        ("quic_listen_port = 1", f"quic_listen_port {NO_QUIC}"),
        ("unix_socket_dir =", NOTHING),
        ("auth_dbname = pgbouncer", 'cannot use the reserved "pgbouncer" database as an auth_dbname'),
        ("auth_type = cert", f"auth_type is cert, but no client has to show one: set {NEEDS_CERTIFICATE}"),
        ("server_tls_key_file = users.txt", f"server_tls_cert_file {EACH_OTHER}"),
        ("[databases] x = server_tls_cert_file=users.txt", f'database "x": server_tls_cert_file {EACH_OTHER}'),
        ("[peers] 1 = host=x server_tls_cert_file=users.txt", f'peer "1": server_tls_cert_file {EACH_OTHER}'),
    ],
)
def test_error(line: str, message: str) -> None:
    assert errors_of(f"{MINIMAL}{line}\n") == [f"g.ini:5: {message}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "g.ini: there is no section [pgtrunk], which [pgbouncer] is another name of"),
        ("[pgtrunk]\nauth_file = users.txt", "g.ini: [databases] has no entry; add one, such as: " + EXAMPLE),
        (DATABASES + "[pgtrunk]\n", "g.ini: auth_type is scram-sha-256, " + NO_USERS),
        (DATABASES + "[pgtrunk]\nauth_type = md5", "g.ini:4: auth_type is md5, " + NO_USERS),
        (
            DATABASES + "[pgtrunk]\nauth_type = any",
            'g.ini:2: auth_type is any, but database "shop" has no user= to log in to Postgres with',
        ),
        (
            "[databases]\nshop =\n[pgtrunk]\nauth_file = users.txt\nlisten_addr = ::1\nunix_socket_dir =",
            'g.ini:2: database "shop" has no host, and unix_socket_dir, its default, is empty',
        ),
        (DATABASES + "[pgtrunk]\nauth_type = plain", "g.ini:4: auth_type is plain, " + NO_USERS),
        (
            MINIMAL + "client_tls_sslmode = prefer\nclient_tls_cert_file = users.txt",
            "g.ini:5: client_tls_sslmode is prefer, but client_tls_key_file is not set: TLS needs both",
        ),
        (
            MINIMAL + TLS + "client_tls_sslmode = verify-ca",
            "g.ini:7: client_tls_sslmode is verify-ca, but client_tls_ca_file is not set: nothing can be verified",
        ),
        (
            MINIMAL + "listen_addr = ::1\nquic_cert_file = users.txt",
            "g.ini:6: quic_cert_file is set, but not quic_key_file: QUIC needs both",
        ),
        (
            MINIMAL + "quic_cert_file = users.txt\nquic_key_file = users.txt",
            "g.ini:5: quic_cert_file is set, but no address: set quic_listen_addr or listen_addr",
        ),
        (
            MINIMAL + QUIC + "quic_cert_file = none.pem",
            'g.ini:8: quic_cert_file: cannot read "none.pem": No such file or directory',
        ),
        (
            MINIMAL + QUIC + "quic_memory_budget = 1MB",
            "g.ini:8: quic_memory_budget is 1048576 bytes, less than quic_connection_budget with 33554432: " + USED_UP,
        ),
    ],
)
def test_error_between_keys(text: str, message: str) -> None:
    assert errors_of(text) == [message]


def test_all_errors_come_together_in_the_order_of_their_lines() -> None:
    write("other.ini", "[pgtrunk]\nverbose = x\n")
    assert errors_of("[databases]\nx = prot=1 port=y\n%include other.ini\nlisten_port = -1\nauth_file = none\n") == [
        'g.ini:2: database "x": unknown key "prot"; did you mean "port"?',
        'g.ini:2: database "x": port: bad value "y": expected a whole number from 1 to 65535',
        'g.ini:4: listen_port: bad value "-1": expected a whole number from 0 to 65535',
        'g.ini:5: auth_file: cannot read "none": No such file or directory',
        'other.ini:2: verbose: bad value "x": expected a whole number from 0 to 2147483647',
    ]


def test_errors_are_objects_with_a_place() -> None:
    write("g.ini", MINIMAL + "xyz = 1\n")
    with pytest.raises(InvalidConfig) as caught:
        load("g.ini")
    (fault,) = caught.value.faults
    assert (fault.path, fault.line, fault.message) == ("g.ini", 5, 'unknown key "xyz" in [pgtrunk]')


@pytest.mark.parametrize("line", ["x = 1\n", "[x]\n", "[databases] x = port=0\n", "nonsense\n"])
def test_errors_are_bounded(line: str) -> None:
    assert len(errors_of("[pgtrunk]\n" + line * 1000)) == 100


def test_errors_of_one_line_are_bounded() -> None:
    assert len(errors_of("[databases] x = " + "x=1 " * 1000)) == 100


def test_a_password_with_a_space_is_not_shown() -> None:
    assert errors_of(MINIMAL + "[databases] x = host=a password=one two=three\n") == [
        'g.ini:5: database "x": unknown key behind the password; a password with spaces needs single quotes'
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[pgtrunk]\nlogfile = \xff\n", "g.ini: is not UTF-8: byte 0xff in line 2"),
        (b"[pgtrunk]\n\n\0", "g.ini: is no text file: NUL byte in line 3"),
        (b"; " + b"x" * (16 << 20), "g.ini: is larger than 16 MB"),
    ],
    ids=["utf-8", "nul", "size"],
)
def test_files_that_are_no_configuration(directory: Path, data: bytes, message: str) -> None:
    (directory / "g.ini").write_bytes(data)
    with pytest.raises(InvalidConfig) as caught:
        load(directory / "g.ini")
    assert str(caught.value) == str(directory / message)


@pytest.mark.parametrize(
    ("path", "reason"),
    [("none.ini", "No such file or directory"), (".", "Is a directory"), ("a\0b", "embedded null byte")],
)
def test_files_that_cannot_be_read(path: str, reason: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load(path)
    assert str(caught.value) == f"{path}: cannot be read: {reason}"


@pytest.mark.skipif(os.geteuid() == 0, reason="needs an ordinary user: root may read and write everything")
def test_permissions(directory: Path) -> None:
    write("users.txt", "", mode=0o000)
    (directory / "run").mkdir(mode=0o500)
    assert errors_of(MINIMAL + "unix_socket_dir = run\n") == [
        'g.ini:4: auth_file: cannot read "users.txt": Permission denied',
        f'g.ini:5: unix_socket_dir: "run" is not writable; {NO_SOCKET}',
    ]


def test_permissions_as_anyone(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (directory / "run").mkdir()
    assert errors_of(MINIMAL + "unix_socket_dir = run\n") == [
        'g.ini:4: auth_file: cannot read "users.txt": Permission denied',
        f'g.ini:5: unix_socket_dir: "run" is not writable; {NO_SOCKET}',
    ]


def test_a_byte_order_mark_is_no_key() -> None:
    assert load_text("\ufeff" + MINIMAL).config.auth_file == "users.txt"


def test_crlf() -> None:
    assert load_text(MINIMAL.replace("\n", "\r\n")).config.auth_file == "users.txt"


def test_abstract_sockets_have_no_directory() -> None:
    assert load_text(MINIMAL + "unix_socket_dir = @pgtrunk\n").config.unix_socket_dir == "@pgtrunk"


@pytest.mark.parametrize(
    ("line", "remark", "serious"),
    [
        ("dns_max_ttl = 1", "dns_max_ttl: known, not acted on yet", False),
        ("disable_pqexec = 1", "disable_pqexec: known, not acted on yet", True),
        ("disable_pqexec = 0", "disable_pqexec: known, not acted on yet", False),
        ("auth_query = select 1", "auth_query: not used without auth_user", True),
        ("[databases] x = auth_query='select 1'", 'database "x": auth_query: not used without auth_user', True),
        ("[databases] x = password=p", 'database "x": password: not used without user=', True),
        ("[peers] 1 = host=x", 'peer "1": no cancel is forwarded to it without peer_id', True),
    ],
)
def test_remark(line: str, remark: str, serious: bool) -> None:
    assert remarks_of(f"{MINIMAL}{line}\n") == [(f"g.ini:5: {remark}", serious)]


def test_one_remark_per_key_however_often_it_is_set() -> None:
    text = MINIMAL + "syslog = 0\nsyslog = 1\n"
    assert remarks_of(text) == [
        ("g.ini:6: syslog: known, not acted on yet", False),
    ]


def test_a_pgbouncer_file_is_told_of_defaults_that_are_others_here() -> None:
    text = MINIMAL.replace("[pgtrunk]", "[pgbouncer]")
    pool_mode = "g.ini:3: pool_mode: not set, which is session in PgBouncer, and transaction here"
    auth_type = "g.ini:3: auth_type: not set, which is md5 in PgBouncer, and scram-sha-256 here"
    assert remarks_of(text) == [(pool_mode, True), (auth_type, True)]
    assert remarks_of(text + "pool_mode = transaction\n") == [(auth_type, True)]
    assert remarks_of(text + "pool_mode = transaction\nauth_type = md5\n") == []


def test_trust_without_a_list_of_users() -> None:
    remark = "g.ini:4: auth_type: trust without auth_file lets every user name in"
    assert remarks_of(DATABASES + "[pgtrunk]\nauth_type = trust\n") == [(remark, True)]


def test_passwords_in_clear() -> None:
    users = "auth_file = users.txt\nauth_type = plain\n"
    text = DATABASES + "[pgtrunk]\n" + users
    remark = "g.ini:5: auth_type: plain sends passwords over TCP in clear, unless client_tls_sslmode is require"
    assert (remark, True) not in remarks_of(text)
    assert (remark, True) in remarks_of(text + "listen_addr = *\n")


def test_any_needs_no_list_of_users() -> None:
    loaded = load_text("[databases]\nshop = user=app\n[pgtrunk]\nauth_type = any\n")
    assert (loaded.config.auth_type, loaded.remarks) == ("any", ())


def test_users_that_are_looked_up_need_no_list() -> None:
    query = "auth_query = select 1\n"
    assert load_text(DATABASES + f"[pgtrunk]\nauth_type = md5\nauth_user = looker\n{query}").remarks == ()
    assert load_text(f"[databases]\nshop = auth_user=looker\n[pgtrunk]\n{query}").remarks == ()


def test_a_database_may_complete_what_the_main_section_has_of_a_certificate() -> None:
    entry = "[databases] x = server_tls_cert_file=users.txt server_tls_key_file=users.txt\n"
    assert load_text(MINIMAL + entry).config.databases["x"].server_tls_key_file == "users.txt"


def test_secrets_that_lie_open() -> None:
    for name in ("users.txt", "c.pem", "k.pem", "passwords.ini"):
        write(name, "", mode=0o644)
    write("passwords.ini", "[databases]\nx = user=u password=p\n", mode=0o644)
    quic = "listen_addr = ::1\nquic_cert_file = c.pem\nquic_key_file = k.pem\n"
    assert remarks_of(MINIMAL + quic + "%include passwords.ini\n") == [
        ('g.ini:4: auth_file: every user of this machine may read "users.txt"', True),
        ('g.ini:7: quic_key_file: every user of this machine may read "k.pem"', True),
        ("passwords.ini: holds a password, and every user of this machine may read it", True),
    ]


def test_errors_that_come_to_light_later_have_their_line_too() -> None:
    error = load_text(MINIMAL + "listen_port = 5\n").error("listen_port", "port 5 is taken")
    assert isinstance(error, ConfigError)
    assert str(error) == "g.ini:5: listen_port: port 5 is taken"
    assert (
        str(load_text(MINIMAL).error("listen_port", "port 6432 is taken")) == "g.ini: listen_port: port 6432 is taken"
    )


# -- lists of hosts


@pytest.mark.parametrize(
    ("entry", "places"),
    [
        ("host=a", [("a", 5432)]),
        ("host=a,b", [("a", 5432), ("b", 5432)]),
        ("host=a,b port=1", [("a", 1), ("b", 1)]),
        ("host=a,/run/b,::1 port=1,2,3", [("a", 1), ("/run/b", 2), ("::1", 3)]),
        ("host='a, b' port='1, 2'", [("a", 1), ("b", 2)]),
        ("host=a,b patroni=http://p:8008", [("a", 5432), ("b", 5432)]),
        ("patroni=http://p:8008", []),
    ],
)
def test_places(entry: str, places: list[tuple[str, int]]) -> None:
    database = load_text(MINIMAL + f"[databases]\nx = {entry}\n").config.databases["x"]
    assert list(database.places) == places


def test_what_is_wanted_of_a_list() -> None:
    text = """[databases]
    plain = host=a,b
    followed = patroni=https://p1,http://p2:8008
    chosen = host=a,b load_balance_hosts=disable target_session_attrs=Prefer-Standby
    """
    databases = load_text(MINIMAL + text).config.databases
    assert (databases["plain"].load_balance_hosts, databases["plain"].session_attrs) == ("round-robin", "any")
    assert databases["followed"].patroni == ("https://p1", "http://p2:8008")
    assert databases["followed"].session_attrs == "primary"
    chosen = databases["chosen"]
    assert (chosen.load_balance_hosts, chosen.session_attrs) == ("disable", "prefer-standby")


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ("host=a,b port=1,2,3", "port: 3 ports for 2 hosts; give one for all, or one for each"),
        ("port=1,2", "port: 2 ports for no hosts; give one for all, or one for each"),
        ("host=a port=1,2", "port: 2 ports for 1 hosts; give one for all, or one for each"),
        ("host=a port=1,x", 'port: bad value "x": expected a whole number from 1 to 65535'),
        (
            "host=a target_session_attrs=master",
            f'target_session_attrs: bad value "master": expected {ATTRS}',
        ),
        *(
            (
                f"patroni={url}",
                f'patroni: bad value "{url}": expected URLs such as http://db1.example:8008, with commas between them',
            )
            for url in (
                "p:8008",
                "ftp://p",
                "http://",
                "http://p:x",
                "http://p:0",
                "http://u:w@p",
                "http://p/cluster",
                "http://p?a",
            )
        ),
    ],
)
def test_lists_that_are_wrong(entry: str, error: str) -> None:
    assert errors_of(MINIMAL + f"[databases]\nx = {entry}\n") == [f'g.ini:6: database "x": {error}']

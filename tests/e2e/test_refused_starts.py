"""A gateway that cannot start says why in one line per fault, with the place in the file, and ends with exit code 1."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Any

import pytest

from helpers.certificates import authority
from helpers.processes import gateway_process
from pgtrunk_gateway.config.keys_pgbouncer import KEYS

if TYPE_CHECKING:
    from helpers.site import Site

LINES = {"listen_addr": 4, "listen_port": 5, "unix_socket_dir": 6, "quic_cert_file": 7, "quic_key_file": 8}
"""Where `Site.write_ini` puts them."""


def refused(site: Site, **settings: Any) -> str:
    """What it says instead of starting, with "INI" for the name of its file."""
    with gateway_process(site, **settings) as gateway:
        assert gateway.wait() == 1
        assert "Traceback" not in gateway.said
        last = [line for line in gateway.said.splitlines() if not re.match(r"\d{4}-", line)]
        assert {path.name for path in gateway.place.iterdir()} == {"gateway.ini", "userlist.txt", "output.0"}
        return "\n".join(last).replace(str(gateway.ini), "INI")


@pytest.mark.parametrize("kind", ["TCP", "UDP"])
def test_a_taken_port(site: Site, kind: str) -> None:
    with socket.socket(type=socket.SOCK_STREAM if kind == "TCP" else socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == "TCP":
            taken.listen()
        port = taken.getsockname()[1]
        said = refused(site, **{"listen_port" if kind == "TCP" else "quic_listen_port": port})
    key = "listen_port" if kind == "TCP" else "quic_listen_port"
    line = LINES["listen_port"] if kind == "TCP" else 11
    words = f"pgtrunk-gateway: INI:{line}: {key}: cannot listen on {kind} 127.0.0.1 port {port}: Address already in use"
    assert said.startswith(words)
    assert "\n" not in said


def test_certificates_that_are_not_there(site: Site) -> None:
    assert refused(site, quic_cert_file="nowhere.pem", quic_key_file="nowhere.key").splitlines() == [
        'pgtrunk-gateway: INI:7: quic_cert_file: cannot read "nowhere.pem": No such file or directory',
        'INI:8: quic_key_file: cannot read "nowhere.key": No such file or directory',
    ]


def test_a_key_of_another_certificate(site: Site) -> None:
    _, other = authority("another").save(site.place(), "another")
    said = refused(site, quic_key_file=other)
    assert said.startswith(f'pgtrunk-gateway: INI:8: quic_key_file "{other}" is not the key of the certificate in ')


def test_a_file_that_is_no_certificate(site: Site) -> None:
    rubbish = site.place() / "rubbish.pem"
    rubbish.write_text("-----BEGIN CERTIFICATE-----\nrubbish\n-----END CERTIFICATE-----\n")
    said = refused(site, quic_cert_file=rubbish)
    assert said.startswith(f'pgtrunk-gateway: INI:7: quic_cert_file "{rubbish}" holds a certificate that cannot be ')


def test_all_faults_of_a_file_at_once(site: Site) -> None:
    said = refused(
        site, defualt_pool_size=20, server_lifetime="soon", pool_mode="sessions", max_client_conn=-1, auth_type="ldap"
    )
    lines = said.removeprefix("pgtrunk-gateway: ").splitlines()
    assert [line.split(": ")[0] for line in lines] == ["INI:9", "INI:11", "INI:12", "INI:13", "INI:14"]
    told = "\n".join(lines)
    assert 'unknown key "defualt_pool_size"' in told
    assert "default_pool_size" in lines[1]
    for value in ('"soon"', '"sessions"', '"-1"', '"ldap"'):
        assert value in told


def test_a_file_that_is_not_there(site: Site) -> None:
    place = site.place()
    with gateway_process(site, place=place) as gateway:
        gateway.process.kill()
        gateway.process.wait()
    said = refused(site, auth_file=place / "nobody.txt")
    assert said == f'pgtrunk-gateway: INI:10: auth_file: cannot read "{place}/nobody.txt": No such file or directory'


def test_an_auth_file_with_a_fault(site: Site) -> None:
    users = site.place() / "users.txt"
    users.touch(mode=0o600)
    users.write_text('"app" "secret"\n"half\n')
    said = refused(site, auth_file=users)
    assert said.startswith(f"pgtrunk-gateway: {users}:2: ")


def test_a_logfile_that_cannot_be_written(site: Site) -> None:
    said = refused(site, logfile="/nowhere/log")
    assert said == 'pgtrunk-gateway: logfile: cannot open "/nowhere/log": No such file or directory'


def test_each_key_that_is_set_and_not_acted_on_is_named_once(site: Site) -> None:
    ignored: dict[str, Any] = {key.name: key.default for key in KEYS if not key.acted_on and key.default}
    assert len(ignored) > 10
    with gateway_process(site, **ignored) as gateway:
        gateway.port()
        for name in ignored:
            lines = [line for line in gateway.log if re.search(rf"\d: {name}: known, not acted on yet", line)]
            assert len(lines) == 1, (name, lines)
        assert gateway.stop() == 0


def test_an_option_that_this_system_does_not_take(site: Site) -> None:
    said = refused(site, tcp_keepcnt=100000)
    assert said.startswith("pgtrunk-gateway: INI:11: tcp_keepcnt: 100000 is not possible on this system: ")

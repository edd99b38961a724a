"""What people type for a gateway."""

from __future__ import annotations

import pytest

from pgtrunk.address import Address, parse_gateways
from pgtrunk.errors import UsageError


@pytest.mark.parametrize(
    ("text", "host", "port", "shown"),
    [
        ("gw.example.net:6432", "gw.example.net", 6432, "gw.example.net:6432"),
        ("gw.example.net", "gw.example.net", 6432, "gw.example.net:6432"),
        ("10.1.2.3:1", "10.1.2.3", 1, "10.1.2.3:1"),
        ("[::1]:6433", "::1", 6433, "[::1]:6433"),
        ("[::1]", "::1", 6432, "[::1]:6432"),
        ("::1", "::1", 6432, "[::1]:6432"),
        ("2001:db8::1:6432", "2001:db8::1:6432", 6432, "[2001:db8::1:6432]:6432"),
        ("[fe80::1%eth0]:65535", "fe80::1%eth0", 65535, "[fe80::1%eth0]:65535"),
    ],
)
def test_an_address_is_read(text: str, host: str, port: int, shown: str) -> None:
    address = Address.parse(text)
    assert (address.host, address.port, str(address)) == (host, port, shown)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "host:port is expected"),
        (":6432", "host:port is expected"),
        ("gw:", "the port is a number"),
        ("gw:0", "the port is a number"),
        ("gw:65536", "the port is a number"),
        ("gw:pg", "the port is a number"),
        ("gw:+5", "the port is a number"),
        ("gw:٣", "the port is a number"),
        ("[::1", r"\[address\]:port is expected"),
        ("[::1]6432", r"\[address\]:port is expected"),
        ("[gw]:6432", "is no IPv6 address"),
        ("a:b:c", "is no IPv6 address"),
        ("gw one:6432", "host:port is expected"),
        ("user@gw:6432", "host:port is expected"),
        ("quic://gw", "host:port is expected|the port is a number"),
        ("a,b", "host:port is expected"),
    ],
)
def test_what_is_no_address_is_refused_with_words(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Address.parse(text)


@pytest.mark.parametrize(
    ("gateway", "shown"),
    [
        ("gw1", "gw1:6432"),
        ("gw1:1,gw2", "gw1:1 gw2:6432"),
        ("gw1, [::1]:7 ,::1", "gw1:6432 [::1]:7 [::1]:6432"),
        (["gw1:1", " gw2"], "gw1:1 gw2:6432"),
        (("gw1", "gw1:6432", "gw1:6433"), "gw1:6432 gw1:6433"),
    ],
)
def test_a_list_is_read_and_each_counts_once(gateway: str | list[str], shown: str) -> None:
    assert " ".join(map(str, parse_gateways(gateway))) == shown


@pytest.mark.parametrize("gateway", ["", "gw1,", ",gw1", "gw1,,gw2", [], ["gw1", ""], ["gw1,gw2"], "gw1;gw2:x"])
def test_a_list_with_a_gap_is_refused(gateway: str | list[str]) -> None:
    with pytest.raises(UsageError, match=r"host:port is expected|the port is a number"):
        parse_gateways(gateway)

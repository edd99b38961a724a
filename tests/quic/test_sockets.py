from __future__ import annotations

import errno
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pgtrunk.quic.sockets import AddressInfo, tune
from pgtrunk_gateway.quic.groups import bind_all, bind_group, is_wildcard

if TYPE_CHECKING:
    from collections.abc import Iterator

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's limits are read where Linux keeps them")


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        yield made


def infos(*addresses: tuple[str, int]) -> list[AddressInfo]:
    found: list[AddressInfo] = []
    for host, port in addresses:
        found += socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    return found


def close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def test_buffers_that_fit_are_not_mentioned(sock: socket.socket) -> None:
    assert tune(sock, 65536) is None
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 65536
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 65536


@LINUX
def test_clamped_buffers_are_warned_of_in_one_line(sock: socket.socket) -> None:
    allowed = [int(Path(f"/proc/sys/net/core/{name}").read_text()) for name in ("rmem_max", "wmem_max")]
    wanted = max(allowed) * 2
    warning = tune(sock, wanted)
    assert warning is not None
    assert "\n" not in warning
    assert f"the {wanted} bytes wanted" in warning
    assert f"gave {allowed[0]} to receive and {allowed[1]} to send" in warning
    assert f"net.core.rmem_max={wanted} net.core.wmem_max={wanted}" in warning


@LINUX
@pytest.mark.parametrize(
    ("family", "level", "option"),
    [(socket.AF_INET, socket.IPPROTO_IP, 10), (socket.AF_INET6, socket.IPPROTO_IPV6, 23)],
    ids=["IPv4", "IPv6"],
)
def test_datagrams_are_not_fragmented(family: int, level: int, option: int) -> None:
    with socket.socket(family, socket.SOCK_DGRAM) as made:
        tune(made, 65536)
        assert made.getsockopt(level, option) == 3


def test_all_addresses_share_one_port() -> None:
    sockets = bind_all(infos(("127.0.0.1", 0), ("127.0.0.2", 0), ("::1", 0)))
    try:
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
        assert [sock.getsockname()[0] for sock in sockets] == ["127.0.0.1", "127.0.0.2", "::1"]
        assert not any(sock.getblocking() for sock in sockets)
        assert not any(map(is_wildcard, sockets))
    finally:
        close(sockets)


def test_both_wildcards_can_have_one_port() -> None:
    sockets = bind_all(infos(("0.0.0.0", 0), ("::", 0)))
    try:
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
        assert all(map(is_wildcard, sockets))
    finally:
        close(sockets)


def test_a_taken_port_is_named_and_nothing_stays_open(sock: socket.socket) -> None:
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    with pytest.raises(OSError, match=f"127.0.0.1 port {port}") as caught:
        bind_all(infos(("127.0.0.2", port), ("127.0.0.1", port)))
    assert caught.value.errno == errno.EADDRINUSE
    [again] = bind_all(infos(("127.0.0.2", port)))
    again.close()


def test_an_address_that_is_not_here_is_passed_over_while_one_is_left() -> None:
    [sock] = bind_all(infos(("192.0.2.1", 0), ("127.0.0.1", 0)))
    assert sock.getsockname()[0] == "127.0.0.1"
    sock.close()
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        bind_all(infos(("192.0.2.1", 0)))


def test_another_port_is_tried_where_any_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket.bind
    refused: list[int] = []

    def bind(self: socket.socket, address: tuple[str, int]) -> None:
        if address[0] == "127.0.0.2" and len(refused) < 3:
            refused.append(address[1])
            raise OSError(errno.EADDRINUSE, "in use")
        real(self, address)

    monkeypatch.setattr(socket.socket, "bind", bind)
    sockets = bind_all(infos(("127.0.0.1", 0), ("127.0.0.2", 0)))
    assert len(refused) == 3
    assert len({sock.getsockname()[1] for sock in sockets}) == 1
    close(sockets)


# Groups


def test_workers_have_a_socket_at_each_address() -> None:
    workers = bind_group(infos(("127.0.0.1", 0), ("127.0.0.2", 0), ("::1", 0)), 3)
    try:
        for own in workers:
            assert [sock.getsockname()[0] for sock in own] == ["127.0.0.1", "127.0.0.2", "::1"]
            assert not any(sock.getblocking() for sock in own)
        assert len({sock.getsockname()[1] for own in workers for sock in own}) == 1
        assert len({sock.fileno() for own in workers for sock in own}) == 9
    finally:
        for own in workers:
            close(own)


@pytest.mark.parametrize("count", [1, 2])
def test_nobody_joins_a_group_unasked(count: int) -> None:
    workers = bind_group(infos(("127.0.0.1", 0)), 2)
    try:
        port = workers[0][0].getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1 port {port}") as caught:
            bind_group(infos(("127.0.0.1", port)), count)
        assert caught.value.errno == errno.EADDRINUSE
    finally:
        for own in workers:
            close(own)
    [[again], *_] = bind_group(infos(("127.0.0.1", port)), 1)
    again.close()


def test_a_group_leaves_nothing_open_where_one_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[socket.socket] = []
    real = socket.socket.bind

    def bind(self: socket.socket, address: tuple[str, int]) -> None:
        opened.append(self)
        if len(opened) == 4:
            raise OSError(errno.EACCES, "Permission denied")
        real(self, address)

    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(OSError, match=r"Permission denied: 127\.0\.0\.2 port"):
        bind_group(infos(("127.0.0.1", 0), ("127.0.0.2", 0)), 3)
    assert [sock.fileno() for sock in opened] == [-1] * 4

"""What measures a link from inside a host, as a program of its own: pings, and a bulk transfer.

    python -m netem.probe ping ADDRESS COUNT INTERVAL      -> JSON: sent, and the round trips in seconds
    python -m netem.probe sink ADDRESS PORT                -> says "open"; then JSON for the one connection it takes
    python -m netem.probe blast ADDRESS PORT SECONDS       -> sends for so long

Pings are answered by the far kernel, and timed by this one, so no program's lateness is in them.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["main"]

_SO_TIMESTAMPNS = 35
_ECHO_REQUEST, _ECHO_REPLY = 8, 0
_HEADER = struct.Struct("!BBHHH")
_SIZE = 200
_PATIENCE = 1.0
_TIMEOUT = 15.0


def main(argv: list[str] | None = None) -> int:
    verb, *arguments = sys.argv[1:] if argv is None else argv
    result = _VERBS[verb](*arguments)
    print(json.dumps(result), flush=True)
    return 0


def _ping(address: str, count: str, interval: str) -> dict[str, Any]:
    number, pause = int(count), float(interval)
    ident = os.getpid() & 0xFFFF
    sent: dict[int, float] = {}
    trips: dict[int, float] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sock.connect((address, 0))
        begin = time.monotonic()
        for sequence in range(number):
            # Before, since the answer over a short link is there when the call returns.
            sent[sequence] = time.time()
            sock.send(_request(ident, sequence))
            _collect(sock, ident, sent, trips, until=begin + (sequence + 1) * pause)
        _collect(sock, ident, sent, trips, until=time.monotonic() + _PATIENCE, all_of=number)
    return {"sent": number, "trips": [round(trips[each], 7) for each in sorted(trips)]}


def _request(ident: int, sequence: int) -> bytes:
    payload = bytes(_SIZE - _HEADER.size)
    head = _HEADER.pack(_ECHO_REQUEST, 0, 0, ident, sequence & 0xFFFF)
    return _HEADER.pack(_ECHO_REQUEST, 0, _checksum(head + payload), ident, sequence & 0xFFFF) + payload


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def _collect(
    sock: socket.socket, ident: int, sent: dict[int, float], trips: dict[int, float], *, until: float, all_of: int = -1
) -> None:
    while len(trips) != all_of and (wait := until - time.monotonic()) > 0:
        if not select.select([sock], (), (), wait)[0]:
            return
        data, control, _, _ = sock.recvmsg(2048, 64)
        kind, _, _, whose, sequence = _HEADER.unpack_from(data, (data[0] & 0x0F) * 4)
        if (kind, whose) != (_ECHO_REPLY, ident) or sequence not in sent or sequence in trips:
            continue
        for _, _, stamp in control:
            seconds, nanoseconds = struct.unpack("@qq", stamp)
            trips[sequence] = seconds + nanoseconds / 1e9 - sent[sequence]


def _sink(address: str, port: str) -> dict[str, Any]:
    with socket.create_server((address, int(port))) as server:
        server.settimeout(_TIMEOUT)
        print("open", flush=True)
        connection, _ = server.accept()
    with connection:
        connection.settimeout(_TIMEOUT)
        buffer = bytearray(1 << 20)
        marks: list[tuple[float, int]] = []
        total = 0
        while size := connection.recv_into(buffer):
            total += size
            marks.append((time.monotonic(), total))
    return {"octets": total, "mbit_s": _steady(marks)}


def _steady(marks: list[tuple[float, int]]) -> float:
    """The rate over the second half: without the start of the connection."""
    if len(marks) < 2:
        return 0.0
    middle = (marks[0][0] + marks[-1][0]) / 2
    begin = next(mark for mark in marks if mark[0] >= middle)
    seconds = marks[-1][0] - begin[0]
    return round((marks[-1][1] - begin[1]) * 8 / 1e6 / seconds, 1) if seconds else 0.0


def _blast(address: str, port: str, seconds: str) -> dict[str, Any]:
    chunk = bytes(1 << 18)
    sent = 0
    with socket.create_connection((address, int(port)), timeout=_TIMEOUT) as connection:
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            sent += connection.send(chunk)
    return {"octets": sent}


_VERBS: dict[str, Callable[..., dict[str, Any]]] = {"ping": _ping, "sink": _sink, "blast": _blast}

if __name__ == "__main__":
    sys.exit(main())

"""The TUN link: a process that carries packets between two namespaces, late and with losses, as two `Line`s say.

    python -m netem.shuttle NAMESPACE_A NAMESPACE_B DEVICE

It says ``open`` when both devices are there, and ends at the end of its standard input: whoever started it may die in
any way. Orders are lines of JSON: a link's specification changes it; ``null`` asks for the counters, and ``"drops"``
for the drops since it was changed (for each way, times of the monotonic clock and the client's ports). Answers are
lines of JSON too.

While packets are held it looks every 250 us, rather than at each packet: a third of the cost, and the mean error, half
a tick on either side, is taken out of the delay.
"""

from __future__ import annotations

import gc
import json
import os
import select
import sys
import time
from dataclasses import asdict

from netem.line import Line
from netem.spec import WAN, LinkSpec
from netem.tun import inside, open_tun, precise_sleep, realtime

__all__ = ["main"]

_TICK = 250e-6
_BATCH = 512
"""Packets read at once: more than come in a tick at 1,000,000 a second."""
_PRIORITY = 10
_STDIN = 0


class Shuttle:
    """Two devices and the lines between them."""

    def __init__(self, there_fd: int, back_fd: int) -> None:
        self.fds = (there_fd, back_fd)
        self.lines = (Line(WAN.there, WAN.seed), Line(WAN.back, WAN.seed + 1))
        self.write_errors = 0
        self.is_realtime = False
        self._orders = b""

    def run(self) -> None:
        """Until the end of standard input. Hot."""
        there, back = self.lines
        a, b = self.fds
        clock, sleep = time.monotonic, time.sleep
        orders_at = 0.0
        while True:
            now = clock()
            for line, out in ((there, b), (back, a)):
                if line.next_due <= now:
                    self._write(out, line.due(now))
            if len(there) or len(back):
                sleep(_TICK)
                readable = [a, b]
                if now >= orders_at:
                    orders_at = now + 0.01
                    readable += select.select([_STDIN], (), (), 0)[0]
            else:
                readable = select.select([a, b, _STDIN], (), ())[0]
            now = clock() - _TICK
            if a in readable:
                there.admit(now, _read(a))
            if b in readable:
                back.admit(now, _read(b))
            if _STDIN in readable and not self._obey():
                return

    def _write(self, fd: int, packets: list[bytes]) -> None:
        for packet in packets:
            try:
                os.write(fd, packet)
            except OSError:
                self.write_errors += 1

    def _obey(self) -> bool:
        data = os.read(_STDIN, 1 << 16)
        self._orders += data
        *lines, self._orders = self._orders.split(b"\n")
        for line in lines:
            order = json.loads(line)
            if order is None:
                print(json.dumps(self._counters()), flush=True)
            elif order == "drops":
                print(json.dumps(self._drops()), flush=True)
            else:
                self._configure(LinkSpec.from_json(order))
        return bool(data)

    def _configure(self, spec: LinkSpec) -> None:
        for line, direction, seed in zip(self.lines, (spec.there, spec.back), (spec.seed, spec.seed + 1), strict=True):
            line.configure(direction, seed)

    def _drops(self) -> dict[str, list[tuple[float, int]]]:
        there, back = self.lines
        return {
            "there": [(round(at, 6), _port(packet, source=True)) for at, packet in there.drops],
            "back": [(round(at, 6), _port(packet, source=False)) for at, packet in back.drops],
        }

    def _counters(self) -> dict[str, object]:
        there, back = (asdict(line.counters) | {"held": len(line)} for line in self.lines)
        return {
            "there": there,
            "back": back,
            "write_errors": self.write_errors,
            "cpu_s": time.process_time(),
            "realtime": self.is_realtime,
        }


def _port(packet: bytes, source: bool) -> int:
    """The source or the destination port of an IPv4 packet with TCP or UDP; 0 where it is cut short."""
    at = (packet[0] & 0x0F) * 4 + (0 if source else 2)
    return int.from_bytes(packet[at : at + 2], "big")


def _read(fd: int) -> list[bytes]:
    packets: list[bytes] = []
    try:
        for _ in range(_BATCH):
            packets.append(os.read(fd, 1 << 16))  # noqa: PERF401 - it ends by an exception
    except BlockingIOError:
        pass
    return packets


def main() -> int:
    there, back, device = sys.argv[1:]
    fds = []
    for namespace in (there, back):
        with inside(namespace):
            fds.append(open_tun(device))
    shuttle = Shuttle(*fds)
    precise_sleep()
    shuttle.is_realtime = realtime(_PRIORITY)
    gc.disable()
    print("open", flush=True)
    shuttle.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Which worker of a fleet a datagram belongs to, and the same rule as a program for the kernel.

Workers share a port: each has a socket of its own in one SO_REUSEPORT group, in the order in which they were bound. A
connection id names a bucket (see connection_id.py), and bucket % count is the worker, whoever made the id up: a
client's first packets, their copies and what follows them meet at one worker before it has issued an id. The kernel
runs a classic BPF program over each datagram to choose the socket; what it cannot place it spreads by a hash of the
addresses.
Pure: sockets.py attaches the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from pgtrunk_gateway.quic.connection_id import BUCKETS, bucket_of

__all__ = ["ALONE", "NO_SOCKET", "Instruction", "Place", "encode", "program"]

NO_SOCKET = 0xFFFFFFFF
"""What the program returns where a datagram names no bucket. No group has so many sockets, so the kernel hashes."""

_LONG_HEADER = 0x80
_SHORTEST = 8
"""Octets that reach as far as the bucket, behind either header."""
_BUCKET_IN_LONG = 7
_BUCKET_IN_SHORT = 2
"""Where the bucket is: octet 1 of the destination id, which begins at 6 in a long header and at 1 in a short one."""

# Linux's linux/filter.h and linux/bpf_common.h: class | size or operation | mode or source.
_LOAD_LENGTH, _LOAD_OCTET = 0x80, 0x30
_JUMP, _JUMP_IF_GE, _JUMP_IF_SET = 0x05, 0x35, 0x45
_MODULO, _RETURN, _RETURN_A = 0x94, 0x06, 0x16

_INSTRUCTION = Struct("=HBBI")


@dataclass(frozen=True, slots=True)
class Place:
    """Worker number ``index`` (from 0) of ``count``."""

    index: int = 0
    count: int = 1
    generation: int = 0
    """Of the fleet: its ids carry it, modulo 4."""

    @property
    def buckets(self) -> range:
        """The buckets that are this worker's."""
        return range(self.index, BUCKETS, self.count)

    def owner(self, connection_id: bytes) -> int:
        """The worker that an id leads to; this one, where the id is too short to lead anywhere."""
        return bucket_of(connection_id) % self.count if len(connection_id) > 1 else self.index


ALONE = Place()
"""Where there is no fleet."""


class Instruction(NamedTuple):
    """One of a classic BPF program, ``struct sock_filter``. Jumps count from the instruction that follows."""

    code: int
    if_true: int
    if_false: int
    operand: int


def program(count: int) -> list[Instruction]:
    """The rule for ``count`` workers: returns the index of a socket in its group."""
    return [
        Instruction(_LOAD_LENGTH, 0, 0, 0),
        Instruction(_JUMP_IF_GE, 0, 7, _SHORTEST),
        Instruction(_LOAD_OCTET, 0, 0, 0),
        Instruction(_JUMP_IF_SET, 0, 2, _LONG_HEADER),
        Instruction(_LOAD_OCTET, 0, 0, _BUCKET_IN_LONG),
        Instruction(_JUMP, 0, 0, 1),
        Instruction(_LOAD_OCTET, 0, 0, _BUCKET_IN_SHORT),
        Instruction(_MODULO, 0, 0, count),
        Instruction(_RETURN_A, 0, 0, 0),
        Instruction(_RETURN, 0, 0, NO_SOCKET),
    ]


def encode(instructions: list[Instruction]) -> bytes:
    """As the kernel reads it."""
    return b"".join(_INSTRUCTION.pack(*each) for each in instructions)

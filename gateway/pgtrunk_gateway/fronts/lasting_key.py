"""The keys of QUIC: a new one that seals, and one of stateless resets that is the same after a restart.

A gateway that was killed and started again knows nothing of the connections that its clients still hold. With the key
of before it can tell them so, at their next packet; with another one they would wait for their idle timeout, queries
under way and all. So it is derived from what lasts as long as the gateway does: its private key, the machine, and the
port. Where any of them is another one, so is the key.

The machine and the port, since gateways that share a certificate must not share this key: whoever sees an id of one
could have another give its token away, and end the connection with it (RFC 9000 section 21.11).
"""

from __future__ import annotations

import hashlib
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.quic.sealing import KEY_SIZE, derive
from pgtrunk_gateway.tls.files import read
from pgtrunk_gateway.tls.settings import SettingError

if TYPE_CHECKING:
    from pgtrunk_gateway.config.settings import Config

__all__ = ["lasting_key", "machine", "quic_keys"]

_MACHINE_ID: Final = Path("/etc/machine-id")


def quic_keys(config: Config) -> tuple[bytes, ...]:
    """For a gateway that starts: Retry tokens are sealed with the first, reset tokens are made of the last."""
    return os.urandom(KEY_SIZE), lasting_key(config, machine())


def lasting_key(config: Config, machine: bytes) -> bytes:
    """The key, 32 octets; a random one where there is nothing to derive it from: no private key that can be read
    (whoever needs it says why), or a port that is another one each time."""
    private_key = b""
    if config.quic_key_file is not None and config.quic_listen_port:
        with suppress(SettingError):
            private_key = read("quic_key_file", config.quic_key_file)
    if not private_key:
        return os.urandom(KEY_SIZE)
    hosts = ",".join(config.quic_listen_addr)
    place = hashlib.sha256(f"{hosts} {config.quic_listen_port} ".encode() + machine).hexdigest()
    return derive(private_key, f"lasting key of {place}")


def machine() -> bytes:
    """What tells this machine from others. A container has a name of its own, and perhaps its image's machine id."""
    number = b""
    with suppress(OSError):
        number = _MACHINE_ID.read_bytes()
    return b"%s %s" % (socket.gethostname().encode(), number.strip())

"""The file of keys that session tickets are sealed with (quic_ticket_keys_file). Reads it, no more.

One key on a line, as 64 hexadecimal digits; blank lines and those that begin with # are skipped. The first key seals,
all of them open. Gateways with the same file open each other's tickets, and a restart makes none worthless.
"""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING

from pgtrunk_gateway.quic.sealing import KEY_SIZE, Sealer
from pgtrunk_gateway.quic.ticket_keys import PURPOSE
from pgtrunk_gateway.tls.files import read
from pgtrunk_gateway.tls.settings import SettingError

if TYPE_CHECKING:
    from pgtrunk_gateway.config.load import Loaded

__all__ = ["KEY", "ticket_sealer"]

KEY = "quic_ticket_keys_file"
MOST = 8
"""Keys: each is tried on a ticket that none before it opens."""
MAKE = f"make one: openssl rand -hex {KEY_SIZE}"


def ticket_sealer(loaded: Loaded) -> Sealer | None:
    """What seals with the keys of the file; None where there is none. Raises :class:`ConfigError`."""
    path = loaded.config.quic_ticket_keys_file
    if path is None:
        return None
    try:
        return Sealer(_keys(path), PURPOSE)
    except SettingError as error:
        raise loaded.at(KEY).error(f"{KEY}: {error}") from error


def _keys(path: str) -> list[bytes]:
    keys: list[bytes] = []
    for number, line in enumerate(read(KEY, path).splitlines(), 1):
        text = line.strip()
        if not text or text.startswith(b"#"):
            continue
        try:
            key = binascii.unhexlify(text)
        except ValueError:
            key = b""
        if len(key) != KEY_SIZE:
            # What stands there may be a key that was cut short: not a word of it.
            raise SettingError(KEY, f'"{path}", line {number}: {2 * KEY_SIZE} hexadecimal digits are needed; {MAKE}')
        keys.append(key)
    if not keys:
        raise SettingError(KEY, f'"{path}" holds no key; {MAKE}')
    if len(keys) > MOST:
        raise SettingError(KEY, f'"{path}" holds {len(keys)} keys, and {MOST} are the most')
    return keys

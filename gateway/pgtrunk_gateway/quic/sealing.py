"""Sealed values that only this fleet can make or read: AES-256-GCM under keys that the caller gives.

The first key seals, all of them open, so keys rotate without a gap: (new, old). Each purpose gets keys of its own,
derived, so that what was sealed as one thing is never opened as another. No randomness here: the nonce is an argument.
A key may seal 2^32 values before it should be rotated (NIST SP 800-38D section 8.3, random nonces).
"""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pgtrunk.errors import UsageError

__all__ = ["KEY_SIZE", "NONCE_SIZE", "Sealer", "derive"]

KEY_SIZE = 32
"""The least that a key may have, in bytes."""

NONCE_SIZE = 12


class Sealer:
    """Seals and opens values for one purpose."""

    def __init__(self, keys: Sequence[bytes], purpose: str) -> None:
        """Takes the secret keys, the current one first, each of at least ``KEY_SIZE`` bytes."""
        if not keys:
            raise UsageError(f"no key to seal {purpose} with: give at least one of {KEY_SIZE} random bytes")
        if any(len(key) < KEY_SIZE for key in keys):
            raise UsageError(f"a key to seal {purpose} with is shorter than {KEY_SIZE} bytes")
        self._boxes = [AESGCM(derive(key, purpose)) for key in keys]

    def seal(self, value: bytes, *, nonce: bytes, context: bytes = b"") -> bytes:
        """Returns nonce and sealed value. ``context`` is not in it, but must be the same when it is opened."""
        return nonce + self._boxes[0].encrypt(nonce, value, context)

    def open(self, sealed: bytes, *, context: bytes = b"") -> bytes | None:
        """Returns the value, or None for what none of the keys has sealed in this context."""
        nonce, ciphertext = sealed[:NONCE_SIZE], sealed[NONCE_SIZE:]
        if not ciphertext:
            return None
        for box in self._boxes:
            try:
                return box.decrypt(nonce, ciphertext, context)
            except InvalidTag:
                continue
        return None


def derive(key: bytes, purpose: str) -> bytes:
    """Returns a key of 32 bytes for one purpose: nothing can be told from it of the keys for others."""
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=b"pgtrunk " + purpose.encode()).derive(key)

"""SASLprep (RFC 4013) exactly as PostgreSQL's pg_saslprep does it, since both ends must hash the same octets.

It differs from the RFC's letter where PostgreSQL does: passwords of ASCII alone are taken as they are; U+200B is a
space; what is prohibited is sought before normalization, by the tables of Unicode 3.2, which normalization itself does
not go by; and a password that is no valid UTF-8, or that SASLprep prohibits, is used raw.
"""

from __future__ import annotations

import stringprep
import unicodedata

__all__ = ["saslprep"]

_PROHIBITED = (
    stringprep.in_table_a1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def saslprep(password: str) -> bytes:
    """The octets of `password` that PBKDF2 works on. Surrogates stand for octets that are no UTF-8."""
    if not password.isascii():
        mapped = "".join(map(_map, password))
        if mapped and not _is_prohibited(mapped):
            return unicodedata.normalize("NFKC", mapped).encode()
    return password.encode("utf-8", "surrogateescape")


def _map(character: str) -> str:
    if stringprep.in_table_c12(character):
        return " "
    return "" if stringprep.in_table_b1(character) else character


def _is_prohibited(text: str) -> bool:
    return any(table(character) for character in text for table in _PROHIBITED) or not _is_bidi_sound(text)


def _is_bidi_sound(text: str) -> bool:
    # RFC 3454, section 6: right-to-left text has no left-to-right letter, and begins and ends with its own kind.
    if not any(map(stringprep.in_table_d1, text)):
        return True
    if any(map(stringprep.in_table_d2, text)):
        return False
    return stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])

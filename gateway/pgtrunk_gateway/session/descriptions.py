"""What a client is told of a statement by Describe: which parameters it has, and which columns it gives.

Postgres compares the columns each time it makes a plan anew, and refuses to give others than it once did ("cached plan
must not change result type"). It does so for the backend on which the statement was prepared; the gateway does it for a
client that was told on one backend, and is served by another. Pure.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Description", "key_of"]

_NO_DATA: Final = ord("n")
_NOTHING: Final = b"\0\0"
"""The key of what has neither parameters nor columns."""


class Description:
    """Compared by identity: :class:`~pgtrunk_gateway.session.statements.Catalogue` makes equal ones the same."""

    __slots__ = ("__weakref__", "key")

    def __init__(self, key: bytes) -> None:
        self.key = key

    @property
    def is_empty(self) -> bool:
        """Neither parameters nor columns: nothing that could be taken for something else."""
        return self.key == _NOTHING

    def __repr__(self) -> str:
        return f"<Description {self.key!r}>"


def key_of(parameters: bytes, columns: bytes) -> bytes:
    """What counts of a ParameterDescription and the RowDescription or NoData behind it, whole messages.

    Of a parameter that is its type, of a column its name, type and type modifier: not of which table it is, since that
    may be dropped and made anew. Raises :class:`ValueError` where it is no RowDescription.
    """
    if columns[0] == _NO_DATA:
        return parameters[5:]
    parts = [parameters[5:], columns[5:7]]
    at, size = 7, len(columns)
    while at < size:
        zero = columns.index(0, at)
        # Behind the name: table (4 octets) and column (2); type (4), its size (2) and modifier (4); format (2).
        parts += (columns[at : zero + 1], columns[zero + 7 : zero + 11], columns[zero + 13 : zero + 17])
        at = zero + 19
    return b"".join(parts)

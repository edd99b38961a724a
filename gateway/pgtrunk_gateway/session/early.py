"""Which requests may run from early data, where the client has said that they only read (``_pq_.early_data``). Pure.

Early data can be replayed, so what runs of it may run again, whenever somebody likes. It runs in a READ ONLY
transaction that is rolled back: that, not what is here, keeps it from changing tables, sequences and settings. But a
text must not end that transaction; and some functions act past any. So a request is looked at, and one that is not seen
to be harmless is no error: it waits for the end of the handshake, like all else.

1. It is one Query, or one batch of exactly Parse, Bind, Execute and Sync, with a Describe or without, of the unnamed
   statement and portal.
2. Its text is one command that begins with SELECT, VALUES, TABLE, WITH or SHOW. So there is no COMMIT in it, no SET,
   DO, CALL, COPY or EXECUTE.
3. No word of it is one of those by which a query writes or locks rows (`WRITES`).
4. It calls no function that is known to act outside of its transaction (`acts_outside`): NOTIFY, advisory locks,
   signals to other backends, other servers, files, sequences of temporary tables, and those that run a text.
5. It has no backslash and no escaped name, which not every server reads in the same way.

What a function of the application's own does is not seen: it cannot write either, but it may call any of those. Nor can
it be seen how long a query takes. Both is for whoever declares it read-only to know.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pgtrunk.errors import ProtocolViolation
from pgtrunk.wire import frontend as client
from pgtrunk.wire.framing import HEADER_SIZE, messages
from pgtrunk_gateway.session.sql.lexer import commands_of

if TYPE_CHECKING:
    from pgtrunk_gateway.session.sql.lexer import Word

__all__ = ["LONGEST", "OPTION", "READ_ONLY", "is_whole", "may_run_early"]

OPTION: Final = "_pq_.early_data"
"""The protocol option of a StartupMessage by which a client says what of its early data may run ..."""
READ_ONLY: Final = "read-only"
"""... and its only value: the first request behind it, if it only reads."""
LONGEST: Final = 16 << 10
"""Octets of a request; early data fits into a few packets."""

_QUERY: Final = (client.QUERY,)
_DESCRIBED: Final = frozenset(
    tuple(kinds)
    for kinds in (
        (client.PARSE, client.BIND, client.EXECUTE, client.SYNC),
        (client.PARSE, client.BIND, client.DESCRIBE, client.EXECUTE, client.SYNC),
        (client.PARSE, client.DESCRIBE, client.BIND, client.EXECUTE, client.SYNC),
    )
)
_ENDS: Final = (client.QUERY, client.SYNC)
_READS: Final = frozenset({b"select", b"values", b"table", b"with", b"show"})
WRITES: Final = frozenset({b"insert", b"update", b"delete", b"merge", b"into", b"share"})
"""Words of commands within WITH, of SELECT INTO, and of FOR UPDATE and FOR SHARE."""
_ACTS: Final = frozenset(
    {
        b"set_config", b"nextval", b"setval", b"lastval", b"notify", b"txid_current", b"ts_stat", b"ts_rewrite",
        b"loread", b"lowrite", b"crosstab", b"crosstabn", b"connectby", b"xpath_table",
    }
)  # fmt: skip
_ACTS_BEGIN: Final = (b"pg_", b"lo_", b"dblink", b"http", b"dbms_", b"utl_", b"crosstab", b"postgres_fdw_")
_ACTS_HAVE: Final = (b"_to_xml", b"advisory")


def is_whole(data: bytes) -> bool:
    """Whether ``data`` has a request in it from beginning to end, or never will: what is there can be judged."""
    if len(data) > LONGEST:
        return True
    try:
        return any(kind in _ENDS or kind not in client.KINDS for kind, _, _ in messages(data))
    except ProtocolViolation:
        return True


def may_run_early(data: bytes) -> bool:
    """Whether ``data``, from a message's beginning, is nothing but one request that may run."""
    if len(data) > LONGEST:
        return False
    try:
        parts = list(messages(data))
        if not parts or parts[-1][2] != len(data):
            return False
        kinds = tuple(kind for kind, _, _ in parts)
        if kinds == _QUERY:
            return only_reads(data[HEADER_SIZE:-1])
        if kinds not in _DESCRIBED:
            return False
        bodies = {kind: data[start + HEADER_SIZE : end] for kind, start, end in parts}
        return _is_unnamed(bodies) and only_reads(client.text(bodies[client.PARSE], 1)[0])
    except ProtocolViolation:
        return False


def _is_unnamed(bodies: dict[int, bytes]) -> bool:
    described = bodies.get(client.DESCRIBE)
    return (
        bodies[client.PARSE][:1] == b"\0"
        and bodies[client.BIND][:2] == b"\0\0"
        and bodies[client.EXECUTE][:1] == b"\0"
        and (described is None or described in (b"S\0", b"P\0"))
    )


@lru_cache(maxsize=256)
def only_reads(text: bytes) -> bool:
    """Whether ``text`` is one command, and by its words it only reads."""
    if b"\\" in text or b"\0" in text:
        return False
    commands = commands_of(text, escapes=False)
    if len(commands) != 1:
        return False
    words = commands[0]
    if any(word.kind == "unicode" or word.text == b";" or (word.is_name and word.text in WRITES) for word in words):
        return False
    begins = next((word for word in words if word.text != b"("), words[0])
    return begins.kind == "word" and begins.text in _READS and not any(map(_acts, words, [*words[1:], words[0]]))


def _acts(word: Word, following: Word) -> bool:
    return word.is_name and following.text == b"(" and following.kind == "sign" and acts_outside(word.text)


def acts_outside(function: bytes) -> bool:
    """Whether a function of this name is, or may be, one that acts outside of the transaction that calls it."""
    return function in _ACTS or function.startswith(_ACTS_BEGIN) or any(part in function for part in _ACTS_HAVE)

"""Asks a backend what a session has left on it, and reads the answer.

It is asked when the transaction is over in which the session may have left something (its
:class:`~pgtrunk_gateway.session.sql.traces.Traces`), before the backend is given back. So what a rollback has undone is
not there, and values are as Postgres has them. Pure: SQL out, rows in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pgtrunk.wire.backend import parse_data_row
from pgtrunk_gateway.session.parameters import TRACKED, quote
from pgtrunk_gateway.session.sql.traces import IDENTITY, Pin

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from pgtrunk_gateway.session.sql.traces import Traces

__all__ = ["KNOWN", "Answer", "Inquiry", "inquire"]

# Everything is named by its schema, operators too: the session's search_path may lead anywhere.
_IS: Final = " OPERATOR(pg_catalog.=) "
_ASKED: Final = {
    Pin.LISTEN: "EXISTS(SELECT FROM pg_catalog.pg_listening_channels())",
    # The objects of a schema depend on it; an index leads to them.
    Pin.TEMPORARY: (
        f"EXISTS(SELECT FROM pg_catalog.pg_depend WHERE refclassid{_IS}'pg_catalog.pg_namespace'::pg_catalog.regclass"
        f" AND refobjid{_IS}pg_catalog.pg_my_temp_schema())"
    ),
    Pin.LOCK: (
        f"EXISTS(SELECT FROM pg_catalog.pg_locks WHERE locktype{_IS}'advisory' AND pid{_IS}pg_catalog.pg_backend_pid())"
    ),
    Pin.CURSOR: "EXISTS(SELECT FROM pg_catalog.pg_cursors WHERE is_holdable)",
}
"""What the server knows of itself."""
KNOWN: Final = Pin.LISTEN | Pin.TEMPORARY | Pin.LOCK | Pin.CURSOR
"""What Postgres can be asked about."""
_TIMEOUT: Final = "statement_timeout"
_VALUE: Final = "pg_catalog.current_setting(n,true)"
_SET: Final = (
    # A setting that the server knows says where it comes from; one that only sessions have is empty when it is not set.
    f"SELECT n,{_VALUE},coalesce(s.source{_IS}'session',{_VALUE} OPERATOR(pg_catalog.<>) '')"
    " FROM pg_catalog.unnest(ARRAY[%s]::pg_catalog.text[]) n"
    f" LEFT JOIN pg_catalog.pg_settings s ON pg_catalog.lower(s.name){_IS}pg_catalog.lower(n)"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the session has left there."""

    settings: dict[str, str]
    """What it has set."""
    unset: frozenset[str]
    """What it has not, or not any more, of the settings that were asked for."""
    pins: Pin
    """What only this backend has, of what was asked for."""
    asked: Pin
    restored: frozenset[str] = frozenset()
    """Of the reported settings whose origin was asked for, those that are what the server gives them."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A question. ``names``: settings; ``pins``: what else may be there."""

    names: tuple[str, ...]
    pins: Pin
    login: str
    """Who the server takes the session for if nothing has been set."""
    origins: tuple[str, ...] = ()
    """Settings that the server reports, of which it does not say whether the session has set them."""
    began_as: frozenset[str] = frozenset()
    """The role and the authorization that the session began with: where it has one, to have none is set, too."""

    @property
    def sql(self) -> bytes:
        """Its rows are: name, value (NULL: none), and whether the session has set it; or the number of a pin."""
        names = ",".join(map(quote, (*self.names, *self.origins)))
        parts = [_SET % names] if names else []
        parts += [f"SELECT '{pin.value}',NULL,{_ASKED[pin]}" for pin in self.pins]
        return " UNION ALL ".join(parts).encode()

    @property
    def patient_sql(self) -> bytes:
        """The same for a session whose statement_timeout is too short for it: without that, after it has been asked.

        What is set for the transaction is gone when all of it is over.
        """
        row = f"SELECT '{_TIMEOUT}',pg_catalog.current_setting('{_TIMEOUT}'),true;" if _TIMEOUT in self.names else ""
        return f"{row}SELECT '',pg_catalog.set_config('{_TIMEOUT}','0',true),false;".encode() + self.sql

    def read(self, rows: Iterable[bytes]) -> Answer:
        """Reads the bodies of the DataRow messages. Raises :class:`ProtocolViolation` or :class:`ValueError`."""
        settings: dict[str, str] = {}
        pins, restored = Pin.NONE, set(self.origins)
        for body in rows:
            name, value, is_set = map(_text, parse_data_row(body))
            if is_set != "t" or name is None:
                continue
            if name.isdigit():
                pins |= Pin(int(name))
            elif name in restored:
                restored.discard(name)
            elif value is not None and not self._is_none(name, value):
                settings.setdefault(name, value)
        return Answer(settings, frozenset(self.names) - settings.keys(), pins, self.pins, frozenset(restored))

    def _is_none(self, name: str, value: str) -> bool:
        if name in self.began_as:
            return False
        return (name == "role" and value == "none") or (name == "session_authorization" and value == self.login)


def inquire(
    touched: Traces,
    own: Mapping[str, str | None],
    reported: Container[str],
    *,
    pins: Pin,
    login: str,
    began_with: Iterable[str] = (),
) -> Inquiry | None:
    """The question after ``touched``; None: there is nothing that would have to be asked.

    ``own``: the settings that the session has already, ``reported``: those that the server reports by itself. ``pins``:
    what the session keeps this backend for. ``began_with``: those that the session asked for when it began, and has
    again when they are reset.
    """
    names = {name for name in touched.names if not (name in TRACKED and name in reported)}
    # A value is kept as octets, which are others in another encoding.
    recoded = "client_encoding" in touched.names and not all((value or "").isascii() for value in own.values())
    if names or touched.resets or recoded:
        names.update(own)
    asked = (touched.pins | (pins if touched.frees else Pin.NONE)) & KNOWN
    began = list(began_with)
    told = [name for name in began if name in TRACKED and name in reported]
    origins = tuple(name for name in told if touched.resets or name in touched.names)
    if not (names or asked or origins):
        return None
    began_as: frozenset[str] = frozenset() if touched.reverts else IDENTITY.intersection(began)
    return Inquiry(tuple(sorted(names)), asked, login, origins, began_as)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogateescape")

"""Kinds of values: what each takes, and what it says to the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgtrunk_gateway.config import kinds
from pgtrunk_gateway.errors import ConfigError

if TYPE_CHECKING:
    from pgtrunk_gateway.config.kinds import Kind, Value

INTEGER = kinds.integer(-5, 1000)
SECONDS = kinds.seconds()
SIZE = kinds.size(1, 1 << 30)
CHOICE = kinds.choice("auto", "never", later=("always",))
OPTIONAL = kinds.optional(kinds.integer())
AUTOMATIC = kinds.automatic(kinds.integer(1, 256))
OPTIONAL_SECONDS = kinds.optional(kinds.seconds(), zero=True)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (INTEGER, "0", 0),
        (INTEGER, "-5", -5),
        (INTEGER, "+7", 7),
        (INTEGER, "0x1F", 31),
        (INTEGER, "010", 8),
        (INTEGER, "1000", 1000),
        (kinds.boolean(), "0", False),
        (kinds.boolean(), "1", True),
        (kinds.boolean(), "2", True),
        (SECONDS, "15", 15.0),
        (SECONDS, "0.25", 0.25),
        (SECONDS, ".5", 0.5),
        (SECONDS, "5.", 5.0),
        (SECONDS, "1e2", 100.0),
        (SIZE, "1024", 1024),
        (SIZE, "64kB", 64 << 10),
        (SIZE, "32 MB", 32 << 20),
        (SIZE, "1gb", 1 << 30),
        (CHOICE, "AUTO", "auto"),
        (kinds.words(), "", ()),
        (kinds.words(), "a,b", ("a", "b")),
        (kinds.words(), " a , b c,, ", ("a", "b", "c")),
        (kinds.hosts(), "/my dir, b", ("/my dir", "b")),
        (kinds.text(), "", None),
        (kinds.text(), "a b", "a b"),
        (kinds.path(), "", None),
        (kinds.path(), "~/x", "~/x"),
        (kinds.mode(), "0770", 0o770),
        (kinds.mode(), "0", 0),
        (OPTIONAL, "-1", None),
        (OPTIONAL, "-7", None),
        (OPTIONAL, "0", 0),
        (OPTIONAL_SECONDS, "0", None),
        (OPTIONAL_SECONDS, "0.5", 0.5),
        (AUTOMATIC, "Auto", 0),
        (AUTOMATIC, "256", 256),
    ],
)
def test_values(kind: Kind, text: str, value: Value) -> None:
    got = kind.read(text)
    assert got == value
    assert type(got) is type(value)
    assert kind.read(kind.write(got)) == got


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (INTEGER, "", 'bad value "": expected a whole number from -5 to 1000'),
        (INTEGER, "1001", 'bad value "1001": expected a whole number from -5 to 1000'),
        (INTEGER, "08", 'bad value "08": expected a whole number from -5 to 1000'),
        (INTEGER, "1_0", 'bad value "1_0": expected a whole number from -5 to 1000'),
        (INTEGER, "٣", 'bad value "٣": expected a whole number from -5 to 1000'),
        (INTEGER, "9" * 5000, f'bad value "{"9" * 57}...": expected a whole number from -5 to 1000'),
        (kinds.boolean(), "yes", 'bad value "yes": expected 0 or 1'),
        (SECONDS, "10s", 'bad value "10s": expected a number of seconds, such as 15 or 0.5'),
        (SECONDS, "-1", 'bad value "-1": expected a number of seconds, such as 15 or 0.5'),
        (SECONDS, "nan", 'bad value "nan": expected a number of seconds, such as 15 or 0.5'),
        (SECONDS, "1e999", 'bad value "1e999": expected a number of seconds, such as 15 or 0.5'),
        (
            kinds.seconds(minimum=0.1),
            "0",
            'bad value "0": expected a number of seconds, such as 15 or 0.5, at least 0.1',
        ),
        (
            SIZE,
            "2GB",
            'bad value "2GB": expected bytes from 1 to 1073741824, such as 65536, 64kB, 32MB or 1GB',
        ),
        (CHOICE, "none", 'bad value "none": expected one of auto, never'),
        (CHOICE, "Always", '"Always" is not available yet: expected one of auto, never'),
        (kinds.choice("one"), "two", 'bad value "two": expected one'),
        (kinds.mode(), "770", 'bad value "770": expected permissions in octal with a leading 0, such as 0770'),
        (kinds.mode(), "01777", 'bad value "01777": expected permissions in octal with a leading 0, such as 0770'),
        (OPTIONAL, "x", 'bad value "x": expected a whole number from 0 to 2147483647'),
        (AUTOMATIC, "0", 'bad value "0": expected a whole number from 1 to 256, or auto'),
        (AUTOMATIC, "many", 'bad value "many": expected a whole number from 1 to 256, or auto'),
        (INTEGER, "\x1b[2J\n", 'bad value "\\x1b[2J\\x0a": expected a whole number from -5 to 1000'),
    ],
)
def test_errors(kind: Kind, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kind.read(text)
    assert caught.value.message == message

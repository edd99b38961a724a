"""A loaded configuration, changed while the gateway runs: one key by SET, or all of it by a reload.

Both give another `Loaded` and leave the one that they start from alone. Nothing is applied here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import ConfigError, GatewayError
from .build import build
from .checks import Checks
from .faults import Remark, Source, quoted
from .keys import MAIN, suggest

if TYPE_CHECKING:
    from .load import Loaded
    from .reading import Reading

__all__ = ["keep_until_restart", "set_key"]

SET = Source("SET")
WITH_ITS_FRONT = ("quic_cert_file", "quic_key_file")
"""What they name may change; whether they are set decides whether there is a front, which only a start opens."""


def keep_until_restart(running: Loaded, loaded: Loaded) -> Loaded:
    """`loaded`, but with the running values where only a restart brings new ones: what a reload may apply."""
    reading, old = _copy(loaded.reading), running.reading
    names = [name for name, key in MAIN.items() if not key.changeable]
    if running.config.quic_enabled != loaded.config.quic_enabled:
        names += WITH_ITS_FRONT
    for name in names:
        if name in old.main:
            reading.main[name] = old.main[name]
            reading.sources[name] = old.sources[name]
        else:
            reading.main.pop(name, None)
            reading.sources.pop(name, None)
    return replace(loaded, config=build(reading), reading=reading, sources=reading.sources)


def set_key(running: Loaded, name: str, text: str) -> Loaded:
    """`running` with another value for one key of the main section; its remarks are those of this key alone.

    What is wrong only together with other keys is among the remarks: these may be about to be SET, too.

    :raises GatewayError: 42704 for an unknown key, 55P02 for one that only a restart changes, 0A000 for one that is
        not acted on, 22023 for a value that it cannot have; severity ERROR.
    """
    key = MAIN.get(name)
    if key is None:
        raise _refused("42704", f"unknown key {quoted(name)}{suggest(name, MAIN)}")
    if not key.changeable:
        raise _refused("55P02", f"{name} can only be changed in the file, and by a restart")
    if not key.acted_on:
        raise _refused("0A000", f"{name} is known, not acted on yet")
    reading = _copy(running.reading)
    try:
        reading.main[name] = key.kind.read(text)
    except ConfigError as error:
        raise _refused("22023", f"{name}: {error.message}") from None
    reading.sources[name] = SET
    config = build(reading)
    if config.quic_enabled != running.config.quic_enabled:
        raise _refused("55P02", f"{name} opens or closes the QUIC front, which needs a restart")
    checks = Checks(running.path, reading, config)
    for fault in checks.of_disk():
        if fault.path == SET.path:
            raise _refused("22023", fault.message)
    remarks = tuple(
        Remark(Source(error.path or running.path, error.line), error.message, True) for error in checks.between_keys()
    )
    return replace(running, config=config, reading=reading, sources=reading.sources, remarks=remarks)


def _copy(reading: Reading) -> Reading:
    return replace(reading, main=dict(reading.main), sources=dict(reading.sources))


def _refused(sqlstate: str, detail: str) -> GatewayError:
    return GatewayError("SET failed", sqlstate=sqlstate, detail=detail, severity="ERROR")

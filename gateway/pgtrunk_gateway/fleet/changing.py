"""RELOAD and SET of a fleet: all workers change, or none, and what new ones are told changes with them.

The supervisor reads the files, once, and hands out their texts: so all workers have the same. What these name in turn
(auth_file, certificates) each worker reads itself; a digest tells whether all have seen the same there, too. From the
moment in which all are prepared there is no way back: a worker that cannot follow then is ended, and its successor has
what the others have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.config.amend import keep_until_restart, set_key
from pgtrunk_gateway.config.load import load, read_file
from pgtrunk_gateway.errors import ConfigError, GatewayError
from pgtrunk_gateway.fleet.standing import Standing
from pgtrunk_gateway.reloading import log_faults

if TYPE_CHECKING:
    from pgtrunk_gateway.config.ini import Reader
    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.fleet.company import Answers, Company
    from pgtrunk_gateway.fleet.frames import Body
    from pgtrunk_gateway.logs import LogOutput
    from pgtrunk_gateway.reloading import OpenLog

__all__ = ["Changing"]

log = logging.getLogger(__name__)

_PREPARES: Final = 20.0
"""Seconds that a worker has for reading files and certificates; more are an error, and nothing changes."""
_COMMITS: Final = 10.0


class Changing:
    """Of one fleet. One call at a time: see rule 1 of :mod:`~pgtrunk_gateway.fleet.face`."""

    def __init__(
        self,
        loaded: Loaded,
        company: Company,
        *,
        open_log: OpenLog | None,
        adopt: Callable[[Loaded], None],
    ) -> None:
        self.loaded = loaded
        """What is in force."""
        files: dict[str, str] = {}
        load(loaded.path, _keeping(files), on_disk=False)
        self.standing = Standing(first=files, files=files)
        self._company = company
        self._open_log = open_log
        self._adopt = adopt
        self._number = 0
        """Of changes that were tried."""

    def inherit(self, body: Body) -> None:
        """What the fleet before this one was paused for. Its configuration has gone with it: a restart reads files."""
        before, config = Standing.from_body(body), self.loaded.config
        self.standing = replace(
            self.standing,
            paused=before.paused,
            paused_databases=frozenset(each for each in before.paused_databases if config.database(each) is not None),
            disabled_databases=frozenset(
                each for each in before.disabled_databases if config.database(each) is not None
            ),
        )

    async def reload(self) -> None:
        """Takes what the files say now. Raises :class:`ConfigError`; then nothing has changed anywhere."""
        files: dict[str, str] = {}
        try:
            loaded = keep_until_restart(self.loaded, load(self.loaded.path, _keeping(files)))
            await self._change(loaded, {"files": files}, lambda: self.standing.reloaded(files, loaded.config))
        except ConfigError as error:
            log_faults(error)
            raise

    async def set(self, key: str, value: str) -> None:
        """Changes one key. Raises a :class:`GatewayError` with severity ERROR; then nothing has changed anywhere."""
        loaded = set_key(self.loaded, key, value)
        try:
            await self._change(loaded, {"set": [key, value]}, lambda: self.standing.set(key, value))
        except ConfigError as error:
            log_faults(error)
            raise GatewayError("SET failed", sqlstate="F0000", detail=str(error), severity="ERROR") from error

    async def _change(self, loaded: Loaded, change: Body, after: Callable[[], Standing]) -> None:
        self._number += 1
        output = self._open_log(loaded.config) if self._open_log is not None else None
        try:
            speaker = await self._prepared({"number": self._number, **change})
        except BaseException:
            if output is not None:
                output.discard()
            raise
        self._settle(loaded, after(), output)
        await self._committed(speaker)

    def _settle(self, loaded: Loaded, standing: Standing, output: LogOutput | None) -> None:
        """The supervisor's own part. Before the workers': one that starts from now on has it."""
        self.loaded, self.standing = loaded, standing
        self._adopt(loaded)
        if output is not None:
            output.install()

    async def _prepared(self, body: Body) -> int | None:
        """The first phase -> the worker that is to say in the log what is new."""
        try:
            answers = await self._company.ask("prepare", body, timeout=_PREPARES)
            _check(answers)
        except BaseException:
            await self._company.ask("discard", timeout=_COMMITS)
            raise
        return min(answers.done, default=None)

    async def _committed(self, speaker: int | None) -> None:
        """The second."""
        answers = await self._company.ask("commit", {"number": self._number, "speaker": speaker}, timeout=_COMMITS)
        for index, fault in answers.faults.items():
            log.error("worker %d cannot change its configuration, and is replaced: %s", index, fault)
            self._company.dismiss(index)
        for silence in answers.silent.values():
            log.warning("%s: it will change its configuration late", silence)


def _check(answers: Answers) -> None:
    """Raises :class:`ConfigError` unless all workers are prepared, and for the same."""
    for silence in answers.silent.values():
        raise ConfigError(f"{silence}: nothing is changed")
    faults = {index: str(fault) for index, fault in answers.faults.items()}
    faults |= {index: body["fault"] for index, body in answers.done.items() if "fault" in body}
    if faults:
        index, fault = min(faults.items())
        everywhere = set(faults.values()) == {fault} and faults.keys() >= answers.done.keys()
        raise ConfigError(fault if everywhere else f"worker {index}: {fault}")
    if len({body["digest"] for body in answers.done.values()}) > 1:
        raise ConfigError("workers have read different auth_files or certificates: they were being changed; try again")


def _keeping(files: dict[str, str]) -> Reader:
    """Reads from the disk, and keeps what it has read."""

    def read(path: str) -> str:
        files[path] = text = read_file(path)
        return text

    return read

"""Brings another configuration into force while the gateway runs: RELOAD, SIGHUP and SET.

All or nothing, in two steps. :meth:`Reloader.prepare` reads and makes everything that can fail (the ini files,
auth_file, certificates, the log file); what comes of it, a :class:`Prepared`, then changes all in one go, between two
events of the loop, or is discarded. One gateway takes both steps at once; the workers of a fleet take the second when
all of them have taken the first. What fails is logged with file and line, and nothing has changed. Keys that need a
restart keep their values, and the log names them. SET changes one key of what runs; the next reload takes the file's
word for all of them again.

Knows what shares the configuration, not what is done with it: sessions and pools are told, everybody else looks into
the context when it needs a value.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pgtrunk_gateway.auth import LoginPolicy, Userlist
from pgtrunk_gateway.cancel.peer import peers_of
from pgtrunk_gateway.config.amend import keep_until_restart, set_key
from pgtrunk_gateway.config.diff import diff
from pgtrunk_gateway.config.faults import InvalidConfig
from pgtrunk_gateway.config.load import load
from pgtrunk_gateway.errors import ConfigError, GatewayError, ShuttingDown
from pgtrunk_gateway.fronts.tcp import check_tuning

if TYPE_CHECKING:
    from pgtrunk_gateway.config.ini import Reader
    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.gateway import Gateway
    from pgtrunk_gateway.logs import LogOutput
    from pgtrunk_gateway.relay.admission import Admission

__all__ = ["OpenLog", "Prepared", "Reloader", "log_faults", "log_remarks", "login_policy", "read_userlist"]

log = logging.getLogger(__name__)

OpenLog = Callable[["Config"], "LogOutput"]
"""Opens the log that a configuration asks for, without using it yet. Raises :class:`ConfigError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """All of another configuration that can fail, done; :meth:`Reloader.commit` or :meth:`discard` comes next."""

    loaded: Loaded
    read: Loaded
    """As the files have it, with what needs a restart; after SET the same as ``loaded``."""
    userlist: Userlist | None
    output: LogOutput | None
    tls: Callable[[], None] | None
    """None: what TLS lacks is left as it was."""
    fronts: Sequence[Callable[[], None]]

    def discard(self) -> None:
        """It does not come into force."""
        if self.output is not None:
            self.output.discard()


class Reloader:
    """For one gateway. Without ``open_log`` the log is somebody else's, and stays as it is."""

    def __init__(self, gateway: Gateway, open_log: OpenLog | None = None) -> None:
        self._gateway = gateway
        self._open_log = open_log

    def reload(self) -> None:
        """Takes what the files say now. Raises :class:`ConfigError`; then nothing has changed."""
        try:
            prepared = self.prepare()
        except ConfigError as error:
            log_faults(error)
            raise
        self.commit(prepared)

    def set(self, key: str, value: str) -> None:
        """Changes one key of the main section. Raises a :class:`GatewayError` with severity ERROR."""
        try:
            prepared = self.prepare_set(key, value)
        except ConfigError as error:
            log_faults(error)
            raise GatewayError("SET failed", sqlstate="F0000", detail=str(error), severity="ERROR") from error
        self.commit(prepared)

    def prepare(self, read: Reader | None = None) -> Prepared:
        """What the files say now, or what ``read`` says that they do. Raises :class:`ConfigError`."""
        running = self._gateway.loaded
        loaded = load(running.path, read)
        return self._prepare(keep_until_restart(running, loaded), loaded)

    def prepare_set(self, key: str, value: str) -> Prepared:
        """One key of the main section. Raises :class:`GatewayError` for what it cannot be, :class:`ConfigError` for
        what cannot be done with it."""
        loaded = set_key(self._gateway.loaded, key, value)
        # A certificate and its key can only be SET one after the other; sslmode, which uses them, comes last.
        return self._prepare(loaded, loaded, half_way=not key.endswith("_tls_sslmode"))

    def _prepare(self, loaded: Loaded, read: Loaded, *, half_way: bool = False) -> Prepared:
        """``half_way``: what TLS lacks is left as it was, not an error."""
        config = loaded.config
        check_tuning(loaded)
        userlist = read_userlist(config.auth_file)
        fronts = [front.prepare(loaded) for front in self._gateway.fronts]
        output = self._open_log(config) if self._open_log is not None else None
        tls: Callable[[], None] | None = None
        try:
            tls = self._gateway.context.tls.prepare(loaded)
        except ConfigError as error:
            if not half_way:
                if output is not None:
                    output.discard()
                raise
            log.warning("%s", error)
            log.warning("TLS settings could not be applied, still using old configuration")
        return Prepared(loaded=loaded, read=read, userlist=userlist, output=output, tls=tls, fronts=fronts)

    def commit(self, prepared: Prepared, *, silent: bool = False) -> None:
        """Brings it into force, all at once. ``silent``: another worker of the fleet says in the log what is new."""
        context = self._gateway.context
        if prepared.tls is not None:
            prepared.tls()
        if not silent and prepared.tls is not None:
            for warning in context.tls.warnings:
                log.warning("%s", warning)
        changes = diff(self._gateway.loaded.config, prepared.loaded.config)
        self._commit(prepared.loaded, prepared.userlist)
        # Behind it: some look into the configuration that is in force.
        for commit in prepared.fronts:
            commit()
        if prepared.output is not None:
            prepared.output.install()
        if silent:
            return
        for line in changes.lines():
            log.info("%s", line)
        log_remarks(prepared.read)
        for change in diff(prepared.loaded.config, prepared.read.config).settings:
            log.warning("%s needs a restart", change)

    def _commit(self, loaded: Loaded, userlist: Userlist | None) -> None:
        gateway, context, config = self._gateway, self._gateway.context, loaded.config
        gateway.loaded = loaded
        context.config = config
        context.policy = login_policy(config, userlist, context.policy.mock_key)
        context.limiter.limit, context.limiter.window = config.login_failure_limit, config.login_failure_window
        gateway.cancels.configure(
            peer_id=config.peer_id,
            timeout=config.cancel_wait_timeout,
            failures=config.login_failure_limit,
            window=config.login_failure_window,
            peers=peers_of(config, context.tls.peer),
        )
        # Before their pools go: what runs for them is to be cancelled, not only left alone.
        for session in list(context.sessions):
            if (admission := session.admission) is not None and (reason := _unfounded(admission, config)):
                session.kill(ShuttingDown(reason))
        gateway.pools.reconfigure(config, userlist)
        if context.tally.turnstile is not None:
            context.tally.turnstile.empty()
        for session in list(context.sessions):
            session.reconfigure()


def _unfounded(admission: Admission, config: Config) -> str:
    """Why a session cannot go on under ``config``; "" where it can."""
    database = config.database(admission.database)
    if database is None:
        return "database removed"
    # With another forced user it would be another one in Postgres from one query to the next.
    moved = config.pool_key(database, admission.user) != admission.pool.key
    return "database configuration changed" if moved else ""


def login_policy(config: Config, userlist: Userlist | None, mock_key: bytes) -> LoginPolicy:
    """How logins go under ``config``; ``mock_key`` must be the same for as long as the gateway runs."""
    return LoginPolicy(
        auth_type=config.auth_type, userlist=userlist, mock_key=mock_key, iterations=config.scram_iterations
    )


def read_userlist(path: str | None) -> Userlist | None:
    """The users in auth_file, None where there is none. Raises :class:`ConfigError`."""
    if path is None:
        return None
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"auth_file cannot be read: {error.strerror}", path=path) from error
    return Userlist.parse(data, path)


def log_remarks(loaded: Loaded) -> None:
    """What is worth a line about a configuration that is in force now."""
    for remark in loaded.remarks:
        log.log(logging.WARNING if remark.serious else logging.INFO, "%s", remark)


def log_faults(error: ConfigError) -> None:
    """What is wrong with a configuration that is not coming into force."""
    for fault in error.faults if isinstance(error, InvalidConfig) else (error,):
        log.error("%s", fault)
    log.error("RELOAD failed, all is as it was")

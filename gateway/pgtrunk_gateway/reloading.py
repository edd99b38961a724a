"""Brings another configuration into force while the gateway runs: RELOAD, SIGHUP and SET.

All or nothing: first everything that can fail is read and made (the ini files, auth_file, certificates, the log file);
only then anything is changed, in one go, between two events of the loop. What fails is logged with file and line, and
nothing has changed. Keys that need a restart keep their values, and the log names them. SET changes one key of what
runs; the next reload takes the file's word for all of them again.

Knows what shares the configuration, not what is done with it: sessions and pools are told, everybody else looks into
the context when it needs a value.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pgtrunk_gateway.auth import LoginPolicy, Userlist
from pgtrunk_gateway.config.amend import keep_until_restart, set_key
from pgtrunk_gateway.config.diff import diff
from pgtrunk_gateway.config.faults import InvalidConfig
from pgtrunk_gateway.config.load import load
from pgtrunk_gateway.errors import ConfigError, GatewayError, ShuttingDown
from pgtrunk_gateway.fronts.tcp import check_tuning

if TYPE_CHECKING:
    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.config.settings import Config
    from pgtrunk_gateway.gateway import Gateway
    from pgtrunk_gateway.logs import LogOutput
    from pgtrunk_gateway.relay.login import Admission

__all__ = ["OpenLog", "Reloader", "log_remarks", "login_policy", "read_userlist"]

log = logging.getLogger(__name__)

OpenLog = Callable[["Config"], "LogOutput"]
"""Opens the log that a configuration asks for, without using it yet. Raises :class:`ConfigError`."""


class Reloader:
    """For one gateway. Without ``open_log`` the log is somebody else's, and stays as it is."""

    def __init__(self, gateway: Gateway, open_log: OpenLog | None = None) -> None:
        self._gateway = gateway
        self._open_log = open_log

    def reload(self) -> None:
        """Takes what the files say now. Raises :class:`ConfigError`; then nothing has changed."""
        running = self._gateway.loaded
        try:
            loaded = load(running.path)
            self._apply(keep_until_restart(running, loaded))
        except ConfigError as error:
            _log_faults(error)
            raise
        log_remarks(loaded)
        for change in diff(self._gateway.loaded.config, loaded.config).settings:
            log.warning("%s needs a restart", change)

    def set(self, key: str, value: str) -> None:
        """Changes one key of the main section. Raises a :class:`GatewayError` with severity ERROR."""
        loaded = set_key(self._gateway.loaded, key, value)
        try:
            # A certificate and its key can only be SET one after the other; sslmode, which uses them, comes last.
            self._apply(loaded, half_way=not key.endswith("_tls_sslmode"))
        except ConfigError as error:
            _log_faults(error)
            raise GatewayError("SET failed", sqlstate="F0000", detail=str(error), severity="ERROR") from error
        log_remarks(loaded)

    def _apply(self, loaded: Loaded, *, half_way: bool = False) -> None:
        """``half_way``: what TLS lacks is left as it was, not an error."""
        config = loaded.config
        check_tuning(loaded)
        userlist = read_userlist(config.auth_file)
        commits = [front.prepare(loaded) for front in self._gateway.fronts]
        output = self._open_log(config) if self._open_log is not None else None
        try:
            # The last of what can fail: it makes all contexts, or changes none.
            self._gateway.context.tls.reload(loaded)
        except ConfigError as error:
            if not half_way:
                if output is not None:
                    output.discard()
                raise
            log.warning("%s", error)
            log.warning("TLS settings could not be applied, still using old configuration")
        else:
            for warning in self._gateway.context.tls.warnings:
                log.warning("%s", warning)
        changes = diff(self._gateway.loaded.config, config)
        self._commit(loaded, userlist)
        # Behind it: some look into the configuration that is in force.
        for commit in commits:
            commit()
        if output is not None:
            output.install()
        for line in changes.lines():
            log.info("%s", line)

    def _commit(self, loaded: Loaded, userlist: Userlist | None) -> None:
        gateway, context, config = self._gateway, self._gateway.context, loaded.config
        gateway.loaded = loaded
        context.config = config
        context.policy = login_policy(config, userlist, context.policy.mock_key)
        context.limiter.limit, context.limiter.window = config.login_failure_limit, config.login_failure_window
        gateway.cancels.configure(
            peer_id=config.peer_id,
            timeout=config.cancel_wait_timeout,
            long_keys=not config.peers,
            failures=config.login_failure_limit,
            window=config.login_failure_window,
            peers=config.peers,
        )
        # Before their pools go: what runs for them is to be cancelled, not only left alone.
        for session in list(context.sessions):
            if (admission := session.admission) is not None and (reason := _unfounded(admission, config)):
                session.kill(ShuttingDown(reason))
        gateway.pools.reconfigure(config, userlist)
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


def _log_faults(error: ConfigError) -> None:
    for fault in error.faults if isinstance(error, InvalidConfig) else (error,):
        log.error("%s", fault)
    log.error("RELOAD failed, all is as it was")

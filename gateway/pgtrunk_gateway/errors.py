"""What the gateway says to a client when it cannot do what was asked: one class per cause, each with its SQLSTATE.

A `GatewayError` is exactly an ErrorResponse before encoding: severity, SQLSTATE, message, DETAIL and HINT. `log` is
what the gateway's own log says beside it, where the client must not learn the reason (logins above all). Nothing here
knows how a message is encoded or who reads it. Severity FATAL promises that the session is closed after it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pgtrunk.errors import PgtrunkError

__all__ = [
    "Severity",
    "GatewayError",
    "ConfigError",
    # login
    "AuthenticationFailed",
    "LoginRefused",
    "TooManyFailures",
    "LoginTimeout",
    "LookupFailed",
    "NoSuchDatabase",
    # limits and waiting
    "TooManyConnections",
    "QueryWaitTimeout",
    # timeouts and cancels of a session that runs
    "QueryCanceled",
    "IdleTransactionTimeout",
    "TransactionTimeout",
    "IdleSessionTimeout",
    # the console
    "InvalidCommand",
    "InvalidArgument",
    "NotAllowed",
    # life of the gateway
    "ShuttingDown",
    "CannotConnectNow",
    "WorkerLost",
    # towards Postgres
    "BackendUnavailable",
    "BackendLost",
    "BackendRefused",
    # the protocol
    "ProtocolError",
    "NotSupported",
    "NoSuchStatement",
    "DuplicateStatement",
    "FailedTransaction",
    "MessageTooLarge",
    "InternalError",
]

Severity = Literal["ERROR", "FATAL"]


class GatewayError(PgtrunkError):
    """Base of all that the gateway reports to a client. SQLSTATE and severity come from the class unless given."""

    sqlstate: str = "XX000"
    severity: Severity = "FATAL"
    default: ClassVar[str] = "internal error"
    """The message of an instance that is made without one."""

    def __init__(
        self,
        message: str | None = None,
        *,
        detail: str | None = None,
        hint: str | None = None,
        severity: Severity | None = None,
        sqlstate: str | None = None,
        log: str | None = None,
    ) -> None:
        self.message = message if message is not None else self.default
        """The M field: lower case, one line; also what follows `closing because: ` in the log."""
        self.detail = detail
        """The D field: which setting with which value decided it."""
        self.hint = hint
        """The H field: what to do."""
        if severity is not None:
            self.severity = severity
        if sqlstate is not None:
            self.sqlstate = sqlstate
        self.log = log
        """For the gateway's log alone, as a line ahead of `closing because: <message>`; never sent."""
        super().__init__(self.message)


class ConfigError(PgtrunkError):
    """A file of the configuration (ini, auth_file, HBA) cannot be used; the message begins with `file:line: `."""

    sqlstate = "F0000"

    def __init__(self, message: str, *, path: str | None = None, line: int | None = None) -> None:
        self.message = message
        self.path = path
        self.line = line
        """Counted from 1; None when it is about the file as a whole."""
        where = "".join(f"{part}:" for part in (path, line) if part is not None)
        super().__init__(f"{where} {message}" if where else message)


class AuthenticationFailed(GatewayError):
    """The password or the SCRAM proof is wrong, or the user is unknown: the client cannot tell which."""

    sqlstate = "28P01"
    default = "password authentication failed"


class LoginRefused(GatewayError):
    """This login is refused whatever its password: the rules say so, or the user may not log in without one."""

    sqlstate = "28000"
    default = "login rejected"


class TooManyFailures(LoginRefused):
    """login_failure_limit is reached: this address must wait before it may try again."""

    default = "too many failed logins from this address"


class LoginTimeout(GatewayError):
    """client_login_timeout passed before the login was complete (57014, as for Postgres' authentication_timeout)."""

    sqlstate = "57014"
    default = "client_login_timeout"


class LookupFailed(GatewayError):
    """auth_query, or what leads to a user, is at fault: PgBouncer's words for it; `log` has the reason."""

    sqlstate = "F0000"
    default = "bouncer config error"


class NoSuchDatabase(GatewayError):
    """The database is not in [databases], or is disabled. Said after the login only, so that names cannot be probed."""

    sqlstate = "3D000"
    default = "no such database"


class TooManyConnections(GatewayError):
    """max_client_conn or one of its relatives is reached."""

    sqlstate = "53300"
    default = "no more connections allowed"


class QueryWaitTimeout(GatewayError):
    """No backend became free within query_wait_timeout."""

    sqlstate = "53300"
    default = "query_wait_timeout"


class QueryCanceled(GatewayError):
    """A cancel request reached a session that waited, or query_timeout passed (then with severity FATAL)."""

    sqlstate = "57014"
    severity = "ERROR"
    default = "canceling statement due to user request"


class IdleTransactionTimeout(GatewayError):
    """idle_transaction_timeout passed inside an open transaction."""

    sqlstate = "25P03"
    default = "idle transaction timeout"


class TransactionTimeout(GatewayError):
    """transaction_timeout passed before the transaction ended."""

    sqlstate = "25P04"
    default = "transaction timeout"


class IdleSessionTimeout(GatewayError):
    """client_idle_timeout passed between transactions."""

    sqlstate = "57P05"
    default = "client_idle_timeout"


class InvalidCommand(GatewayError):
    """What was typed at the console is no command."""

    sqlstate = "42601"
    severity = "ERROR"
    default = "invalid command"


class InvalidArgument(GatewayError):
    """A command of the console cannot do this with its argument."""

    sqlstate = "22023"
    severity = "ERROR"
    default = "bad arguments"


class NotAllowed(GatewayError):
    """The console is not for this user, or not this command of it."""

    sqlstate = "42501"
    severity = "ERROR"
    default = "admin access needed"


class ShuttingDown(GatewayError):
    """The session is ended by an administrator or by the end of the gateway."""

    sqlstate = "57P01"
    default = "pooler is shutting down"


class CannotConnectNow(GatewayError):
    """The gateway takes no new sessions: it is starting, or draining."""

    sqlstate = "57P03"
    default = "pooler is not accepting connections"


class WorkerLost(GatewayError):
    """Another process of the fleet has gone, or does not answer."""

    sqlstate = "58000"
    severity: Severity = "ERROR"
    default = "a worker of the fleet has gone"


class BackendUnavailable(GatewayError):
    """No connection to Postgres can be opened (08001 as postgres_fdw and dblink say it)."""

    sqlstate = "08001"
    default = "cannot connect to the server"


class BackendLost(GatewayError):
    """The backend that held this session's transaction is gone."""

    sqlstate = "08006"
    default = "server connection was lost"


class BackendRefused(GatewayError):
    """Postgres refused the gateway's own login: its message, and its SQLSTATE in place of the one here."""

    sqlstate = "08004"
    default = "server login failed"


class ProtocolError(GatewayError):
    """The client broke the protocol; where the stream of messages stays in step, say severity ERROR."""

    sqlstate = "08P01"
    default = "protocol violation"


class NotSupported(GatewayError):
    """A legal request that this gateway does not serve."""

    sqlstate = "0A000"
    severity = "ERROR"
    default = "not supported"


class NoSuchStatement(GatewayError):
    """Bind, Describe or Execute of a prepared statement that this session does not have."""

    sqlstate = "26000"
    severity = "ERROR"
    default = "prepared statement does not exist"


class DuplicateStatement(GatewayError):
    """Parse of a name that this session has in use."""

    sqlstate = "42P05"
    severity = "ERROR"
    default = "prepared statement already exists"


class FailedTransaction(GatewayError):
    """A command inside a transaction that has failed."""

    sqlstate = "25P02"
    severity = "ERROR"
    default = "current transaction is aborted, commands ignored until end of transaction block"


class MessageTooLarge(GatewayError):
    """A message is longer than max_packet_size; ``missing`` octets of it are still to come."""

    sqlstate = "54000"
    default = "message is too large"
    missing: int = 0


class InternalError(GatewayError):
    """A fault of the gateway itself; this session is closed, the others go on."""

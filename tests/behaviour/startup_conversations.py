"""Conversations that begin with what their startup packet asks for, as in :mod:`behaviour.portal_conversations`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from behaviour.role_conversations import WHO
from behaviour.setting_conversations import LOOKS, READ, ROLE, TENANT, show
from behaviour.statement_conversations import batch, once, run, said
from pgtrunk.wire.frontend import parse

if TYPE_CHECKING:
    from behaviour.portal_conversations import Step

__all__ = ["STARTUPS"]

STARTUPS: Final[dict[str, tuple[dict[str, str], list[Step]]]] = {
    "what is reported": (
        {"application_name": "starts", "TimeZone": "Asia/Tokyo", "DateStyle": "German, DMY"},
        [
            show(b"application_name", b"timezone", b"datestyle"),
            *LOOKS,
            said(b"begin; set application_name = 'in'; set timezone = 'UTC'"),
            said(b"rollback"),
            show(b"application_name", b"timezone", b"datestyle"),
            said(b"set application_name = 'later'"),
            show(b"application_name", b"timezone"),
        ],
    ),
    "what is not": (
        {"options": "-c work_mem=2345kB -c app.tenant=a\\ b --lock-timeout=5s"},
        [
            READ,
            show(b"lock_timeout"),
            said(b"set work_mem = '3MB'"),
            READ,
            said(b"reset work_mem"),
            READ,
            said(b"reset all"),
            READ,
            said(b"set app.tenant = 'c'; set work_mem = '4MB'; set lock_timeout = 0"),
            said(b"discard all"),
            READ,
            show(b"lock_timeout"),
        ],
    ),
    "both say it": (
        {"options": "-c application_name=option -c work_mem=2MB", "application_name": "parameter"},
        [READ, said(b"begin"), READ, said(b"commit")],
    ),
    "an encoding": (
        {"client_encoding": "LATIN1"},
        [
            said(b"select '\xe4', length('\xe4'), chr(228)"),
            said(b"set app.tenant = '\xe4'"),
            said(TENANT),
            batch(parse(b"s", b"select chr(228) || $1"), run(b"s", b"\xf6")),
            said(b"select chr(8364)"),
            said(b"set client_encoding = 'utf8'"),
            said(TENANT),
            batch(run(b"s", "ö".encode())),
        ],
    ),
    "a search_path": (
        {"search_path": '"$user", pg_catalog'},
        [
            show(b"search_path"),
            said(b"select count(*) from t"),
            said(b"set search_path = public"),
            said(b"select count(*) from t"),
        ],
    ),
    "a role": (
        {"options": f"-c role={ROLE}"},
        [
            WHO,
            said(b"insert into t values (1)"),
            said(b"set role none"),
            WHO,
            said(b"insert into t values (1)"),
            said(b"set role " + ROLE.encode()),
            said(b"discard all"),
            WHO,
        ],
    ),
    "how transactions shall be": (
        {"default_transaction_isolation": "serializable", "default_transaction_read_only": "on"},
        [
            said(b"insert into t values (1)"),
            said(b"begin"),
            show(b"transaction_isolation", b"transaction_read_only"),
            said(b"rollback"),
            said(b"begin isolation level read committed, read write"),
            show(b"transaction_isolation"),
            said(b"insert into t values (1)"),
            said(b"commit"),
            batch(once(b"insert into t values (2)")),
        ],
    ),
    "timeouts": (
        {"options": "-c statement_timeout=250ms"},
        [
            said(b"select pg_sleep(20)"),
            said(b"set statement_timeout = 0"),
            said(b"select 1 from pg_sleep(0.3)"),
            said(b"begin; set local statement_timeout = '250ms'; select pg_sleep(20)"),
            said(b"rollback"),
        ],
    ),
    "nothing of it matters": (
        {"application_name": "", "client_encoding": "UTF8", "replication": "off", "options": ""},
        [READ, said(b"select 1")],
    ),
}

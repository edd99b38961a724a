"""Conversations about who a session is, and what RESET and DISCARD leave of it, as in
:mod:`behaviour.portal_conversations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from behaviour.setting_conversations import READ, ROLE, show
from behaviour.statement_conversations import batch, once, run, said
from pgtrunk.wire.frontend import parse

if TYPE_CHECKING:
    from behaviour.portal_conversations import Step

__all__ = ["ROLES", "WHO"]

WHO: Final = said(b"select current_user, session_user, current_setting('role')")

ROLES: Final[dict[str, list[Step]]] = {
    "RESET ALL": [
        said(b"set work_mem = '2MB'; set application_name = 'a'; set app.tenant = 'b'; set timezone = 'Asia/Tokyo'"),
        READ,
        said(b"begin; reset all; rollback"),
        READ,
        said(b"reset all"),
        READ,
        show(b"timezone"),
        batch(once(b"set work_mem = '3MB'")),
        batch(once(b"reset all")),
        READ,
    ],
    "DISCARD ALL": [
        said(b"set work_mem = '2MB'; set application_name = 'a'; set app.tenant = 'b'; set role " + ROLE.encode()),
        batch(parse(b"s", b"select 1")),
        READ,
        said(b"discard all"),
        READ,
        WHO,
        batch(run(b"s")),
        said(b"set work_mem = '3MB'"),
        batch(once(b"discard all")),
        READ,
    ],
    "DISCARD where it may not be": [
        said(b"set work_mem = '2MB'"),
        said(b"begin"),
        said(b"discard all"),
        said(b"rollback"),
        READ,
        said(b"select 1; discard all"),
        READ,
        said(b"discard plans"),
        said(b"discard sequences; discard temp"),
        said(b"begin; discard plans; commit"),
        READ,
    ],
    "roles": [
        WHO,
        said(b"set role " + ROLE.encode()),
        WHO,
        said(b"insert into t values (1)"),
        said(b"select count(*) from t"),
        said(b"reset role"),
        WHO,
        said(b"set role '" + ROLE.encode() + b"'"),
        said(b"set role none"),
        WHO,
        said(b"set role app; set role nobody_at_all"),
        WHO,
        said(b"set role postgres"),
        said(b"insert into t values (2)"),
    ],
    "roles in transactions": [
        said(b"begin"),
        said(b"set role " + ROLE.encode()),
        WHO,
        said(b"rollback"),
        WHO,
        said(b"begin; set local role " + ROLE.encode()),
        WHO,
        said(b"commit"),
        WHO,
        said(b"begin; savepoint a; set role " + ROLE.encode() + b"; rollback to a; commit"),
        WHO,
        said(b"begin; set role " + ROLE.encode() + b"; savepoint a; reset role; rollback to a; commit"),
        WHO,
        batch(once(b"set role none")),
        WHO,
    ],
    "a role and RESET ALL": [
        said(b"set role " + ROLE.encode() + b"; set work_mem = '2MB'"),
        said(b"reset all"),
        WHO,
        READ,
        said(b"discard all"),
        WHO,
    ],
    "session authorization": [
        said(b"set session authorization app"),
        WHO,
        said(b"set session authorization " + ROLE.encode()),
        said(b"set role " + ROLE.encode()),
        said(b"set session authorization default"),
        WHO,
        said(b"set role " + ROLE.encode()),
        said(b"reset session authorization"),
        WHO,
        said(b"begin; set local session authorization app; rollback"),
        show(b"session_authorization"),
    ],
}

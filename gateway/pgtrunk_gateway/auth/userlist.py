"""auth_file: who may log in, and with which secret. PgBouncer's grammar ("Authentication file format" in its manual).

Each entry is `"user" "secret"` on a line of its own; a quote inside is doubled; what follows the secret is ignored;
`;` at the start of a line makes it a comment; of two entries for one user the later counts.

One thing is read that PgBouncer ignores, for passwords that are being changed: in

    "user" "secret" previous "secret"

both secrets let the user in, and the first one serves the login at Postgres. PgBouncer takes the first and ignores the
rest, so no file means more here than its author meant: the old line of two for one user, say, stays without effect.

Where PgBouncer meets a line that it cannot read it logs "broken auth file", forgets the rest of the file and goes on.
Here such a file is refused as a whole, with file and line, so that a reload keeps the users that it had. Two more
things are errors here, since PgBouncer makes wrong pairs of user and password of them: a line that ends inside quotes
or between user and secret (it takes the next line's user name for the password), and a zero octet (it cuts there).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pgtrunk_gateway.auth.secret import MD5, Plain, Secret, parse_secret
from pgtrunk_gateway.errors import ConfigError

__all__ = ["MAX_SECRET", "MAX_USER", "Userlist"]

MAX_USER = 127
"""Octets of a user name between its quotes; PgBouncer's MAX_USERNAME less its zero."""
MAX_SECRET = 65530
"""Octets of a secret between its quotes; PgBouncer's MAX_PASSWORD less its zero."""

# Possessive, so that `"a""b"` is never read anew as two fields.
_QUOTED = rb'"((?:[^"]|"")*+)"'
# PgBouncer looks for the next quote, whatever stands before it.
_ENTRY = re.compile(rb'%b[^"]*%b' % (_QUOTED, _QUOTED), re.DOTALL)
_PREVIOUS = re.compile(rb"[ \t]+previous(?![^\s\"])")
_PREVIOUS_SECRET = re.compile(rb"\s*%b" % _QUOTED, re.DOTALL)
_BLANK = b" \t\r\v\f"


class Userlist:
    """The users of one auth_file and their secrets. Immutable: a reload makes another."""

    __slots__ = ("_secrets", "usable", "usable_for_scram")

    def __init__(self, secrets: Mapping[str, Secret], previous: Mapping[str, Secret] | None = None) -> None:
        self._secrets: dict[str, tuple[Secret, ...]] = {user: (secret,) for user, secret in secrets.items()}
        for user, secret in (previous or {}).items():
            self._secrets[user] += (secret,)
        self.usable = tuple(secret for secret in secrets.values() if secret != Plain(""))
        """The secrets that let somebody in: a user who does not exist is shown to have one like these."""
        self.usable_for_scram = tuple(secret for secret in self.usable if not isinstance(secret, MD5))

    @classmethod
    def parse(cls, data: bytes, path: str) -> Userlist:
        """The users in `data`, the content of the file `path` (named in errors).

        Raises `ConfigError`, with file and line, for the first line that is no entry.
        """
        secrets: dict[str, Secret] = {}
        previous: dict[str, Secret] = {}
        for number, line in enumerate(data.split(b"\n"), 1):
            try:
                entry = _parse_line(line)
            except ConfigError as error:
                raise ConfigError(error.message, path=path, line=number) from None
            if entry is not None:
                user, secret, former = entry
                secrets[user] = secret
                previous.pop(user, None)
                if former is not None:
                    previous[user] = former
        return cls(secrets, previous)

    def get(self, user: str) -> Secret | None:
        """The secret of `user`, None for an unknown one. An empty `Plain` is a user without a password."""
        secrets = self._secrets.get(user)
        return None if secrets is None else secrets[0]

    def secrets(self, user: str) -> tuple[Secret, ...] | None:
        """All secrets that let `user` in, the present one first; None for an unknown one."""
        return self._secrets.get(user)

    def __contains__(self, user: object) -> bool:
        return user in self._secrets

    def __iter__(self) -> Iterator[str]:
        return iter(self._secrets)

    def __len__(self) -> int:
        return len(self._secrets)

    def __repr__(self) -> str:
        return f"<Userlist of {len(self)}>"


def _parse_line(line: bytes) -> tuple[str, Secret, Secret | None] | None:
    line = line.lstrip(_BLANK)
    if not line or line.startswith(b";"):
        return None
    match = _ENTRY.match(line)
    if match is None:
        raise ConfigError(_complaint(line))
    user, secret = match.groups()
    if len(user) > MAX_USER:
        raise ConfigError(f"user name of {len(user)} octets; at most {MAX_USER} are possible")
    if b"\0" in match[0]:
        raise ConfigError("a zero octet in user name or secret")
    return _unquote(user), _parse_secret(secret), _parse_previous(line[match.end() :])


def _parse_previous(rest: bytes) -> Secret | None:
    word = _PREVIOUS.match(rest)
    if word is None:
        return None
    match = _PREVIOUS_SECRET.match(rest, word.end())
    if match is None:
        raise ConfigError('expected "secret" in quotes behind the word previous; a quote inside is doubled')
    if b"\0" in match[1]:
        raise ConfigError("a zero octet in the previous secret")
    return _parse_secret(match[1])


def _parse_secret(quoted: bytes) -> Secret:
    if len(quoted) > MAX_SECRET:
        raise ConfigError(f"secret of {len(quoted)} octets; at most {MAX_SECRET} are possible")
    return parse_secret(_unquote(quoted))


def _unquote(quoted: bytes) -> str:
    return quoted.replace(b'""', b'"').decode("utf-8", "surrogateescape")


def _complaint(line: bytes) -> str:
    # The line itself is never shown: it may hold a password.
    if not line.startswith(b'"'):
        return 'expected an entry, "user" "secret", or a comment that begins with ";"'
    if re.match(_QUOTED, line) is None:
        return "the quotes of the user name are not closed on this line; a quote inside is doubled"
    return 'expected "secret" in quotes behind the user name, on the same line; a quote inside is doubled'

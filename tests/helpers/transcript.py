"""What a server said, as lines that a person can read and a test can compare."""

from __future__ import annotations

import itertools
import struct

from pgtrunk.wire import backend as server
from pgtrunk.wire.framing import HEADER_SIZE, messages

_PLAIN = {
    "1": "ParseComplete",
    "2": "BindComplete",
    "3": "CloseComplete",
    "I": "EmptyQueryResponse",
    "n": "NoData",
    "s": "PortalSuspended",
    "c": "CopyDone",
    "G": "CopyInResponse",
    "H": "CopyOutResponse",
    "W": "CopyBothResponse",
    "V": "FunctionCallResponse",
}


def transcript(data: bytes) -> list[str]:
    """One line per message; ``data`` must end with a whole one.

    ParameterStatus messages that come together are sorted: Postgres gives them in no order.
    """
    lines, end = [], 0
    for kind, start, end in messages(data):
        lines.append(line(chr(kind), data[start + HEADER_SIZE : end]))
    assert end == len(data), f"a message in part: {data[end:]!r}"
    return [
        text
        for reports, group in itertools.groupby(lines, key=lambda text: text.startswith("ParameterStatus"))
        for text in (sorted(group) if reports else group)
    ]


def line(kind: str, body: bytes) -> str:
    """One message. Of errors and notices only what does not depend on the server's version and source code."""
    match kind:
        case "C":
            return f"CommandComplete {body[:-1].decode()}"
        case "D":
            return f"DataRow {', '.join(_columns(body))}"
        case "E" | "N":
            fields = server.parse_error(body)
            name = "ErrorResponse" if kind == "E" else "NoticeResponse"
            return f"{name} {fields.severity} {fields.sqlstate} {fields.message}"
        case "S":
            return "ParameterStatus {}={}".format(*server.parse_parameter_status(body))
        case "T":
            return f"RowDescription {', '.join(_fields(body))}"
        case "Z":
            return f"ReadyForQuery {body.decode()}"
        case "d":
            return f"CopyData {body!r}"
        case "t":
            (count,) = struct.unpack_from("!H", body)
            return f"ParameterDescription {list(struct.unpack_from(f'!{count}I', body, 2))}"
        case "A":
            return f"NotificationResponse {body[4:]!r}"
        case "K":
            return "BackendKeyData"
        case "R":
            return f"Authentication {struct.unpack_from('!i', body)[0]}"
    return _PLAIN[kind]


def _columns(body: bytes) -> list[str]:
    (count,) = struct.unpack_from("!h", body)
    at, values = 2, []
    for _ in range(count):
        (size,) = struct.unpack_from("!i", body, at)
        at += 4
        values.append("NULL" if size < 0 else body[at : at + size].decode("latin-1"))
        at += max(size, 0)
    assert at == len(body)
    return values


def _fields(body: bytes) -> list[str]:
    (count,) = struct.unpack_from("!h", body)
    at, fields = 2, []
    for _ in range(count):
        end = body.index(0, at)
        oid = struct.unpack_from("!ihihih", body, end + 1)[2]
        fields.append(f"{body[at:end].decode(errors='backslashreplace')}:{oid}")
        at = end + 19
    assert at == len(body)
    return fields

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pgtrunk import StreamManager
from pgtrunk.errors import UsageError
from pgtrunk.options import ticket_store
from pgtrunk.quic.ticket_store import FileTickets, MemoryTickets

if TYPE_CHECKING:
    from pathlib import Path


def test_tickets_are_in_memory_in_a_file_or_nowhere(tmp_path: Path) -> None:
    assert type(ticket_store("memory")) is MemoryTickets
    assert type(ticket_store(tmp_path / "tickets")) is FileTickets
    assert type(ticket_store(str(tmp_path / "tickets"))) is FileTickets
    assert ticket_store(None) is None


@pytest.mark.parametrize("tickets", ["", 5, b"/tmp/x", False])
def test_anything_else_is_refused(tickets: Any) -> None:
    with pytest.raises(UsageError, match="tickets="):
        StreamManager("127.0.0.1", tickets=tickets)


def test_a_file_that_others_can_read_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "tickets"
    path.write_text("{}")
    path.chmod(0o644)
    with pytest.raises(UsageError, match=r"mode 0644.*chmod 600"):
        StreamManager("127.0.0.1", tickets=path)

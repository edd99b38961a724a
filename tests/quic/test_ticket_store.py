from __future__ import annotations

import json
import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from aioquic.tls import CipherSuite, SessionTicket
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgtrunk.errors import UsageError
from pgtrunk.quic.ticket_store import FORMAT, MOST_GATEWAYS, MOST_TICKETS, FileTickets, Kept, MemoryTickets, TicketStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW = 1_800_000_000.0
TICKET = SessionTicket(
    age_add=77,
    cipher_suite=CipherSuite.AES_256_GCM_SHA384,
    not_valid_before=datetime.fromtimestamp(NOW, UTC),
    not_valid_after=datetime.fromtimestamp(NOW + 3600, UTC),
    resumption_secret=b"s" * 48,
    server_name="gateway",
    ticket=b"t" * 300,
    max_early_data_size=0xFFFFFFFF,
    other_extensions=[(57, b"parameters")],
)
AT = "192.0.2.1:6432"
KEPT = Kept(TICKET, "pgtrunk/1", AT, NOW + 86400)


def numbered(number: int) -> Kept:
    return replace(KEPT, ticket=replace(TICKET, age_add=number))


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TicketStore:
    return MemoryTickets() if request.param == "memory" else FileTickets(str(tmp_path / "tickets"))


def test_a_ticket_comes_back_whole_and_once(store: TicketStore) -> None:
    store.put("gw:6432", KEPT, NOW)
    assert store.take("other:6432", AT, NOW) is None
    assert store.take("gw:6432", AT, NOW) == KEPT
    assert store.take("gw:6432", AT, NOW) is None


def test_the_newest_is_used_first_and_the_oldest_are_forgotten(store: TicketStore) -> None:
    for number in range(MOST_TICKETS + 3):
        store.put("gw:6432", numbered(number), NOW)
    taken = [store.take("gw:6432", AT, NOW) for _ in range(MOST_TICKETS + 1)]
    assert taken == [*(numbered(number) for number in range(MOST_TICKETS + 2, 2, -1)), None]


def test_a_ticket_from_the_same_address_is_better_than_a_newer_one(store: TicketStore) -> None:
    elsewhere = replace(KEPT, at="192.0.2.2:6432")
    for each in (KEPT, elsewhere, elsewhere):
        store.put("gw:6432", each, NOW)
    assert [store.take("gw:6432", AT, NOW) for _ in range(4)] == [KEPT, elsewhere, elsewhere, None]


def test_a_ticket_is_not_used_after_its_time_nor_after_the_certificate_s(store: TicketStore) -> None:
    store.put("gw:6432", KEPT, NOW)
    assert store.take("gw:6432", AT, NOW + 3600) is None
    store.put("other:6432", replace(KEPT, until=NOW + 10), NOW)
    assert store.take("other:6432", AT, NOW + 10) is None


def test_gateways_that_were_not_used_for_long_are_forgotten(store: TicketStore) -> None:
    for number in range(MOST_GATEWAYS + 1):
        store.put(f"gw{number}:6432", KEPT, NOW)
    assert store.take("gw0:6432", AT, NOW) is None
    assert store.take(f"gw{MOST_GATEWAYS}:6432", AT, NOW) == KEPT


def test_doubt_lasts_until_the_gateway_answers(store: TicketStore) -> None:
    store.doubt("gw:6432")
    assert store.is_doubted("gw:6432")
    assert not store.is_doubted("other:6432")
    store.trust("gw:6432")
    assert not store.is_doubted("gw:6432")


# Files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tickets"


def test_only_its_owner_may_read_the_file(path: Path) -> None:
    FileTickets(str(path)).put("gw:6432", KEPT, NOW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert FileTickets(str(path)).take("gw:6432", AT, NOW) == KEPT
    assert sorted(os.listdir(path.parent)) == ["tickets", "tickets.lock"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_can_use_is_refused(path: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    store = FileTickets(str(path))
    store.put("gw:6432", KEPT, NOW)
    path.chmod(mode)
    with pytest.raises(UsageError, match=rf"mode {mode:04o}.*chmod 600"):
        FileTickets(str(path))
    before = path.read_bytes()
    assert store.take("gw:6432", AT, NOW) is None
    store.put("gw:6432", KEPT, NOW)
    assert path.read_bytes() == before, "nor is anything written into it"
    assert len(caplog.records) == 1
    path.chmod(0o600)
    assert store.take("gw:6432", AT, NOW) == KEPT


def test_a_symbolic_link_is_refused(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.write_text("{}")
    elsewhere.chmod(0o600)
    path.symlink_to(elsewhere)
    with pytest.raises(UsageError, match="no regular file"):
        FileTickets(str(path))


def test_a_directory_that_is_not_there_is_told_at_once(path: Path) -> None:
    with pytest.raises(UsageError, match="there is no directory"):
        FileTickets(str(path / "below"))


def valid(path: Path) -> bytes:
    FileTickets(str(path)).put("gw:6432", KEPT, NOW)
    return path.read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:100],
        lambda data: b"\xff" + data,
        lambda data: data.replace(FORMAT.encode(), b"another"),
        lambda data: b"[]",
        lambda data: json.dumps({"format": FORMAT, "gateways": {"gw:6432": [{}]}}).encode(),
        lambda data: data.replace(b'"suite":4866', b'"suite":1'),
        lambda data: data.replace(b'"to":', b'"to":1e300,"x":'),
        lambda data: b"[" * 100_000,
    ],
)
def test_a_corrupt_file_is_no_ticket_and_one_warning(
    path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(damage(valid(path)))
    store = FileTickets(str(path))
    assert store.take("gw:6432", AT, NOW) is None
    assert store.take("gw:6432", AT, NOW) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(path) in caplog.text
    store.put("gw:6432", KEPT, NOW)
    assert FileTickets(str(path)).take("gw:6432", AT, NOW) == KEPT


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(at=st.integers(0, 10_000), by=st.binary(max_size=4))
def test_no_damage_raises(path: Path, at: int, by: bytes) -> None:
    data = valid(path)
    at %= len(data)
    path.write_bytes(data[:at] + by + data[at + 1 :])
    store = FileTickets(str(path))
    store.take("gw:6432", AT, NOW)
    store.put("gw:6432", KEPT, NOW)


def test_who_finds_the_file_locked_goes_without(path: Path) -> None:
    store = FileTickets(str(path))
    store.put("gw:6432", KEPT, NOW)
    with store._locked():
        other = FileTickets(str(path))
        assert other.take("gw:6432", AT, NOW) is None
        other.put("gw:6432", numbered(1), NOW)
    assert store.take("gw:6432", AT, NOW) == KEPT


def test_a_directory_that_cannot_be_written_is_warned_of(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = FileTickets(str(path))
    path.with_name("tickets.lock").mkdir()
    store.put("gw:6432", KEPT, NOW)
    assert store.take("gw:6432", AT, NOW) is None
    assert "handshakes are made in full" in caplog.text


def writer(path: str, number: int) -> list[int]:
    """Puts and takes at the side of others; returns the tickets that it has taken."""
    store, taken = FileTickets(path), []
    for turn in range(60):
        store.put("gw:6432", numbered(number * 1000 + turn), NOW)
        kept = store.take("gw:6432", AT, NOW)
        if kept is not None:
            taken.append(kept.ticket.age_add)
    return taken


def test_of_several_writers_none_takes_what_another_has(path: Path) -> None:
    # Threads are to a lock on a file what processes are: each has opened the file for itself.
    with ThreadPoolExecutor(3) as pool:
        taken = [each for some in pool.map(writer, [str(path)] * 3, range(3)) for each in some]
    assert len(taken) == len(set(taken))
    assert len(taken) > 60
    FileTickets(str(path)).put("gw:6432", KEPT, NOW)
    assert FileTickets(str(path)).take("gw:6432", AT, NOW) == KEPT

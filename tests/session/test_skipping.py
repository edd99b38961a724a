"""What needs no backend: skipping to Sync, refused requests, and what means nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk.wire.framing import encode
from pgtrunk.wire.frontend import (
    COPY_DONE_MESSAGE,
    FLUSH_MESSAGE,
    KINDS,
    SYNC,
    SYNC_MESSAGE,
    TERMINATE,
    TERMINATE_MESSAGE,
    bind,
    copy_data,
    copy_fail,
    execute,
    parse,
    query,
)
from pgtrunk_gateway.session.skipping import asks_for_answers, skip_batch, skip_idle, skip_refused

SELECT = query(b"select 1")
BATCH = parse(b"", b"x") + bind(b"", b"") + execute()
CALL = encode(b"F", bytes(10))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", (0, b"")),
        (SYNC_MESSAGE, (SYNC, b"")),
        (BATCH, (0, b"")),
        (BATCH + SYNC_MESSAGE, (SYNC, b"")),
        (BATCH + SYNC_MESSAGE + SELECT, (SYNC, SELECT)),
        (SELECT + CALL + BATCH + SYNC_MESSAGE * 2, (SYNC, SYNC_MESSAGE)),
        (TERMINATE_MESSAGE + SYNC_MESSAGE, (TERMINATE, SYNC_MESSAGE)),
        (BATCH + query(bytes(100))[:50], (0, b"")),
    ],
)
def test_a_batch_is_skipped_to_its_sync(data: bytes, expected: tuple[int, bytes]) -> None:
    assert skip_batch(data) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (SELECT, (SYNC, b"")),
        (SELECT + SELECT, (SYNC, SELECT)),
        (CALL + SYNC_MESSAGE, (SYNC, SYNC_MESSAGE)),
        (query(bytes(100))[:50], (SYNC, b"")),
        (BATCH + SELECT, (0, b"")),
        (BATCH + SELECT + SYNC_MESSAGE + SELECT, (SYNC, SELECT)),
        (SYNC_MESSAGE + SELECT, (SYNC, SELECT)),
    ],
)
def test_a_refused_query_ends_itself_and_a_batch_with_its_sync(data: bytes, expected: tuple[int, bytes]) -> None:
    assert skip_refused(data) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", b""),
        (FLUSH_MESSAGE, b""),
        (copy_data(b"1\n") + COPY_DONE_MESSAGE, b""),
        (copy_fail(b"no") + FLUSH_MESSAGE + SELECT + FLUSH_MESSAGE, SELECT + FLUSH_MESSAGE),
        (copy_data(bytes(100))[:50], b""),
        (SYNC_MESSAGE + copy_data(b""), SYNC_MESSAGE + copy_data(b"")),
    ],
)
def test_what_means_nothing_outside_a_batch(data: bytes, expected: bytes) -> None:
    assert skip_idle(data) == expected


@given(st.lists(st.sampled_from(sorted(KINDS)), max_size=8))
def test_they_end_at_a_message(kinds: list[int]) -> None:
    messages = [encode(bytes([kind]), b"body") for kind in kinds]
    data = b"".join(messages)
    ends = {b"".join(messages[at:]) for at in range(len(messages) + 1)}
    assert skip_batch(data)[1] in ends
    assert skip_idle(data) in ends
    if data:
        assert skip_refused(data)[1] in ends


@pytest.mark.parametrize(
    "asking",
    [SYNC_MESSAGE, FLUSH_MESSAGE, SELECT, CALL, TERMINATE_MESSAGE, COPY_DONE_MESSAGE, copy_data(b"x"), BATCH[:-1]],
)
def test_what_makes_the_server_send_its_answers(asking: bytes) -> None:
    assert asks_for_answers(BATCH + asking, 0)
    assert asks_for_answers(asking, 0)


def test_what_does_not() -> None:
    assert not asks_for_answers(BATCH * 3, 0)
    assert not asks_for_answers(SYNC_MESSAGE + BATCH, len(SYNC_MESSAGE))
    assert not asks_for_answers(b"", 0)

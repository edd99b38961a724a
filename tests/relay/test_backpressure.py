"""Who does not read is not read for; who waits holds little; and whoever comes next finds nothing of it."""

from __future__ import annotations

from helpers.conversations import FLUSH, SYNC, run
from helpers.session_pair import SessionPair
from pgtrunk.wire.frontend import COPY_DONE_MESSAGE, copy_data, describe_statement, parse, query
from pgtrunk_gateway.session.state import State

CHUNK = 10 << 10


async def test_a_client_that_does_not_read_stops_its_backend() -> None:
    pair = SessionPair(backends=1)
    (link,) = pair.links
    client = pair.connect()
    client.send(query(b"begin"))
    client.session.pause_writing()
    assert link.transport.paused
    assert client.send(query(b"select 1")) == []
    client.session.resume_writing()
    assert not link.transport.paused
    pair.pump()
    assert client.read()[-1] == "ReadyForQuery T"


async def test_a_client_that_reads_no_more_when_all_has_come_keeps_no_backend() -> None:
    pair = SessionPair(backends=1)
    (link,) = pair.links
    client, other = pair.connect(), pair.connect()
    client.feed(query(b"select 1"))
    answer = link.model.feed(link.transport.take())
    client.session.relay = lambda data: client.session.pause_writing()
    link.backend.data_received(answer)
    assert client.session.state is State.IDLE
    assert not link.transport.paused
    assert len(other.send(query(b"select 1"))) == 4


async def test_the_next_backend_of_a_client_that_does_not_read_is_stopped_too() -> None:
    pair = SessionPair(backends=1)
    (link,) = pair.links
    client = pair.connect()
    client.session.pause_writing()
    client.feed(query(b"select 1"))
    assert link.transport.paused
    pair.pump()
    assert client.read() == []
    client.session.resume_writing()
    pair.pump()
    assert len(client.read()) == 4
    assert not link.transport.paused
    pair.check_idle()


async def test_the_same_of_one_that_waited_for_it() -> None:
    pair = SessionPair(backends=0)
    client = pair.connect()
    client.session.pause_writing()
    client.feed(query(b"select 1"))
    link = pair.open_backend()
    assert link.transport.paused


async def test_a_full_backend_stops_its_client_until_it_drains() -> None:
    pair = SessionPair(backends=1)
    (link,) = pair.links
    client = pair.connect()
    client.send(query(b"copy t from stdin"))
    link.backend.pause_writing()
    assert client.transport.paused
    link.backend.resume_writing()
    assert not client.transport.paused
    assert client.send(copy_data(b"1\n") + COPY_DONE_MESSAGE) == ["CommandComplete COPY 1", "ReadyForQuery I"]


async def test_a_client_is_read_again_when_its_full_backend_is_given_back() -> None:
    """A COPY that fails ends the lease while its data is still on its way."""
    pair = SessionPair(backends=1)
    (link,) = pair.links
    client = pair.connect()
    client.send(query(b"copy t from stdin"))
    link.backend.pause_writing()
    client.feed(copy_data(b"x\n"))
    pair.pump()
    assert client.read()[-1] == "ReadyForQuery I"
    assert client.session.state is State.IDLE
    assert not client.transport.paused
    # What the backend says of its socket from now on is about nobody.
    link.backend.resume_writing()
    link.backend.pause_writing()
    assert not client.transport.paused


async def test_who_waits_holds_little_and_is_read_again_afterwards() -> None:
    pair = SessionPair(backends=0)
    client = pair.connect()
    client.feed(query(b"select 1"))
    sent = 1
    while not client.transport.paused:
        client.feed(query(b"select '%s'" % (b"x" * CHUNK)))
        sent += 1
    assert sent < 5
    pair.open_backend()
    pair.pump()
    assert client.read().count("ReadyForQuery I") == sent
    assert not client.transport.paused


async def test_a_client_that_vanishes_can_be_seen_while_it_waits_with_little() -> None:
    pair = SessionPair(backends=0)
    client = pair.connect()
    client.feed(query(b"select 1"))
    assert not client.transport.paused
    assert client.session.eof_received() is False
    assert client.session.state is State.CLOSED


async def test_who_holds_for_the_gateways_own_sync_is_stopped_and_read_again() -> None:
    pair = SessionPair(backends=1)
    (link,) = pair.links
    client = pair.connect()
    client.feed(parse(b"s", b"select 1") + describe_statement(b"s") + FLUSH)
    assert client.session.state is State.HOLDING
    sent = 0
    while not client.transport.paused:
        client.feed(query(b"select '%s'" % (b"x" * CHUNK)))
        sent += 1
    assert sent < 5
    assert link.model.received == []
    pair.pump()
    received = client.read()
    assert received[:3] == ["ParseComplete", "ParameterDescription []", "RowDescription ?column?:23"]
    assert received.count("ReadyForQuery I") == sent
    assert not client.transport.paused
    assert client.send(run(b"s") + SYNC)[0] == "BindComplete"
    pair.check_idle()

"""Clients on one side, models of Postgres on the other, the real sessions and backends between them; no sockets.

    pair = SessionPair(backends=2)
    client = pair.connect()
    assert client.send(query(b"select 1")) == ["RowDescription ?column?:23", ...]

Everything happens when the test says so: what a session writes waits until :meth:`SessionPair.pump` carries it. By
default each lease gets another backend than the one before, and each hand-over is checked: a backend that is given back
must be as a new session would want to find it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from helpers.postgres_model import PostgresModel
from helpers.postgres_sql import DEFAULTS, OTHERS, Store
from helpers.postgres_state import is_custom
from helpers.transcript import transcript
from helpers.transports import FakeTransport
from pgtrunk.wire.backend import BackendKeyData
from pgtrunk_gateway.auth import LoginLimiter, LoginPolicy
from pgtrunk_gateway.cancel.keys import CancelKey
from pgtrunk_gateway.config.settings import Config
from pgtrunk_gateway.pool.backend import Backend
from pgtrunk_gateway.pool.target import Target
from pgtrunk_gateway.relay.admission import Admission
from pgtrunk_gateway.relay.context import Context
from pgtrunk_gateway.relay.session import Session
from pgtrunk_gateway.relay.terms import Terms
from pgtrunk_gateway.session.parameters import pack, profile, unpack
from pgtrunk_gateway.session.replies import Replies
from pgtrunk_gateway.session.statements import Catalogue, Prepared
from pgtrunk_gateway.stats.counters import PoolStats

if TYPE_CHECKING:
    from pgtrunk_gateway.pool.holder import Holder
    from pgtrunk_gateway.pool.pool import Pool
    from pgtrunk_gateway.session.parameters import Profile

__all__ = ["Link", "PairedClient", "ScriptedPool", "SessionPair", "Splitter", "pieces", "whole"]

Splitter = Callable[[bytes], Iterable[bytes]]
TARGET = Target(host="127.0.0.1", port=5432, dbname="db", user="user")


def whole(data: bytes) -> list[bytes]:
    """Chunks as they were written."""
    return [data]


class LoggedIn(Session):
    """A session whose login is none of the test's business."""

    def _start_login(self) -> None: ...


class Link:
    """A backend and the Postgres behind it."""

    def __init__(self, pool: ScriptedPool, model: PostgresModel, prepared: int) -> None:
        self.model = model
        self.pool = pool
        self.transport = FakeTransport()
        self.pending: list[bytes] = []
        """Chunks on their way from Postgres."""
        replies = Replies(Prepared(prepared), model.reported)
        key = BackendKeyData(model.pid, b"\0\0\0\1")
        self.backend = Backend(self.transport, TARGET, key, replies, on_free=pool.give, on_lost=pool.lost)
        self.backend.expires = float("inf")
        self.backend.stats = pool.stats

    def __repr__(self) -> str:
        return f"<Link {self.backend!r}>"

    def check_clean(self) -> None:
        """What the next session relies on."""
        replies = self.backend.replies
        assert not self.transport.take(), "something is on its way to a backend that is free"
        assert self.model.clean, "the backend is not clean"
        assert not replies.queue
        assert not replies.partial
        assert not replies.skipping
        assert not replies.copying
        assert replies.in_step
        for statement in replies.prepared:
            if replies.prepared.sure(statement, replies.batch):
                assert self.model.statements[statement.name.decode()].text == statement.body[: statement.body.index(0)]
        if not self.pool.forgives:
            self.check_nothing_left()

    def check_nothing_left(self) -> None:
        """What its last session has set, the next one knows of and can undo; and there is nothing else of it."""
        session, others = self.model.session, unpack(self.backend.replies.others)
        assert session.belongings.pins == 0
        made = session.belongings.made - DEFAULTS.keys()
        made = {name for name in made if session.settings[name] != OTHERS.get(name)}
        assert made <= others.keys()
        known = {name: value for name, value in others.items() if value is not None}
        assert {name: session.settings[name] for name in known} == known


class ScriptedPool:
    """As much of a pool as sessions see. ``choose`` picks one of the free backends by its place in the list."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.free: list[Backend] = []
        self.waiting: OrderedDict[Holder, float] = OrderedDict()
        self.choose: Callable[[list[Backend]], int] = lambda free: 0
        self.gone: list[str] = []
        self.forgives = False
        """Whether a backend may have what its last session has left: session_state = ignore."""
        self.sessions = 0
        self.taken: set[Profile] = set()
        self.welcome: dict[str, str] | None = {"in_hot_standby": "off"}
        self.is_mixed = False
        self.stats = PoolStats()

    def enter(self) -> None:
        self.sessions += 1

    def exit(self) -> None:
        self.sessions -= 1

    def take(self, holder: Holder) -> Backend | None:
        if not self.free or self.waiting:
            return None
        backend = self.free.pop(self.choose(self.free))
        backend.lease_to(holder)
        return backend

    def wait(self, holder: Holder, timeout: float) -> None:
        self.waiting[holder] = timeout

    def leave(self, holder: Holder) -> None:
        self.waiting.pop(holder, None)

    def give(self, backend: Backend) -> None:
        if backend.retired:
            backend.close(backend.retired)
            return
        next(link for link in self.links if link.backend is backend).check_clean()
        while self.waiting:
            holder, _ = self.waiting.popitem(last=False)
            backend.lease_to(holder)
            if holder.offer(backend):
                return
        backend.holder = None
        self.free.append(backend)

    def remember(self, settings: Profile) -> None:
        self.taken.add(settings)

    def lost(self, backend: Backend, reason: str) -> None:
        self.gone.append(reason)
        if backend in self.free:
            self.free.remove(backend)


class FakeCancels:
    """Remembers which backends were cancelled, and lets the model hear of it when the test says so."""

    def __init__(self) -> None:
        self.under_way: list[Backend] = []

    def register(self, session: object, *, long: bool = False) -> CancelKey:
        return CancelKey(1, bytes(32 if long else 4))

    def forget(self, key: CancelKey) -> None: ...

    async def serve(self, request: object, address: str | None) -> None:
        raise AssertionError("not here")

    def cancel(self, backend: Backend) -> None:
        backend.cancels += 1
        self.under_way.append(backend)


class PairedClient:
    """One client and its session."""

    def __init__(self, pair: SessionPair, settings: dict[str, str], others: dict[str, str]) -> None:
        self.pair = pair
        self.transport = FakeTransport(peername=("192.0.2.1", 40000))
        self.session = LoggedIn(pair.context, "tcp")
        self.session.connection_made(self.transport)
        self.outbox: list[bytes] = []
        self.received = b""
        self.session.admitted(
            Admission(
                context=pair.context,
                user="user",
                database="db",
                pool=cast("Pool", pair.pool),
                place=pair.context.tally.enter(1000),
                key=CancelKey(1, b"\0\0\0\0"),
                profile=profile({**DEFAULTS, **settings}, pack(others)),
                certain=pair.certain,
                terms=pair.terms,
            ),
            b"",
        )

    def write(self, data: bytes) -> None:
        """Sends without anything being carried yet."""
        self.outbox += [part for part in self.pair.split(data) if part]

    def send(self, data: bytes) -> list[str]:
        """Sends, and reads all that there is to read."""
        self.write(data)
        self.pair.pump()
        return self.read()

    def feed(self, data: bytes) -> None:
        """Hands ``data`` to the session as one chunk; nothing else happens."""
        self.session.data_received(data)

    def read(self) -> list[str]:
        self.received += self.transport.take()
        received, self.received = self.received, b""
        return transcript(received)

    def vanish(self) -> None:
        """The connection breaks."""
        self.outbox = []
        self.transport.closing = True
        self.session.connection_lost(ConnectionResetError())

    def deliver(self) -> bool:
        """Carries one chunk to the session -> whether there was one."""
        if not self.outbox or not self.transport.is_reading():
            return False
        self.session.data_received(self.outbox.pop(0))
        return True


class SessionPair:
    """All of it: one pool, its backends, and the clients that connect."""

    def __init__(
        self,
        *,
        backends: int = 2,
        prepared: int = 200,
        split: Splitter = whole,
        terms: Terms | None = None,
        lazy_begin: bool = False,
        certain: bool = True,
        **config: Any,
    ) -> None:
        self.store = Store()
        self.split = split
        self.terms = terms or Terms(tracked=prepared > 0, lazy_begin=lazy_begin)
        """What holds for the clients that connect."""
        self.certain = certain
        """Whether the clients' settings are known to be ones that the server takes."""
        self.pool = ScriptedPool()
        self.cancels = FakeCancels()
        self.context = Context(
            config=Config(max_prepared_statements=prepared, **config),
            catalogue=Catalogue(),
            policy=LoginPolicy(auth_type="any", userlist=None, mock_key=b"m" * 32),
            limiter=LoginLimiter(0, 60),
            cancels=self.cancels,
            derive=lambda derivation: asyncio_never(),
            pool=lambda entry, user: cast("Pool", self.pool),
            random=bytes,
        )
        self.links = self.pool.links
        self.clients: list[PairedClient] = []
        for _ in range(backends):
            self.open_backend()

    def open_backend(self) -> Link:
        """One more, which serves who waits."""
        model = PostgresModel(self.store, pid=len(self.links) + 1)
        link = Link(self.pool, model, self.context.config.max_prepared_statements)
        self.links.append(link)
        self.pool.give(link.backend)
        return link

    def connect(self, **settings: str) -> PairedClient:
        """A client with these settings; those that Postgres does not report are known by it."""
        others = {name: value for name, value in settings.items() if name in OTHERS or is_custom(name)}
        client = PairedClient(self, {name: value for name, value in settings.items() if name not in others}, others)
        self.clients.append(client)
        return client

    # -- time goes on --------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Carries everything until nothing moves any more."""
        while any([client.deliver() for client in self.clients] + [self.carry(link) for link in self.links]):
            pass

    def carry(self, link: Link) -> bool:
        """One exchange with a backend's Postgres -> whether anything moved."""
        sent = link.transport.take()
        for part in self.split(sent):
            if part:
                self.answer(link, link.model.feed(part))
        moved = bool(sent)
        if link.pending and link.transport.is_reading():
            link.backend.data_received(link.pending.pop(0))
            moved = True
        if link.model.closed and not link.pending and not link.transport.closing:
            link.transport.closing = True
            link.backend.connection_lost(None)
            moved = True
        return moved

    def answer(self, link: Link, data: bytes) -> None:
        """Puts ``data`` on its way from Postgres."""
        link.pending += [part for part in self.split(data) if part]

    def wake(self) -> None:
        """Whatever sleeps in Postgres is done."""
        for link in self.links:
            if link.model.running:
                self.answer(link, link.model.wake())
        self.pump()

    def finish_cancels(self) -> None:
        """The cancels that are under way reach Postgres, and their connections close."""
        cancels, self.cancels.under_way = self.cancels.under_way, []
        for backend in cancels:
            link = next(link for link in self.links if link.backend is backend)
            self.answer(link, link.model.cancel())
            self.pump()
            backend.cancel_ended()
        self.pump()

    # -- at the end ----------------------------------------------------------------------------------------------------

    def check_idle(self) -> None:
        """Nothing is leased, nothing is owed, every backend is as new."""
        open_links = [link for link in self.links if not link.transport.closing]
        assert len(self.pool.free) == len(open_links), self.links
        for link in open_links:
            link.check_clean()


async def asyncio_never() -> Any:
    """Passwords are not asked for here."""
    raise AssertionError("no password is derived here")


def pieces(size: int) -> Splitter:
    """Chunks of ``size`` octets."""

    def split(data: bytes) -> Iterator[bytes]:
        for at in range(0, len(data), size):
            yield data[at : at + size]

    return split

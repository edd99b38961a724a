"""Online restart, as the supervisor sees it that takes over. The other side, and what they say to each other, is in
:mod:`~pgtrunk_gateway.fleet.succession`.

The one before goes on with the clients that it has. What concerns both is decided here: places in Postgres
(:class:`~pgtrunk_gateway.fleet.teller.Teller`), and what administrators do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from pgtrunk_gateway.errors import ConfigError, GatewayError, WorkerLost
from pgtrunk_gateway.fleet import passing
from pgtrunk_gateway.fleet.bus import Bus
from pgtrunk_gateway.fleet.inventory import FORMAT, PLACES, Inventory, places_of
from pgtrunk_gateway.fleet.meeting import meet, point_of
from pgtrunk_gateway.fleet.teller import settle

if TYPE_CHECKING:
    from pgtrunk_gateway.config.load import Loaded
    from pgtrunk_gateway.fleet.bus import Answer
    from pgtrunk_gateway.fleet.customer import Customer
    from pgtrunk_gateway.fleet.frames import Body
    from pgtrunk_gateway.fleet.teller import Teller
    from pgtrunk_gateway.stopping import Patience

__all__ = ["Heritage"]

_ANSWERS: Final = 10.0
"""Seconds for each step of the running supervisor."""
_RETIRES: Final = 40.0
"""For its workers to take what they have been passed, and to leave their sockets."""


class Heritage:
    """Of one running supervisor, at the other end of ``bus``. To be closed."""

    def __init__(self) -> None:
        self.bus = Bus("the running supervisor", self._lost)
        self.inventory: Inventory
        self.standing: Body = {}
        self.serves = False
        """Whether it is ours."""
        self._teller: Teller | None = None
        self._adopted: dict[int, Customer] = {}
        self._said: list[tuple[Body, asyncio.Future[Answer]]] = []
        """What its workers have said since it has passed on what they hold, and before that was taken in."""
        self._died: list[int] = []
        self._gone = asyncio.Event()
        self.bus.on("says", self._says)
        self.bus.on("died", lambda body: self._is_dead(body["number"]))

    @classmethod
    async def claim(cls, loaded: Loaded) -> Heritage | None:
        """What the running supervisor has; None: none is running. Raises :class:`ConfigError` where that cannot be
        taken over."""
        path = point_of(loaded.config)
        if path is None:
            raise ConfigError("-R needs a place to meet the running gateway: set pidfile or unix_socket_dir")
        loop = asyncio.get_running_loop()
        sock = await loop.run_in_executor(None, meet, path, _ANSWERS)
        if sock is None:
            return None
        heritage = cls()
        try:
            descriptors = await loop.run_in_executor(None, passing.receive, sock, _ANSWERS)
        except (OSError, EOFError) as error:
            sock.close()
            raise ConfigError(f"-R: the running gateway has not passed on its sockets: {error!r}") from error
        try:
            await loop.create_unix_connection(lambda: heritage.bus, sock=sock)
            await heritage._look_at(descriptors, loaded)
        except BaseException:
            await heritage.close()
            raise
        return heritage

    async def _look_at(self, descriptors: list[int], loaded: Loaded) -> None:
        try:
            given = await self.bus.ask("inventory", timeout=_ANSWERS)
            if given["format"] != FORMAT:
                raise ConfigError(
                    f"-R: the running gateway speaks format {given['format']}, and this version {FORMAT}: "
                    "restart without -R"
                )
            self.standing = given["standing"]
            self.inventory = Inventory.from_body(given).with_descriptors(descriptors)
        except BaseException as error:
            for descriptor in descriptors:
                os.close(descriptor)
            if isinstance(error, GatewayError):
                raise ConfigError(f"-R: the running gateway cannot be taken over: {error.message}") from error
            raise
        ours = places_of(loaded.config)
        for key in PLACES:
            if ours[key] != self.inventory.places[key]:
                for descriptor in descriptors:
                    os.close(descriptor)
                raise ConfigError(
                    f"-R: {key} is {ours[key]!r} here, and {self.inventory.places[key]!r} in the running gateway, "
                    "whose sockets are taken over as they are: restart without -R to listen elsewhere"
                )

    # -- the steps -----------------------------------------------------------------------------------------------------

    async def retire(self) -> dict[str, list[int]]:
        """Nobody else reads datagrams from now on -> the ids of connections that have just begun there, with
        generation and worker. Raises a :class:`GatewayError`."""
        answer = await self.bus.ask("retire", timeout=_RETIRES)
        begin: dict[str, list[int]] = answer["begin"]
        return begin

    async def serve(self, teller: Teller) -> None:
        """All is ours from now on; ``teller`` decides about places. Raises a :class:`GatewayError`."""
        estate = await self.bus.ask("serve", timeout=_ANSWERS)
        self.serves = True
        self._teller = teller
        self._adopted = teller.adopt(estate, lambda number: _Remote(self.bus, number))
        teller.open()
        said, self._said = self._said, []
        for body, answer in said:
            settle(answer, self._says(body))
        died, self._died = self._died, []
        for number in died:
            self._is_dead(number)

    def act(self, verb: str, database: str | None) -> None:
        """Its sessions are to know what is done here."""
        self.bus.tell("act", {"verb": verb, "database": database})

    def hurry(self, patience: Patience) -> None:
        """It is to end, too, and as soon."""
        self.bus.tell("hurry", {"patience": int(patience)})

    async def gone(self) -> None:
        """Returns when it has ended."""
        await self._gone.wait()

    @property
    def is_there(self) -> bool:
        return not self._gone.is_set()

    async def close(self) -> None:
        """If it is not ours yet, it goes on as if nothing had happened."""
        self.bus.close()
        await self.bus.wait_closed()

    # -- what its workers say ------------------------------------------------------------------------------------------

    def _says(self, body: Body) -> Answer | Awaitable[Answer]:
        if self._teller is None:
            answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            self._said.append((body, answer))
            return answer
        customer = self._adopted.get(body["number"])
        if customer is None:
            raise WorkerLost("that worker has gone")
        return self._teller.hear(customer, body["kind"], body["body"])

    def _is_dead(self, number: int) -> None:
        if self._teller is None:
            self._died.append(number)
            return
        customer = self._adopted.pop(number, None)
        if customer is not None:
            self._teller.died(customer)

    def _lost(self) -> None:
        self._gone.set()
        for number in list(self._adopted):
            self._is_dead(number)


class _Remote:
    """A worker of the one before."""

    def __init__(self, bus: Bus, number: int) -> None:
        self._bus = bus
        self._number = number

    @property
    def is_open(self) -> bool:
        return self._bus.is_open

    def tell(self, kind: str, body: Body | None = None) -> None:
        self._bus.tell("whisper", {"number": self._number, "kind": kind, "body": body or {}})

    async def ask(self, kind: str, body: Body | None = None, *, timeout: float) -> Body:
        asked = {"number": self._number, "kind": kind, "body": body or {}, "timeout": timeout}
        return await self._bus.ask("inquire", asked, timeout=timeout + 1.0)

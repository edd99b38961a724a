"""Any sequence of events: no slot leaks, no limit is passed, nobody waits beside room, nobody is overtaken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pgtrunk.allocation import Allocation, Rules
from pgtrunk.decisions import Dial, HangUp, Keep, Refuse, Replaced, Vacate, WakeAt
from pgtrunk.errors import GatewayUnreachable, SessionLost

if TYPE_CHECKING:
    from pgtrunk.link import Slot

CAUSE = GatewayUnreachable("down")
LOST = SessionLost("silent"), SessionLost("a reset", forgotten=True)


@dataclass
class Gateway:
    """One connection's far end: what it allows, and what is open."""

    allowed: int
    opened: int = 0

    @property
    def stream_credit(self) -> int:
        return self.allowed - self.opened


@dataclass(eq=False)
class Waiter:
    number: int
    link: int | None
    since: float
    machine: AllocationMachine
    willing: bool = True
    state: str = "waiting"

    def offer(self, slot: Slot) -> bool:
        self.machine.offered.append(self)
        if not self.willing:
            self.state = "gone"
            return False
        self.state = "served"
        assert slot not in self.machine.granted
        assert slot not in self.machine.opened
        self.machine.granted[slot] = self
        return True


class AllocationMachine(RuleBasedStateMachine):
    @initialize(
        connections=st.integers(1, 3),
        streams=st.integers(1, 4),
        kept=st.integers(0, 2),
        max_lifetime=st.sampled_from([None, 12.0]),
    )
    def begin(self, connections: int, streams: int, kept: int, max_lifetime: float | None) -> None:
        self.rules_ = Rules(
            connections=connections,
            streams_per_connection=streams,
            min_connections=min(kept, connections),
            max_lifetime=max_lifetime,
        )
        self.core: Allocation[Waiter] = Allocation(self.rules_)
        self.now = 0.0
        self.numbers = 0
        self.wake: float | None = None
        self.dialling: set[int] = set()
        self.gateways: dict[int, Gateway] = {}
        self.waiters: list[Waiter] = []
        self.offered: list[Waiter] = []
        self.granted: dict[Slot, Waiter] = {}
        self.opened: list[Slot] = []
        self.leaving: set[int] = set()
        self.suspects: set[int] = set()
        self.vacated: set[int] = set()
        self.kept: set[int] = set()
        self.act(self.core.decide(self.now))

    @property
    def avoided(self) -> set[int]:
        return self.leaving | self.suspects

    def act(self, decisions: tuple[Any, ...]) -> None:
        for decision in decisions:
            match decision:
                case Dial(link):
                    self.dialling.add(link)
                    assert len(self.core.links.usable) <= self.rules_.connections + (decision.replaces is not None)
                case Keep(link, kept):
                    assert link in self.gateways
                    assert (link in self.kept) is not kept
                    (self.kept.add if kept else self.kept.remove)(link)
                case Replaced(link, by):
                    assert {link, by} <= set(self.gateways)
                    self.leaving.add(link)
                case HangUp(link):
                    assert link not in self.kept or link in self.avoided
                    assert self.gateways.pop(link).opened == 0
                    assert not any(slot.link == link for slot in [*self.granted, *self.opened])
                case Vacate(link):
                    assert link in self.avoided
                    assert link not in self.vacated
                    assert set(self.gateways) - self.avoided, "nowhere to go"
                    self.vacated.add(link)
                case Refuse(waiter):
                    assert waiter.state == "waiting"
                    waiter.state = "refused"
                case WakeAt(when):
                    self.wake = when
                    assert when is None or when > self.now
        if decisions:
            assert isinstance(decisions[-1], WakeAt)

    def waiting(self, link: int | None = None) -> list[Waiter]:
        return [
            waiter for waiter in self.waiters if waiter.state == "waiting" and waiter.willing and waiter.link == link
        ]

    @rule(elapsed=st.sampled_from([0.0, 0.01, 1.0]))
    def ask(self, elapsed: float) -> None:
        self.now += elapsed
        self.numbers += 1
        waiter = Waiter(self.numbers, None, self.now, self)
        self.waiters.append(waiter)
        self.act(self.core.enqueue(waiter, self.now))

    @precondition(lambda self: self.gateways)
    @rule(data=st.data())
    def ask_cancel(self, data: st.DataObject) -> None:
        self.numbers += 1
        waiter = Waiter(self.numbers, data.draw(st.sampled_from(sorted(self.gateways))), self.now, self)
        self.waiters.append(waiter)
        self.act(self.core.enqueue(waiter, self.now))

    @precondition(lambda self: any(waiter.state == "waiting" for waiter in self.waiters))
    @rule(data=st.data(), how=st.sampled_from(["withdraw", "expire", "silently"]))
    def give_up(self, data: st.DataObject, how: str) -> None:
        waiter = data.draw(st.sampled_from([w for w in self.waiters if w.state == "waiting"]))
        if how == "silently":
            # Its task is cancelled, and has not run yet.
            waiter.willing = False
        elif how == "expire":
            self.act(self.core.expire(waiter, self.now))
            assert waiter.state == "refused"
        else:
            self.act(self.core.withdraw(waiter, self.now))
            waiter.state = "gone"

    @precondition(lambda self: self.dialling)
    @rule(data=st.data(), credit=st.integers(0, 8), jitter=st.floats(0, 1, exclude_max=True))
    def connect(self, data: st.DataObject, credit: int, jitter: float) -> None:
        link = data.draw(st.sampled_from(sorted(self.dialling)))
        self.dialling.remove(link)
        self.gateways[link] = Gateway(credit)
        self.act(self.core.connected(link, self.gateways[link], self.now, jitter))

    @precondition(lambda self: self.dialling)
    @rule(data=st.data(), jitter=st.floats(0, 1, exclude_max=True))
    def fail(self, data: st.DataObject, jitter: float) -> None:
        link = data.draw(st.sampled_from(sorted(self.dialling)))
        self.dialling.remove(link)
        self.act(self.core.failed(link, CAUSE, self.now, jitter))

    @precondition(lambda self: self.gateways)
    @rule(
        data=st.data(), jitter=st.floats(0, 1, exclude_max=True), streams_first=st.booleans(), why=st.sampled_from(LOST)
    )
    def lose(self, data: st.DataObject, jitter: float, streams_first: bool, why: SessionLost) -> None:
        link = data.draw(st.sampled_from(sorted(self.gateways)))
        self.gateways[link].allowed = 0
        streams = [slot for slot in self.opened if slot.link == link]
        self.opened = [slot for slot in self.opened if slot.link != link]
        if not streams_first:
            self.gateways.pop(link)
            self.act(self.core.lost(link, why, self.now, jitter))
        for slot in streams:
            if streams_first:
                self.gateways[link].opened -= 1
            self.act(self.core.release(slot, self.now))
        # It may have been hung up on behind the last of them: where it is to be left, nobody knows yet that it is lost.
        self.gateways.pop(link, None)
        self.act(self.core.lost(link, why, self.now, jitter))

    @precondition(lambda self: self.gateways)
    @rule(data=st.data(), delay=st.sampled_from([0.0, 0.3]))
    def send_away(self, data: st.DataObject, delay: float) -> None:
        link = data.draw(st.sampled_from(sorted(self.gateways)))
        self.leaving.add(link)
        self.act(self.core.leave(link, self.now, delay))

    @precondition(lambda self: self.gateways)
    @rule(data=st.data(), delay=st.sampled_from([0.0, 0.3]))
    def go_silent(self, data: st.DataObject, delay: float) -> None:
        link = data.draw(st.sampled_from(sorted(self.gateways)))
        self.suspects.add(link)
        self.act(self.core.suspect(link, self.now, delay))

    @precondition(lambda self: self.suspects & set(self.gateways))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from(sorted(self.suspects & set(self.gateways))))
        self.suspects.remove(link)
        if link not in self.leaving:
            self.vacated.discard(link)
        self.act(self.core.heard(link, self.now))

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), opens=st.booleans())
    def use(self, data: st.DataObject, opens: bool) -> None:
        slot = data.draw(st.sampled_from(sorted(self.granted, key=lambda slot: slot.number)))
        waiter = self.granted.pop(slot)
        if slot.link not in self.gateways:
            # The link was lost in between: it asks again, with its old number.
            waiter.state = "waiting"
            self.act(self.core.enqueue(waiter, self.now))
        elif opens:
            self.gateways[slot.link].opened += 1
            self.core.opened(slot)
            self.opened.append(slot)
        else:
            self.act(self.core.release(slot, self.now))

    @precondition(lambda self: self.opened)
    @rule(data=st.data(), twice=st.booleans())
    def close(self, data: st.DataObject, twice: bool) -> None:
        slot = data.draw(st.sampled_from(self.opened))
        self.opened.remove(slot)
        self.gateways[slot.link].opened -= 1
        for _ in range(2 if twice else 1):
            self.act(self.core.release(slot, self.now))

    @precondition(lambda self: self.gateways)
    @rule(data=st.data(), by=st.integers(-2, 4))
    def change_credit(self, data: st.DataObject, by: int) -> None:
        gateway = self.gateways[data.draw(st.sampled_from(sorted(self.gateways)))]
        promised = sum(self.gateways.get(slot.link) is gateway for slot in self.granted)
        # MAX_STREAMS never shrinks below what is open (RFC 9000 section 4.6), so no promise of ours can be broken.
        gateway.allowed = max(gateway.allowed + by, gateway.opened + promised)
        self.act(self.core.decide(self.now))

    @precondition(lambda self: self.wake is not None)
    @rule()
    def sleep_until_woken(self) -> None:
        assert self.wake is not None
        self.now = max(self.now, self.wake)
        self.act(self.core.decide(self.now))

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        for number, link in self.core.links.items():
            assert link.granted == {slot for slot in self.granted if slot.link == number}
            assert link.opened == {slot for slot in self.opened if slot.link == number}
            ours = [slot for slot in [*self.granted, *self.opened] if slot.link == number]
            assert link.sessions == sum(slot.session for slot in ours)
            assert link.cancels == sum(not slot.session for slot in ours)
        assert set(self.core.links) == self.dialling | set(self.gateways)

    @invariant()
    def no_limit_is_passed(self) -> None:
        assert len(set(self.core.links) - self.leaving) <= 2 * self.rules_.connections + 1
        assert not any(link.room for number, link in self.core.links.items() if number in self.avoided)
        for number, link in self.core.links.items():
            assert link.sessions <= self.rules_.streams_per_connection
            if number in self.gateways:
                gateway = self.gateways[number]
                assert gateway.opened + len(link.granted) <= gateway.allowed

    @invariant()
    def nobody_waits_beside_room(self) -> None:
        if self.waiting():
            assert not any(link.room for link in self.core.links.values())
            usable = set(self.core.links) - self.avoided
            assert usable or self.wake is not None or self.is_at_the_limit, "somebody waits, and nothing will happen"
        for number, link in self.core.links.items():
            assert not self.waiting(number) or link.credit == 0
        assert self.core.waiting >= len(self.waiting())

    @property
    def is_at_the_limit(self) -> bool:
        """Whether so many are suspect that none may be dialled, until one of them ends or is heard from."""
        return len(set(self.core.links) - self.leaving) >= 2 * self.rules_.connections

    @invariant()
    def sessions_that_are_to_move_have_somewhere_to_go_or_will(self) -> None:
        for number in self.avoided & set(self.core.links):
            link = self.core.links[number]
            if number in self.leaving:
                assert link.granted or link.opened, "it is closed with its last stream"
            if set(self.gateways) - self.avoided:
                assert number in self.vacated
            elif link.sessions:
                assert self.dialling or self.wake is not None or self.is_at_the_limit

    @invariant()
    def connections_are_kept_and_replaced(self) -> None:
        usable, least = set(self.gateways) - self.avoided, self.rules_.min_connections
        assert {number for number, link in self.core.links.items() if link.is_kept} == self.kept & set(self.gateways)
        assert len(self.kept & usable) == min(least, len(usable))
        will_happen = self.dialling or self.wake is not None or self.is_at_the_limit
        assert len(usable) >= least or will_happen
        for number in usable:
            link = self.core.links[number]
            is_needed = link.granted or link.opened or number in self.kept
            assert self.now < link.expires_at or will_happen or not is_needed

    @invariant()
    def nobody_is_overtaken(self) -> None:
        offered, self.offered = self.offered, []
        numbers = [waiter.number for waiter in offered if waiter.link is None]
        assert numbers == sorted(numbers)
        if numbers and self.waiting():
            assert max(numbers) < min(waiter.number for waiter in self.waiting())

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        self.act(self.core.shut(self.now))
        assert not self.waiting()
        assert self.core.waiting == 0


AllocationMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestAllocation = AllocationMachine.TestCase

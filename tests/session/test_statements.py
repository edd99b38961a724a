"""Statements: their names, their lives, and what is known of each backend's."""

from __future__ import annotations

import gc

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pgtrunk.wire.frontend import parse
from pgtrunk_gateway.session.statements import Catalogue, Prepared, Statement

BODY = b"select 1\0\0\0"


def statement(number: int = 0) -> Statement:
    return Statement(b"~%d" % number, BODY)


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 10, 16, 18, 63])
def test_a_name_is_as_long_as_the_clients(length: int) -> None:
    catalogue = Catalogue()
    names = [catalogue.intern(length, b"%d\0\0\0" % number) for number in range(1 if length == 1 else 60)]
    assert {len(each.name) for each in names} == {length}
    assert all(each.name.startswith(b"~") for each in names)
    assert len({each.name for each in names}) == len(names)


@pytest.mark.parametrize("length", [64, 5000])
def test_a_name_is_never_longer_than_what_postgres_tells_apart(length: int) -> None:
    catalogue = Catalogue()
    names = [catalogue.intern(length, b"%d\0\0\0" % number) for number in range(60)]
    assert len({each.name[:63] for each in names}) == len(names)
    assert {len(each.name) for each in names} == {16}


@pytest.mark.parametrize(("length", "many"), [(1, 1), (2, 62), (3, 3844)])
def test_when_short_names_have_run_out_longer_ones_are_taken(length: int, many: int) -> None:
    catalogue = Catalogue()
    kept = [catalogue.intern(length, b"%d\0\0\0" % number) for number in range(many + 5)]
    assert [len(each.name) for each in kept] == [length] * many + [16] * 5
    assert len({each.name for each in kept}) == many + 5
    # Those who have such names of their own share the numbers.
    own = catalogue.intern(16, BODY)
    assert own.name not in {each.name for each in kept}


def test_no_name_is_used_twice_even_when_its_statement_is_gone() -> None:
    catalogue = Catalogue()
    seen = set()
    for number in range(200):
        seen.add(catalogue.intern(3, b"%d\0\0\0" % number).name)
    assert len(seen) == 200
    gc.collect()
    assert len(catalogue) == 0


def test_equal_statements_are_one_and_others_are_not() -> None:
    catalogue = Catalogue()
    one = catalogue.intern(2, BODY)
    assert catalogue.intern(2, BODY) is one
    others = [catalogue.intern(3, BODY), catalogue.intern(2, BODY[:-2] + b"\0\1\0\0\0\x17")]
    assert one not in others
    assert len(catalogue) == 3


def test_a_statement_lives_as_long_as_somebody_has_it() -> None:
    catalogue, prepared = Catalogue(), Prepared(10)
    mine = catalogue.intern(2, BODY)
    prepared.expect(mine, 1, injected=False)
    name = mine.name
    del mine
    gc.collect()
    assert len(catalogue) == 1
    assert catalogue.intern(2, BODY).name == name
    prepared.confirm(next(iter(prepared)), 1)
    prepared.clear()
    gc.collect()
    assert len(catalogue) == 0
    assert catalogue.intern(2, BODY).name != name


def test_a_retired_statement_stays_with_those_who_have_it() -> None:
    catalogue = Catalogue()
    old = catalogue.intern(2, BODY)
    catalogue.retire(2, old)
    new = catalogue.intern(2, BODY)
    assert new is not old
    assert new.name != old.name
    catalogue.retire(2, old)
    assert catalogue.intern(2, BODY) is new


def test_the_parse_message() -> None:
    assert Statement(b"~1", BODY).parse == parse(b"~1", b"select 1")
    assert Statement(b"", BODY).parse == parse(b"", b"select 1")
    assert repr(Statement(b"~1", BODY)) == r"<Statement '~1' b'select 1\x00\x00\x00'>"


# -- what a backend has ----------------------------------------------------------------------------------------------


def test_what_has_been_confirmed_can_be_relied_on_for_ever() -> None:
    prepared, one = Prepared(10), statement()
    assert not prepared.usable(one, 1)
    assert not prepared.sure(one, 1)
    assert not prepared.unsure(one, 1)
    prepared.expect(one, 1, injected=True)
    prepared.confirm(one, 1)
    for batch in (1, 2, 99):
        assert prepared.usable(one, batch)
        assert prepared.sure(one, batch)
        assert not prepared.unsure(one, batch)


def test_within_its_batch_it_can_be_relied_on_at_once() -> None:
    prepared, one = Prepared(10), statement()
    prepared.expect(one, 3, injected=True)
    assert prepared.usable(one, 3)
    assert prepared.sure(one, 3)
    assert not prepared.usable(one, 4)
    assert not prepared.sure(one, 4)
    assert prepared.unsure(one, 4)


def test_a_later_batch_can_rely_on_what_the_client_parsed_itself() -> None:
    prepared, one = Prepared(10), statement()
    prepared.expect(one, 3, injected=False)
    assert prepared.usable(one, 4)
    assert not prepared.sure(one, 4)


@pytest.mark.parametrize("injected", [True, False])
def test_what_failed_is_forgotten(injected: bool) -> None:
    prepared, one = Prepared(10), statement()
    prepared.expect(one, 1, injected=injected)
    prepared.forget(one, 1)
    assert len(prepared) == 0
    assert not prepared.usable(one, 1)
    assert not prepared.unsure(one, 2)


def test_what_is_said_of_an_earlier_batch_changes_nothing_of_a_later_one() -> None:
    for say in (Prepared.confirm, Prepared.forget, Prepared.doubt):
        prepared, one = Prepared(10), statement()
        prepared.expect(one, 1, injected=True)
        prepared.expect(one, 2, injected=True)
        say(prepared, one, 1)
        assert prepared.sure(one, 2)
        assert prepared.unsure(one, 3)
        prepared.confirm(one, 2)
        assert prepared.sure(one, 3)


def test_what_is_in_doubt_cannot_be_relied_on_and_is_closed_before_it_is_parsed() -> None:
    prepared, one = Prepared(10), statement()
    prepared.expect(one, 1, injected=False)
    prepared.doubt(one, 1)
    assert not prepared.usable(one, 2)
    assert not prepared.sure(one, 2)
    assert prepared.unsure(one, 2)
    prepared.expect(one, 2, injected=False)
    prepared.confirm(one, 2)
    assert prepared.sure(one, 3)


def test_the_least_recently_used_makes_room() -> None:
    prepared = Prepared(2)
    one, two, three = statement(1), statement(2), statement(3)
    for batch, each in enumerate((one, two), 1):
        prepared.expect(each, batch, injected=False)
        prepared.confirm(each, batch)
    assert prepared.evict(2) == []
    prepared.usable(one, 3)
    prepared.expect(three, 3, injected=False)
    assert prepared.evict(3) == [two]
    assert list(prepared) == [one, three]


def test_what_is_under_way_makes_no_room_and_afterwards_several_do() -> None:
    prepared = Prepared(2)
    many = [statement(number) for number in range(5)]
    for each in many:
        prepared.expect(each, 1, injected=False)
        assert prepared.evict(1) == []
    for each in many:
        prepared.confirm(each, 1)
    last = statement(9)
    prepared.expect(last, 2, injected=False)
    assert prepared.evict(2) == many[:4]
    assert list(prepared) == [many[4], last]


def test_without_a_limit_nothing_has_to_go() -> None:
    prepared = Prepared(0)
    for number in range(1000):
        prepared.expect(each := statement(number), 1, injected=False)
        prepared.confirm(each, 1)
        assert prepared.evict(1) == []


@pytest.fixture
def evicted() -> tuple[Prepared, Statement]:
    """A statement that has to make room in batch 2."""
    prepared, old = Prepared(1), statement(1)
    prepared.expect(old, 1, injected=False)
    prepared.confirm(old, 1)
    prepared.expect(statement(2), 2, injected=False)
    assert prepared.evict(2) == [old]
    return prepared, old


def test_one_whose_close_is_under_way_may_be_there_or_not(evicted: tuple[Prepared, Statement]) -> None:
    prepared, old = evicted
    assert not prepared.usable(old, 2)
    assert not prepared.unsure(old, 2)
    assert prepared.unsure(old, 3)
    prepared.closed(old, 2)
    assert not prepared.unsure(old, 3)


def test_one_whose_close_was_skipped_is_still_there(evicted: tuple[Prepared, Statement]) -> None:
    prepared, old = evicted
    prepared.kept(old, 2)
    assert prepared.sure(old, 3)


def test_one_that_was_parsed_anew_in_the_same_batch_is_there_if_both_were_skipped(
    evicted: tuple[Prepared, Statement],
) -> None:
    prepared, old = evicted
    prepared.expect(old, 2, injected=True)
    prepared.kept(old, 2)
    prepared.forget(old, 2)
    assert prepared.sure(old, 3)


def test_one_that_was_parsed_anew_in_a_later_batch_depends_on_that(evicted: tuple[Prepared, Statement]) -> None:
    prepared, old = evicted
    prepared.expect(old, 3, injected=True)
    prepared.kept(old, 2)
    assert prepared.unsure(old, 4)
    prepared.forget(old, 3)
    assert not prepared.usable(old, 4)


def test_one_in_doubt_that_had_to_make_room_is_in_doubt_again_if_that_was_skipped() -> None:
    prepared, old = Prepared(1), statement(1)
    prepared.expect(old, 1, injected=False)
    prepared.doubt(old, 1)
    prepared.expect(statement(2), 2, injected=False)
    assert prepared.evict(2) == [old]
    prepared.kept(old, 2)
    assert prepared.unsure(old, 3)
    assert not prepared.usable(old, 3)


def test_deallocate_all_spares_what_is_under_way() -> None:
    prepared = Prepared(10)
    there, doubtful, coming = statement(1), statement(2), statement(3)
    for each in (there, doubtful, coming):
        prepared.expect(each, 1, injected=False)
    prepared.confirm(there, 1)
    prepared.doubt(doubtful, 1)
    prepared.clear()
    assert list(prepared) == [coming]
    prepared.confirm(coming, 1)
    assert prepared.sure(coming, 2)


class Backend(RuleBasedStateMachine):
    """One backend and what is believed of it: batches of Parse and Close, of which each may fail at any point."""

    LIMIT = 2

    def __init__(self) -> None:
        super().__init__()
        self.prepared = Prepared(self.LIMIT)
        self.known = [statement(number) for number in range(4)]
        self.there: set[Statement] = set()
        self.batch = 1
        self.sent: list[list[tuple[str, Statement, bool]]] = [[]]
        """Batches that are not answered; the last is still being sent."""

    @rule(number=st.integers(0, 3))
    def use(self, number: int) -> None:
        """What a request does for a statement, as Requests._prepare does it."""
        one = self.known[number]
        if self.prepared.usable(one, self.batch):
            return
        unsure = self.prepared.unsure(one, self.batch)
        if unsure:
            self.sent[-1].append(("close", one, False))
        self.prepared.expect(one, self.batch, injected=True)
        for oldest in self.prepared.evict(self.batch):
            self.sent[-1].append(("evict", oldest, False))
        self.sent[-1].append(("parse", one, unsure))

    @rule()
    def sync(self) -> None:
        self.batch += 1
        self.sent.append([])

    @precondition(lambda self: len(self.sent) > 1)
    @rule(fails_at=st.integers(0, 12))
    def answer(self, fails_at: int) -> None:
        """The first batch is acted on up to ``fails_at``, where it fails."""
        number = self.batch - len(self.sent) + 1
        batch = self.sent.pop(0)
        for what, one, _ in batch[:fails_at]:
            if what == "parse":
                assert one not in self.there, "Postgres would say that it exists"
                self.there.add(one)
                self.prepared.confirm(one, number)
            else:
                self.there.discard(one)
                if what == "evict":
                    self.prepared.closed(one, number)
        skipped = batch[fails_at:]
        if skipped and skipped[0][0] == "parse":
            # This one is what fails; a Close in front of it has been done.
            self.prepared.forget(skipped[0][1], number)
            skipped = skipped[1:]
        for what, one, unsure in skipped:
            if what == "evict":
                self.prepared.kept(one, number)
            elif what == "parse":
                (self.prepared.doubt if unsure else self.prepared.forget)(one, number)

    @invariant()
    def what_is_relied_on_is_there(self) -> None:
        if len(self.sent) == 1 and not self.sent[0]:
            for one in self.known:
                if self.prepared.sure(one, self.batch):
                    assert one in self.there
                elif not self.prepared.unsure(one, self.batch):
                    assert one not in self.there


TestBackend = Backend.TestCase

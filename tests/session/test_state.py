"""The session's states, cell by cell, and the two steps that are written out on the hot path."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable

import pytest

from pgtrunk_gateway.relay.session import Session
from pgtrunk_gateway.session.state import TABLE, Effect, Event, State, step

S, E, F = State, Event, Effect

ENDS = {
    E.LEFT: (S.CLOSED, (F.CLOSE,)),
    E.VANISHED: (S.CLOSED, (F.CLOSE,)),
    E.FAILED: (S.CLOSED, (F.TELL, F.CLOSE)),
}
ENDS_LEASED = {
    E.LEFT: (S.CLOSED, (F.FINISH, F.CLOSE)),
    E.VANISHED: (S.CLOSED, (F.RECOVER, F.CLOSE)),
    E.FAILED: (S.CLOSED, (F.RECOVER, F.TELL, F.CLOSE)),
    E.LOST: (S.CLOSED, (F.TELL, F.CLOSE)),
}
EXPECTED: dict[State, dict[Event, tuple[State, tuple[Effect, ...]]]] = {
    S.LOGIN: {E.ADMITTED: (S.IDLE, ()), **ENDS},
    S.IDLE: {
        E.BEGUN: (S.BEGUN, ()),
        E.REQUEST: (S.WAITING, (F.QUEUE,)),
        E.GRANTED: (S.LEASED, (F.SEND,)),
        **ENDS,
    },
    S.BEGUN: {
        E.ENDED: (S.IDLE, ()),
        E.REQUEST: (S.WAITING, (F.QUEUE,)),
        E.GRANTED: (S.LEASED, (F.SEND,)),
        **ENDS,
    },
    S.WAITING: {
        E.GRANTED: (S.LEASED, (F.SEND,)),
        E.REFUSED: (S.SKIPPING, (F.LEAVE, F.TELL, F.RESUME)),
        E.LEFT: (S.CLOSED, (F.LEAVE, F.CLOSE)),
        E.VANISHED: (S.CLOSED, (F.LEAVE, F.CLOSE)),
        E.FAILED: (S.CLOSED, (F.LEAVE, F.TELL, F.CLOSE)),
    },
    S.LEASED: {
        E.UNPINNED: (S.HOLDING, ()),
        E.SETTLED: (S.IDLE, (F.RELEASE,)),
        E.KEPT: (S.LEASED, ()),
        **ENDS_LEASED,
    },
    S.HOLDING: {
        E.SETTLED: (S.IDLE, (F.RELEASE, F.RESUME)),
        E.INSPECTED: (S.LEASED, (F.RESUME,)),
        E.KEPT: (S.LEASED, (F.RESUME,)),
        E.UNPINNED_FAILED: (S.SKIPPING, (F.RELEASE, F.RESUME)),
        **ENDS_LEASED,
    },
    S.SKIPPING: {E.SYNCED: (S.IDLE, (F.READY,)), E.SYNCED_BEGUN: (S.BEGUN, (F.READY,)), **ENDS},
    S.CLOSED: dict.fromkeys((E.LEFT, E.VANISHED, E.FAILED, E.LOST), (S.CLOSED, ())),
}


@pytest.mark.parametrize("event", Event, ids=lambda event: event.name)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_each_cell(state: State, event: Event) -> None:
    expected = EXPECTED[state].get(event)
    if expected is None:
        with pytest.raises(LookupError, match=f"{state.name} cannot have {event.name}"):
            step(state, event)
    else:
        assert step(state, event) == expected


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_every_state_but_the_last_can_end_in_each_way(state: State) -> None:
    for event in (E.LEFT, E.VANISHED, E.FAILED):
        assert step(state, event)[0] is S.CLOSED


@pytest.mark.parametrize(
    ("state", "back"), [(S.LEASED, {F.RELEASE, F.FINISH, F.RECOVER}), (S.HOLDING, {F.RELEASE, F.FINISH, F.RECOVER})]
)
def test_leaving_a_state_with_a_backend_gives_it_back(state: State, back: set[Effect]) -> None:
    for event, (after, effects) in TABLE[state].items():
        if after not in (S.LEASED, S.HOLDING) and event is not E.LOST:
            assert len(back & set(effects)) == 1, event


def test_leaving_the_queue_is_an_effect_of_every_end_of_waiting() -> None:
    for event, (_, effects) in TABLE[S.WAITING].items():
        # A session that is granted a backend has been taken out of the queue by the pool.
        assert (F.LEAVE in effects) is (event is not E.GRANTED), event


def test_the_steps_that_are_written_out_are_the_tables() -> None:
    """Session._begin does IDLE or BEGUN -GRANTED-> LEASED with SEND, Session.settled LEASED -SETTLED-> IDLE with
    RELEASE."""
    assert TABLE[S.IDLE][E.GRANTED] == TABLE[S.BEGUN][E.GRANTED] == (S.LEASED, (F.SEND,))
    assert TABLE[S.LEASED][E.SETTLED] == (S.IDLE, (F.RELEASE,))
    assert _states_assigned(Session._begin) == {"_STATE_LEASED"}
    assert _states_assigned(Session.settled) == {"_STATE_IDLE"}
    methods = {name: member for name, member in vars(Session).items() if inspect.isfunction(member)}
    assigning = [name for name, method in methods.items() if _states_assigned(method)]
    assert sorted(assigning) == ["_begin", "settled"]


def _states_assigned(function: Callable[..., object]) -> set[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return {
        node.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Name)
        and any(isinstance(target, ast.Attribute) and target.attr == "state" for target in node.targets)
    }

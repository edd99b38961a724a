"""The board: what one process writes the others see, and nobody else's number changes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pgtrunk_gateway.fleet.board import Board, Field


@pytest.fixture
def boards() -> Iterator[tuple[Board, Board]]:
    """Two views of one."""
    board = Board.create(3)
    other = Board(os.dup(board.descriptor), 3)
    yield board, other
    other.close()
    board.close()


def test_each_number_has_its_place(boards: tuple[Board, Board]) -> None:
    one, other = boards
    assert [one.read(index, field) for index in range(3) for field in Field] == [0] * 3 * len(Field)
    numbers = {(index, field): 1000 * index + field - 500 for index in range(3) for field in Field}
    for (index, field), number in numbers.items():
        one.write(index, field, number)
    assert {place: other.read(*place) for place in numbers} == numbers


def test_a_worker_begins_with_nothing_but_what_the_supervisor_wrote(boards: tuple[Board, Board]) -> None:
    one, other = boards
    for index in range(3):
        for field in Field:
            one.write(index, field, 7)
    other.clear(1)
    assert [one.read(1, field) for field in Field] == [0 if field < Field.PID else 7 for field in Field]
    assert {one.read(index, field) for index in (0, 2) for field in Field} == {7}


def test_large_numbers(boards: tuple[Board, Board]) -> None:
    one, other = boards
    one.write(2, Field.TAKEN, 2**62)
    assert other.read(2, Field.TAKEN) == 2**62


def test_children_have_it_only_where_it_is_passed_on(boards: tuple[Board, Board]) -> None:
    assert not os.get_inheritable(boards[0].descriptor)

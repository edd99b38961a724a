"""What a client's names mean, when requests are sent, skipped, refused, and succeed against all odds."""

from __future__ import annotations

import pytest

from pgtrunk_gateway.session.names import Names
from pgtrunk_gateway.session.owed import Naming
from pgtrunk_gateway.session.statements import Catalogue, Statement

A, B, C = (Statement(b"~%d" % number, b"text %d\0" % number) for number in range(3))


def naming(before: Statement | None, after: Statement | None, name: bytes = b"s") -> Naming:
    return Naming("parse", b"1", name, before, after)


@pytest.fixture
def names() -> Names:
    return Names(Catalogue())


def test_a_parse_that_is_undone_frees_the_name(names: Names) -> None:
    assert names.name(b"s", A) is None
    names.undo(naming(None, A))
    assert names.statements == {}


def test_a_close_that_is_undone_keeps_it(names: Names) -> None:
    names.undo(naming(A, None))
    assert names.statements == {b"s": A}


def test_what_has_been_overtaken_is_not_undone(names: Names) -> None:
    names.statements[b"s"] = B
    names.undo(naming(None, A))
    names.undo(naming(A, None))
    assert names.statements == {b"s": B}


def test_the_unnamed_statement_has_the_empty_name(names: Names) -> None:
    names.unnamed = B
    names.undo(naming(None, A, b""))
    assert names.unnamed is B
    names.undo(naming(A, B, b""))
    assert names.unnamed is A
    assert names.statements == {}


def test_a_name_in_use_means_the_new_only_within_its_batch(names: Names) -> None:
    names.name(b"s", A)
    assert names.name(b"s", B) is A
    assert names.name(b"s", C) is B
    assert names.statements[b"s"] is C
    names.batch_ends()
    assert names.statements[b"s"] is A
    names.batch_ends()
    assert names.statements[b"s"] is A


def test_if_its_parse_does_not_fail_after_all_it_means_the_new(names: Names) -> None:
    names.name(b"s", A)
    names.name(b"s", B)
    names.batch_ends()
    names.redo(naming(A, B))
    assert names.statements[b"s"] is B
    names.redo(naming(A, C))
    assert names.statements[b"s"] is B


def test_deallocate_all_spares_what_was_asked_after_it(names: Names) -> None:
    names.statements.update({b"s": A, b"r": B})
    later = [naming(None, B, b"r"), naming(B, None, b"r"), naming(A, None)]
    names.forget_all(later)
    assert names.statements == {b"r": B}
    assert [change.before for change in later] == [None, B, None]


def test_a_name_parsed_again_behind_deallocate_all_is_free(names: Names) -> None:
    names.name(b"s", A)
    names.name(b"s", B)
    names.batch_ends()
    change = naming(A, B)
    names.forget_all([change])
    assert names.statements == {b"s": B}
    assert change.before is None


def test_errors_are_put_into_the_clients_names(names: Names) -> None:
    names.statements.update({b"mine": A, b"other": B})
    assert names.in_own_names(b'statement "~0" and "~1", not ~0') == b'statement "mine" and "other", not ~0'
    names.undo(naming(None, A, b"mine"))
    assert names.in_own_names(b'"~0"') == b'"mine"'


def test_retired_statements_are_kept_by_other_sessions(names: Names) -> None:
    other = Names(names.catalogue)
    old = names.catalogue.intern(1, b"text\0")
    names.name(b"s", old)
    other.name(b"s", old)
    assert names.retire() == []
    assert other.statements[b"s"] is old, "it may have been told the old columns, and is owed the error"
    new = names.statements[b"s"]
    assert new is not old
    assert names.catalogue.intern(1, b"text\0") is new
    assert names.in_own_names(b'"' + old.name + b'"') == b'"s"'
    other.retire()
    assert other.statements[b"s"] is new, "two sessions that have both had their error share one again"


def test_other_settings_make_other_statements(names: Names) -> None:
    one = names.catalogue.intern(1, b"text\0", names.dialect)
    names.name(b"s", one)
    names.speak(("UTF8", "Asia/Tokyo"))
    assert names.statements[b"s"] is names.catalogue.intern(1, b"text\0", ("UTF8", "Asia/Tokyo"))
    assert names.statements[b"s"] is not one
    names.speak(())
    assert names.statements[b"s"] is one

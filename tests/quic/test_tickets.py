from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrunk_gateway.quic.sealing import Sealer
from pgtrunk_gateway.quic.tickets import LIFETIME, MAX_SKEW, NO_AUTHORITY, Ticket, Tickets

KEY = b"k" * 32
CAS = b"f" * 32
NONCE = bytes(12)
TICKET = Ticket(
    issued=1000.0,
    expires=2000.0,
    ends=5000.0,
    cipher_suite=0x1302,
    age_add=77,
    secret=b"s" * 48,
    authority=CAS,
    certificate=b"c" * 400,
)


@pytest.fixture
def tickets() -> Tickets:
    return Tickets(Sealer([KEY], "tickets"))


def test_a_ticket_comes_back_whole(tickets: Tickets) -> None:
    assert tickets.open(tickets.seal(TICKET, nonce=NONCE), now=1500, authority=CAS) == TICKET


def test_a_ticket_without_identity_comes_back_whole(tickets: Tickets) -> None:
    plain = replace(TICKET, authority=NO_AUTHORITY, certificate=None)
    assert tickets.open(tickets.seal(plain, nonce=NONCE), now=1500, authority=NO_AUTHORITY) == plain


@pytest.mark.parametrize(
    ("now", "good"),
    [(1000, True), (1999.9, True), (2000, False), (1000 - MAX_SKEW, True), (999 - MAX_SKEW, False), (1e9, False)],
)
def test_a_ticket_is_good_for_its_time_only(tickets: Tickets, now: float, good: bool) -> None:
    assert (tickets.open(tickets.seal(TICKET, nonce=NONCE), now=now, authority=CAS) is not None) is good


def test_the_end_of_the_chain_ends_the_ticket(tickets: Tickets) -> None:
    sealed = tickets.seal(replace(TICKET, ends=1500.0), nonce=NONCE)
    assert tickets.open(sealed, now=1499, authority=CAS) is not None
    assert tickets.open(sealed, now=1501, authority=CAS) is None


@pytest.mark.parametrize(
    ("issued_under", "in_force"),
    [(CAS, b"g" * 32), (CAS, NO_AUTHORITY), (NO_AUTHORITY, CAS)],
    ids=["another set of CAs", "no longer mutual", "newly mutual"],
)
def test_a_ticket_is_bound_to_the_set_of_cas(tickets: Tickets, issued_under: bytes, in_force: bytes) -> None:
    sealed = tickets.seal(replace(TICKET, authority=issued_under), nonce=NONCE)
    assert tickets.open(sealed, now=1500, authority=in_force) is None
    assert tickets.open(sealed, now=1500, authority=issued_under) is not None


def test_other_keys_and_noise_open_nothing(tickets: Tickets) -> None:
    other = Tickets(Sealer([b"x" * 32], "tickets"))
    assert tickets.open(other.seal(TICKET, nonce=NONCE), now=1500, authority=CAS) is None
    assert tickets.open(b"", now=1500, authority=CAS) is None


@given(noise=st.binary(max_size=600))
def test_a_ticket_of_another_format_is_refused(noise: bytes) -> None:
    sealer = Sealer([KEY], "tickets")
    assert Tickets(sealer).open(sealer.seal(b"\x00" + noise, nonce=NONCE), now=1500, authority=CAS) is None


def test_the_span_never_passes_the_end(tickets: Tickets) -> None:
    assert tickets.span(now=100, ends=150) == 50
    assert tickets.span(now=100, ends=1e9) == LIFETIME
    assert tickets.span(now=100, ends=90) < 0

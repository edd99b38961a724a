from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from aioquic import tls

from helpers.certificates import IS_CA, SERVER_AUTH, authority, self_signed
from helpers.tls_pair import Clock, TlsPair, policy, say
from pgtrunk.quic.client_auth import AlertCertificateRequired, AlertUnknownCA, ClientAuthority
from pgtrunk_gateway.quic.early import MAX_EARLY_DATA

if TYPE_CHECKING:
    from pgtrunk_gateway.quic.server_tls import HandshakePolicy

CA = authority()
OTHER = authority("another CA")
SERVER = CA.issue("localhost", usage=[SERVER_AUTH])
APP = CA.issue("app")
MUTUAL = ClientAuthority([CA.certificate])


@pytest.fixture
def clock() -> Clock:
    # A whole second: tickets keep milliseconds, and a test ends at the very moment in which one does.
    return Clock(float(int(time.time())))


# Who gets in


def test_without_an_authority_nobody_is_asked(clock: Clock) -> None:
    pair = TlsPair.build(SERVER, policy(None, clock), client=APP).shake()
    assert pair.server.peer_certificate is None
    assert pair.client._certificate_request is None


def test_the_right_certificate_gets_in(clock: Clock) -> None:
    pair = TlsPair.build(SERVER, policy(MUTUAL, clock), client=APP).shake()
    assert pair.server.peer_certificate == APP.certificate


def test_a_chain_gets_in(clock: Clock) -> None:
    leaf = CA.issue("intermediate", *IS_CA, usage=None).issue("app")
    pair = TlsPair.build(SERVER, policy(MUTUAL, clock), client=leaf).shake()
    assert pair.server.peer_certificate == leaf.certificate


REFUSED = {
    "none": (None, AlertCertificateRequired),
    "self-signed": (self_signed("app"), AlertUnknownCA),
    "other CA": (OTHER.issue("app"), AlertUnknownCA),
    "expired": (CA.issue("app", days=(-9, -1)), tls.AlertCertificateExpired),
    "not yet valid": (CA.issue("app", days=(1, 9)), tls.AlertCertificateExpired),
    "serverAuth only": (CA.issue("app", usage=[SERVER_AUTH]), tls.AlertUnsupportedCertificate),
    "the server's own": (SERVER, tls.AlertUnsupportedCertificate),
}


@pytest.mark.parametrize(("client", "alert"), REFUSED.values(), ids=REFUSED.keys())
def test_the_wrong_certificate_does_not(client: object, alert: type[tls.Alert], clock: Clock) -> None:
    pair = TlsPair.build(SERVER, policy(MUTUAL, clock), client=client)  # type: ignore[arg-type]
    with pytest.raises(tls.Alert) as caught:
        pair.shake()
    assert type(caught.value) is alert
    assert pair.server.state is tls.State.SERVER_EXPECT_CERTIFICATE
    assert pair.server.peer_certificate is None
    assert (tls.Direction.DECRYPT, tls.Epoch.ONE_RTT) not in pair.server_keys, "nothing the client says can be read"


def test_a_stolen_certificate_without_its_key_does_not(clock: Clock) -> None:
    thief = replace(APP, key=OTHER.key)
    pair = TlsPair.build(SERVER, policy(MUTUAL, clock), client=thief)
    with pytest.raises(tls.AlertDecryptError):
        pair.shake()
    assert pair.server.peer_certificate is None


def test_leaving_the_certificate_out_altogether_does_not(clock: Clock) -> None:
    pair = TlsPair.build(SERVER, policy(MUTUAL, clock), client=APP)
    answer = say(pair.server, say(pair.client, {tls.Epoch.INITIAL: b""}))
    forgetful = pair.client
    say(forgetful, {tls.Epoch.INITIAL: answer[tls.Epoch.INITIAL]})
    flight = say_without_certificate(forgetful, answer[tls.Epoch.HANDSHAKE])
    with pytest.raises(tls.AlertUnexpectedMessage):
        say(pair.server, flight)
    assert pair.server.peer_certificate is None


def say_without_certificate(client: tls.Context, heard: bytes) -> dict[tls.Epoch, bytes]:
    """A client that sends its Finished as if it had not been asked."""
    ask = client._client_handle_certificate_request
    client._client_handle_certificate_request = lambda buf: (ask(buf), setattr(client, "_certificate_request", None))  # type: ignore[method-assign, assignment, func-returns-value]
    return say(client, {tls.Epoch.HANDSHAKE: heard})


def test_a_certificate_without_proof_does_not(clock: Clock) -> None:
    pair = TlsPair.build(SERVER, policy(MUTUAL, clock), client=APP)
    answer = say(pair.client, say(pair.server, say(pair.client, {tls.Epoch.INITIAL: b""})))
    flight = answer[tls.Epoch.HANDSHAKE]
    certificate = flight[: 4 + int.from_bytes(flight[1:4], "big")]
    rest = flight[len(certificate) :]
    finished = rest[4 + int.from_bytes(rest[1:4], "big") :]
    with pytest.raises(tls.AlertUnexpectedMessage):
        say(pair.server, {tls.Epoch.HANDSHAKE: certificate + finished})
    assert pair.server.peer_certificate is None


# Resumption


def test_a_ticket_resumes_without_certificates(clock: Clock) -> None:
    first = TlsPair.build(SERVER, policy(None, clock)).shake()
    assert not first.server.session_resumed
    second = TlsPair.build(SERVER, policy(None, clock), ticket=first.ticket).shake()
    assert second.server.session_resumed
    assert second.client.session_resumed


def test_a_resumed_client_is_who_it_was(clock: Clock) -> None:
    first = TlsPair.build(SERVER, policy(MUTUAL, clock), client=APP).shake()
    second = TlsPair.build(SERVER, policy(MUTUAL, clock), ticket=first.ticket).shake()
    assert second.server.session_resumed
    assert second.server.peer_certificate == APP.certificate
    third = TlsPair.build(SERVER, policy(MUTUAL, clock), ticket=second.ticket).shake()
    assert third.server.peer_certificate == APP.certificate


def test_any_worker_with_the_key_resumes(clock: Clock) -> None:
    ticket = TlsPair.build(SERVER, policy(None, clock, key=b"a" * 32)).shake().ticket
    assert TlsPair.build(SERVER, policy(None, clock, key=b"a" * 32), ticket=ticket).shake().server.session_resumed
    assert not TlsPair.build(SERVER, policy(None, clock, key=b"b" * 32), ticket=ticket).shake().server.session_resumed


def test_a_ticket_made_without_mutual_tls_is_no_way_in(clock: Clock) -> None:
    ticket = TlsPair.build(SERVER, policy(None, clock)).shake().ticket
    with pytest.raises(AlertCertificateRequired):
        TlsPair.build(SERVER, policy(MUTUAL, clock), ticket=ticket).shake()
    pair = TlsPair.build(SERVER, policy(MUTUAL, clock), ticket=ticket, client=APP).shake()
    assert not pair.server.session_resumed
    assert pair.server.peer_certificate == APP.certificate


def test_a_ticket_made_under_another_set_of_cas_is_no_way_in(clock: Clock) -> None:
    both = ClientAuthority([CA.certificate, OTHER.certificate])
    ticket = TlsPair.build(SERVER, policy(both, clock), client=OTHER.issue("app")).shake().ticket
    with pytest.raises(AlertCertificateRequired):
        TlsPair.build(SERVER, policy(MUTUAL, clock), ticket=ticket).shake()
    without = TlsPair.build(SERVER, policy(None, clock), ticket=ticket).shake()
    assert not without.server.session_resumed
    assert without.server.peer_certificate is None


def test_a_stolen_ticket_without_its_secret_is_no_way_in(clock: Clock) -> None:
    ticket = TlsPair.build(SERVER, policy(MUTUAL, clock), client=APP).shake().ticket
    stolen = replace(ticket, resumption_secret=bytes(len(ticket.resumption_secret)))
    pair = TlsPair.build(SERVER, policy(MUTUAL, clock), ticket=stolen)
    with pytest.raises(tls.AlertHandshakeFailure):
        pair.shake()
    assert pair.server.peer_certificate is None


def test_renewal_does_not_outlive_the_certificate(clock: Clock) -> None:
    brief = CA.issue("app", days=(-1, 0.02))  # half an hour: less than a ticket's hour
    first = TlsPair.build(SERVER, policy(MUTUAL, clock), client=brief).shake()
    clock.now += 1000
    second = TlsPair.build(SERVER, policy(MUTUAL, clock), ticket=first.ticket).shake()
    assert second.server.session_resumed
    clock.now += 1000
    with pytest.raises(AlertCertificateRequired):
        TlsPair.build(SERVER, policy(MUTUAL, clock), ticket=second.ticket).shake()


def test_renewal_ends_a_day_after_the_full_handshake(clock: Clock) -> None:
    pair = TlsPair.build(SERVER, policy(None, clock)).shake()
    resumed = 0
    for _ in range(60):
        clock.now += 1800
        pair = TlsPair.build(SERVER, policy(None, clock), ticket=pair.ticket).shake()
        if not pair.server.session_resumed:
            break
        resumed += 1
    assert resumed == 86400 // 1800 - 1


def test_a_client_that_cannot_resume_gets_no_ticket(clock: Clock) -> None:
    pair = TlsPair.build(SERVER, policy(None, clock))
    pair.client.new_session_ticket_cb = None  # aioquic's client then offers no PSK mode
    pair.shake()
    assert pair.tickets == []


def test_a_huge_certificate_gets_in_but_no_ticket(clock: Clock) -> None:
    huge = CA.issue("app", names=[f"name-{n:04d}.example" for n in range(300)])
    pair = TlsPair.build(SERVER, policy(MUTUAL, clock), client=huge).shake()
    assert pair.server.peer_certificate == huge.certificate
    assert pair.tickets == []


# Early data


def test_tickets_do_not_offer_early_data(clock: Clock) -> None:
    assert TlsPair.build(SERVER, policy(None, clock)).shake().ticket.max_early_data_size is None


def test_early_data_is_refused_and_its_key_never_installed(clock: Clock) -> None:
    ticket = TlsPair.build(SERVER, policy(None, clock)).shake().ticket
    eager = replace(ticket, max_early_data_size=0xFFFFFFFF)
    pair = TlsPair.build(SERVER, policy(None, clock), ticket=eager).shake()
    assert pair.server.session_resumed
    assert not pair.client.early_data_accepted
    assert not pair.server.early_data_accepted
    assert tls.Epoch.ZERO_RTT not in {epoch for _, epoch in pair.server_keys}


@pytest.fixture
def eager(clock: Clock) -> HandshakePolicy:
    """A policy with early data, and with another nonce for each ticket."""
    entropy = iter(range(1, 1 << 20))
    return replace(policy(None, clock), early=True, entropy=lambda size: next(entropy).to_bytes(size, "big"))


def takes_early(pair: TlsPair) -> bool:
    """Whether early data was taken; and if so, readable."""
    assert pair.client.early_data_accepted is pair.server.early_data_accepted
    assert (tls.Epoch.ZERO_RTT in {epoch for _, epoch in pair.server_keys}) is pair.server.early_data_accepted
    return pair.server.early_data_accepted


def test_early_data_is_taken_where_a_policy_wants_it(eager: HandshakePolicy) -> None:
    ticket = TlsPair.build(SERVER, eager).shake().ticket
    assert ticket.max_early_data_size == MAX_EARLY_DATA
    pair = TlsPair.build(SERVER, eager, ticket=ticket).shake()
    assert takes_early(pair)
    assert takes_early(TlsPair.build(SERVER, eager, ticket=pair.ticket).shake())
    assert (eager.counters.full, eager.counters.resumed, eager.counters.early) == (1, 2, 2)


def test_a_ticket_from_before_early_data_was_wanted_is_good_for_none(eager: HandshakePolicy) -> None:
    ticket = TlsPair.build(SERVER, replace(eager, early=False)).shake().ticket
    assert ticket.max_early_data_size is None
    pair = TlsPair.build(SERVER, eager, ticket=replace(ticket, max_early_data_size=MAX_EARLY_DATA)).shake()
    assert pair.server.session_resumed
    assert not takes_early(pair)


def test_the_same_ticket_is_good_for_early_data_once(eager: HandshakePolicy) -> None:
    ticket = TlsPair.build(SERVER, eager).shake().ticket
    assert takes_early(TlsPair.build(SERVER, eager, ticket=ticket).shake())
    again = TlsPair.build(SERVER, eager, ticket=ticket).shake()
    assert not takes_early(again)
    assert again.server.session_resumed
    assert again.server.refuses_early


def test_who_has_only_seen_a_ticket_cannot_use_it_up(eager: HandshakePolicy) -> None:
    ticket = TlsPair.build(SERVER, eager).shake().ticket
    seen = replace(ticket, resumption_secret=bytes(len(ticket.resumption_secret)))
    with pytest.raises(tls.AlertHandshakeFailure):
        TlsPair.build(SERVER, eager, ticket=seen).shake()
    assert len(eager.used) == 0
    assert takes_early(TlsPair.build(SERVER, eager, ticket=ticket).shake())


@pytest.mark.parametrize(("seconds", "taken"), [(9, True), (11, False), (-9, True), (-11, False), (3000, False)])
def test_early_data_is_fresh(eager: HandshakePolicy, clock: Clock, seconds: float, taken: bool) -> None:
    ticket = TlsPair.build(SERVER, eager).shake().ticket
    clock.now += seconds
    pair = TlsPair.build(SERVER, eager, ticket=ticket).shake()
    assert pair.server.session_resumed
    assert takes_early(pair) is taken


def test_an_old_ticket_of_an_honest_age_is_fresh(eager: HandshakePolicy, clock: Clock) -> None:
    ticket = TlsPair.build(SERVER, eager).shake().ticket
    clock.now += 3000
    aged = replace(ticket, not_valid_before=ticket.not_valid_before - timedelta(seconds=3000))
    assert takes_early(TlsPair.build(SERVER, eager, ticket=aged).shake())


def test_an_age_that_was_changed_on_the_way_is_found_out(eager: HandshakePolicy, clock: Clock) -> None:
    ticket = TlsPair.build(SERVER, eager).shake().ticket
    clock.now += 100
    pair = TlsPair.build(SERVER, eager, ticket=ticket)
    hello = bytearray(say(pair.client, {tls.Epoch.INITIAL: b""})[tls.Epoch.INITIAL])
    at = hello.index(ticket.ticket) + len(ticket.ticket)
    age = int.from_bytes(hello[at : at + 4], "big")
    hello[at : at + 4] = ((age + 100_000) % (1 << 32)).to_bytes(4, "big")
    with pytest.raises(tls.AlertHandshakeFailure):
        say(pair.server, {tls.Epoch.INITIAL: bytes(hello)})
    assert tls.Epoch.ZERO_RTT not in {epoch for _, epoch in pair.server_keys}


def test_another_protocol_has_no_early_data(eager: HandshakePolicy) -> None:
    ticket = TlsPair.build(SERVER, eager, alpn="pgtrunk/1").shake().ticket
    assert not takes_early(TlsPair.build(SERVER, eager, ticket=ticket, alpn="postgresql").shake())


def test_limits_that_are_lower_now_have_no_early_data(eager: HandshakePolicy) -> None:
    ticket = TlsPair.build(SERVER, eager, streams=100).shake().ticket
    assert not takes_early(TlsPair.build(SERVER, eager, ticket=ticket, streams=99).shake())
    ticket = TlsPair.build(SERVER, eager, streams=100).shake().ticket
    assert takes_early(TlsPair.build(SERVER, eager, ticket=ticket, streams=101).shake())


def test_the_client_is_known_before_its_early_data_is_read(clock: Clock, eager: HandshakePolicy) -> None:
    mutual = replace(eager, authority=MUTUAL)
    ticket = TlsPair.build(SERVER, mutual, client=APP).shake().ticket
    pair = TlsPair.build(SERVER, mutual, ticket=ticket)
    say(pair.server, say(pair.client, {tls.Epoch.INITIAL: b""}))
    assert pair.server.early_data_accepted
    assert pair.server.peer_certificate == APP.certificate


def test_early_data_of_a_client_whose_ca_was_withdrawn_is_not_read(eager: HandshakePolicy) -> None:
    both = replace(eager, authority=ClientAuthority([CA.certificate, OTHER.certificate]))
    ticket = TlsPair.build(SERVER, both, client=OTHER.issue("app")).shake().ticket
    pair = TlsPair.build(SERVER, replace(both, authority=MUTUAL), ticket=ticket)
    with pytest.raises(AlertCertificateRequired):
        pair.shake()
    assert tls.Epoch.ZERO_RTT not in {epoch for _, epoch in pair.server_keys}

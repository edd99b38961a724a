"""Why a connection ended, in words and as one of our errors.

aioquic reports an error code, sometimes a frame type, and a phrase. Which of our errors that is depends on who ended
it and on whether the handshake was over. RFC 9000 section 20, RFC 8446 section 6.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import AlertDescription

from pgtrunk.errors import CertificateError, GatewayUnreachable, SessionLost, TrunkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioquic.quic.events import ConnectionTerminated

    from .config import QuicLimits

__all__ = ["CERTIFICATE_ALERTS", "RESET", "certificate_hint", "explain", "phrase", "show"]

RESET = "stateless reset"
"""The phrase of an end that the other end did not say in a packet: it has forgotten the connection."""

CERTIFICATE_ALERTS = frozenset({
    AlertDescription.bad_certificate,
    AlertDescription.unsupported_certificate,
    AlertDescription.certificate_revoked,
    AlertDescription.certificate_expired,
    AlertDescription.certificate_unknown,
    AlertDescription.unknown_ca,
    AlertDescription.access_denied,
    AlertDescription.certificate_required,
})  # fmt: skip


def show(address: Any) -> str:
    """Return an address as people write it."""
    if not isinstance(address, tuple) or len(address) < 2:
        return str(address)
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _alert(code: int) -> AlertDescription | None:
    """Return the TLS alert that an error code stands for (RFC 9001 section 4.8)."""
    try:
        return AlertDescription(code - QuicErrorCode.CRYPTO_ERROR)
    except ValueError:
        return None


def _says_reset(event: ConnectionTerminated, by_peer: bool) -> bool:
    # Whoever closes may give that reason, but for a reset nobody has closed anything.
    return event.reason_phrase == RESET and not by_peer


def phrase(event: ConnectionTerminated, limits: QuicLimits, *, by_peer: bool) -> str:
    """Return what happened, to follow "the connection was lost: "."""
    if event.reason_phrase == "Idle timeout" and event.error_code == QuicErrorCode.INTERNAL_ERROR:
        return f"nothing was heard from the other end for {limits.idle_timeout:g} s (idle_timeout)"
    if _says_reset(event, by_peer):
        return "the other end does not know it any more, as after its process died (stateless reset)"
    who = "the other end" if by_peer else "this end"
    alert = _alert(event.error_code)
    if event.frame_type is None and event.error_code == QuicErrorCode.NO_ERROR:
        what = "closed it"
    elif alert is not None:
        what = f"closed it with TLS alert {alert.name}"
    elif event.frame_type is None:
        what = f"closed it with code {event.error_code}"
    else:
        try:
            name = QuicErrorCode(event.error_code).name
        except ValueError:
            name = f"error {event.error_code:#x}"
        what = f"closed it with {name}"
    return f"{who} {what}" + (f": {event.reason_phrase}" if event.reason_phrase else "")


def certificate_hint(reason: str) -> str:
    """Return what to do about a certificate that nobody vouches for, in OpenSSL's words, or that is for others."""
    unknown = "issuer" in reason or "self-signed" in reason or "self signed" in reason
    if unknown:
        return "; ca_file (--ca) names the CA that signed it"
    return "; server_name (--server-name) is the name to expect" if ", not for " in reason else ""


def explain(
    event: ConnectionTerminated,
    limits: QuicLimits,
    peer: object,
    *,
    by_peer: bool,
    is_ready: bool,
    presented: Sequence[str] = (),
    expected: str | None = None,
) -> TrunkError:
    """Return the error that sessions and callers get to see. ``peer`` is the other end's address; ``presented`` are the
    names in its certificate, and ``expected`` is the one that it should carry."""
    words = phrase(event, limits, by_peer=by_peer)
    peer = show(peer)
    if _alert(event.error_code) in CERTIFICATE_ALERTS:
        # Handshake over or not: a gateway looks at our certificate when for us it is.
        whose = "our certificate was refused by" if by_peer else "refused the certificate of"
        hint = "" if by_peer else certificate_hint(event.reason_phrase)
        message = f"{whose} {peer}: {event.reason_phrase or words}{hint}"
        return (
            CertificateError(message) if by_peer else CertificateError(message, presented=presented, expected=expected)
        )
    if is_ready:
        return SessionLost(f"QUIC connection with {peer} lost: {words}", forgotten=_says_reset(event, by_peer))
    return GatewayUnreachable(f"no QUIC connection with {peer}: {words}")

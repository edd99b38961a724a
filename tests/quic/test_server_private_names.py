"""What the server side relies on in aioquic's TLS without a promise. That it works is shown by test_server_tls.py."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable

import pytest
from aioquic import tls

from pgtrunk.quic import client_auth, credentials, private_names
from pgtrunk_gateway.quic import accepted, demux, listener, server_tls, stateless

LISTED = {name for names in private_names.REQUIRED.values() for name in names.split()}


@pytest.mark.parametrize("module", [accepted, client_auth, credentials, demux, listener, server_tls, stateless])
def test_every_private_name_in_use_is_checked_at_import(module: object) -> None:
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    theirs = {name for name in used if name.startswith("_") and any(map(private_names_has(name), EXAMPLES))}
    assert {name for name in theirs if not name.startswith("__")} <= LISTED


EXAMPLES = [private_names._examples()[name]() for name in ("Context", "QuicConnection", "QuicNetworkPath")]


def private_names_has(name: str) -> Callable[[object], bool]:
    return lambda example: private_names._has(example, name)


def test_the_wish_for_a_certificate_is_read_from_an_attribute_that_only_the_initializer_sets() -> None:
    # A property takes its place: were it set later, that would be an AttributeError in the middle of a handshake.
    source = inspect.getsource(tls.Context)
    assert source.count("self._request_client_certificate = ") == 1
    assert "self._request_client_certificate = " in inspect.getsource(tls.Context.__init__)


def test_the_psk_is_accepted_before_the_wish_for_a_certificate_is_read() -> None:
    source = inspect.getsource(tls.Context._server_handle_hello)
    assert source.index("self._session_resumed = True") < source.index("if self._request_client_certificate")


def test_tickets_are_made_where_ours_are() -> None:
    # After the client's Finished is in the transcript: the resumption secret is made of it (RFC 8446 section 7.1).
    source = inspect.getsource(tls.Context._server_handle_finished)
    assert source.index("self._expected_verify_data") < source.index("self.new_session_ticket_cb is not None")
    assert "new_session_ticket_cb" not in inspect.getsource(tls.Context._server_handle_hello)

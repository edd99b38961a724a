"""The sidecar: a local socket for every driver that speaks Postgres, and behind it streams of one trunk."""

from __future__ import annotations

from pgtrunk.sidecar.endpoint import Endpoint, TcpEndpoint, UnixEndpoint, parse_endpoint
from pgtrunk.sidecar.server import Sidecar

__all__ = ["Endpoint", "Sidecar", "TcpEndpoint", "UnixEndpoint", "parse_endpoint"]

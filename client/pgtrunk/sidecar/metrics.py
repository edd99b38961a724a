"""`pgtrunk sidecar --metrics`: what the trunk does, for Prometheus, by the server of prometheus-client in a thread."""

from __future__ import annotations

import contextlib
import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pgtrunk.errors import UsageError
from pgtrunk.sidecar.endpoint import TcpEndpoint, parse_endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgtrunk.manager import StreamManager

__all__ = ["metrics_endpoint", "serve_metrics"]

logger = logging.getLogger("pgtrunk.sidecar")


def metrics_endpoint(text: str | None) -> TcpEndpoint | None:
    """Reads ``host:port``. Raises `UsageError` for what is none, and where prometheus-client is not installed."""
    if text is None:
        return None
    endpoint = parse_endpoint(text)
    if not isinstance(endpoint, TcpEndpoint):
        raise UsageError(f"--metrics {text}: host:port is expected, as in 127.0.0.1:9187")
    if find_spec("prometheus_client") is None:
        raise UsageError(
            f"--metrics {text} needs prometheus-client, which is not installed: pip install 'pgtrunk[prometheus]'"
        )
    return endpoint


@contextlib.contextmanager
def serve_metrics(endpoint: TcpEndpoint | None, manager: StreamManager) -> Iterator[None]:
    """Answers HTTP at ``/metrics`` in the meantime; None: nowhere. Raises OSError where the place is not to be had."""
    if endpoint is None:
        yield
        return
    from prometheus_client import CollectorRegistry, start_http_server

    from pgtrunk.prometheus import collector

    # One of its own: what the library tells of the process without being asked is for whoever runs an application.
    registry = CollectorRegistry()
    registry.register(collector(manager))
    try:
        server, thread = start_http_server(endpoint.port, endpoint.host, registry)
    except OSError as exc:
        raise UsageError(f"--metrics {endpoint}: {exc.strerror or exc}") from exc
    try:
        logger.info("metrics at http://%s/metrics", TcpEndpoint(endpoint.host, server.server_port))
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

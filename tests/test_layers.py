"""Who may import whom, as ARCHITECTURE.md has it: dependencies point one way, and the pure packages do no I/O."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parent.parent
MODULES: Final = {
    ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
    for root, package in ((ROOT / "client", "pgtrunk"), (ROOT / "gateway", "pgtrunk_gateway"))
    for path in sorted((root / package).rglob("*.py"))
}

PURE: Final = ("pgtrunk.wire", "pgtrunk_gateway.auth", "pgtrunk_gateway.session")
IO: Final = {"asyncio", "aioquic", "socket", "ssl", "time", "uvloop", "threading", "subprocess", "selectors", "asyncpg"}

# Lowest first: each may import what is in the lines above its own, and itself, but nobody beside it.
CLIENT: Final = (
    ("pgtrunk.closing", "pgtrunk.errors", "pgtrunk.half_close", "pgtrunk.histogram", "pgtrunk.metric"),
    ("pgtrunk.wire", "pgtrunk.session_transport", "pgtrunk.arguments"),
    ("pgtrunk.quic",),
    ("pgtrunk.stages", "pgtrunk.retries", "pgtrunk.witness", "pgtrunk.login_memory"),
    ("pgtrunk.link", "pgtrunk.decisions", "pgtrunk.backoff", "pgtrunk.telemetry", "pgtrunk.address", "pgtrunk.dsn"),
    ("pgtrunk.rules", "pgtrunk.links", "pgtrunk.queues"),
    ("pgtrunk.outage", "pgtrunk.options"),
    ("pgtrunk.need", "pgtrunk.reasons"),
    ("pgtrunk.allocation", "pgtrunk.refusal", "pgtrunk.waiter", "pgtrunk.connection", "pgtrunk.gateways"),
    ("pgtrunk.picture", "pgtrunk.lines"),
    ("pgtrunk.trunk",),
    ("pgtrunk.pooled", "pgtrunk.anticipation", "pgtrunk.early_fetch"),
    ("pgtrunk.asyncpg_adapter", "pgtrunk.search"),
    ("pgtrunk.dialer", "pgtrunk.balancer"),
    ("pgtrunk.tcp",),
    ("pgtrunk.manager",),
    ("pgtrunk.exporting",),
    ("pgtrunk.opentelemetry", "pgtrunk.prometheus"),
    ("pgtrunk.sidecar",),
    ("pgtrunk.background", "pgtrunk.certs", "pgtrunk.ping"),
    ("pgtrunk.cli",),
)
GATEWAY: Final = (
    ("pgtrunk_gateway.errors", "pgtrunk_gateway.stats", "pgtrunk_gateway.quic"),
    (
        "pgtrunk_gateway.fleet.frames",
        "pgtrunk_gateway.fleet.board",
        "pgtrunk_gateway.fleet.hand",
        "pgtrunk_gateway.fleet.forwarding",
        "pgtrunk_gateway.fleet.outgoing",
    ),
    ("pgtrunk_gateway.fleet.bus", "pgtrunk_gateway.fleet.charter", "pgtrunk_gateway.fleet.steering"),
    ("pgtrunk_gateway.fleet.member",),
    ("pgtrunk_gateway.fleet.fleet", "pgtrunk_gateway.fleet.account", "pgtrunk_gateway.fleet.dues"),
    ("pgtrunk_gateway.fleet.bank", "pgtrunk_gateway.fleet.share", "pgtrunk_gateway.fleet.turnstile"),
    ("pgtrunk_gateway.config", "pgtrunk_gateway.auth", "pgtrunk_gateway.session"),
    (
        "pgtrunk_gateway.fleet.standing",
        "pgtrunk_gateway.fleet.ledger",
        "pgtrunk_gateway.fleet.settling",
        "pgtrunk_gateway.fleet.moves",
    ),
    ("pgtrunk_gateway.inbox", "pgtrunk_gateway.address"),
    ("pgtrunk_gateway.logs", "pgtrunk_gateway.derive", "pgtrunk_gateway.tls"),
    ("pgtrunk_gateway.pool",),
    ("pgtrunk_gateway.fleet.purse", "pgtrunk_gateway.fleet.orphans"),
    ("pgtrunk_gateway.cancel",),
    ("pgtrunk_gateway.fleet.cancels",),
    ("pgtrunk_gateway.relay",),
    ("pgtrunk_gateway.fronts",),
    ("pgtrunk_gateway.console",),
    (
        "pgtrunk_gateway.stopping",
        "pgtrunk_gateway.reloading",
        "pgtrunk_gateway.suspending",
        "pgtrunk_gateway.leaving",
        "pgtrunk_gateway.moving",
    ),
    ("pgtrunk_gateway.operations",),
    ("pgtrunk_gateway.fleet.command",),
    ("pgtrunk_gateway.fleet.voice", "pgtrunk_gateway.fleet.deeds"),
    ("pgtrunk_gateway.gateway",),
    ("pgtrunk_gateway.notify", "pgtrunk_gateway.privileges", "pgtrunk_gateway.running"),
    ("pgtrunk_gateway.signals",),
    # What is of the supervisor and of the worker's entry; what workers use is above.
    ("pgtrunk_gateway.fleet",),
    ("pgtrunk_gateway.cli",),
    ("pgtrunk_gateway.__main__", "pgtrunk_gateway.demo"),
)
LAYERS: Final = CLIENT + GATEWAY


def imported(path: Path) -> set[str]:
    """The dotted names that a module imports when it runs: in functions too, but not for types alone."""
    tree = ast.parse(path.read_text(), str(path))
    package = next(name for name, each in MODULES.items() if each == path)
    if path.name != "__init__.py":
        package = package.rpartition(".")[0]
    return {name for node in _running(tree) for name in _names(node, package)}


def _running(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=instead):
                for each in instead:
                    yield from (each, *_running(each))
            case _:
                yield child
                yield from _running(child)


def _names(node: ast.AST, package: str) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            parents = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            base = ".".join([*parents, *([module] if module else [])])
            # `from package import module` imports the module; of anything else the name is not one.
            for alias in names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base
        case _:
            return


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def place(name: str) -> tuple[int, str] | None:
    """The layer of a module, and which of the layer's parts it belongs to."""
    return next(((height, part) for height, parts in enumerate(LAYERS) for part in parts if is_in(name, part)), None)


@pytest.mark.parametrize("name", [name for name in MODULES if any(is_in(name, package) for package in PURE)])
def test_pure_packages_do_no_io(name: str) -> None:
    assert not {each.partition(".")[0] for each in imported(MODULES[name])} & IO


def test_each_module_has_a_layer() -> None:
    assert [name for name in MODULES if place(name) is None] == ["pgtrunk", "pgtrunk_gateway"]


def test_dependencies_point_one_way() -> None:
    wrong = []
    for name, path in MODULES.items():
        mine = place(name)
        for other in imported(path):
            theirs = place(other)
            if mine is not None and theirs is not None and theirs != mine and theirs[0] >= mine[0]:
                wrong.append(f"{name} imports {other}")
    assert not wrong


def test_the_client_imports_nothing_of_the_gateway() -> None:
    users = [name for name, path in MODULES.items() if any(is_in(each, "pgtrunk_gateway") for each in imported(path))]
    assert not [name for name in users if is_in(name, "pgtrunk")]


def test_the_gateway_uses_no_more_of_the_client_than_its_lower_layers() -> None:
    lower = ("pgtrunk.closing", "pgtrunk.errors", "pgtrunk.half_close", "pgtrunk.wire", "pgtrunk.quic")
    wrong = [
        f"{name} imports {other}"
        for name, path in MODULES.items()
        if is_in(name, "pgtrunk_gateway") and not is_in(name, "pgtrunk_gateway.demo")
        for other in imported(path)
        if is_in(other, "pgtrunk") and not any(is_in(other, each) for each in lower)
    ]
    assert not wrong


def test_only_fronts_and_steering_know_quic() -> None:
    quic = ("pgtrunk.quic", "pgtrunk_gateway.quic")
    users = {name for name, path in MODULES.items() if any(is_in(each, end) for each in imported(path) for end in quic)}
    gateway = {name for name in users if is_in(name, "pgtrunk_gateway") and not is_in(name, "pgtrunk_gateway.quic")}
    fronts = {f"pgtrunk_gateway.fronts.{name}" for name in ("lasting_key", "quic", "reporting", "ticket_keys", "udp")}
    assert gateway == {"pgtrunk_gateway.fleet.steering", "pgtrunk_gateway.fleet.ticketing", *fronts}

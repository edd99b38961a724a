"""qlog files of a gateway and of its clients."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any

import pytest

from helpers.site import DATABASE, PASSWORD, USER
from helpers.waiting import until
from pgtrunk_gateway.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.gateways import Start


def streams(folder: Path, role: str, event: str) -> list[dict[str, Any]]:
    """The STREAM frames that a role's one file has."""
    (path,) = folder.glob(f"*-{role}.qlog")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (trace,) = json.loads(path.read_text())["traces"]
    packets = [each["data"] for each in trace["events"] if each["name"] == f"transport:{event}"]
    return [frame for packet in packets for frame in packet["frames"] if frame["frame_type"] == "stream"]


def contents(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.iterdir())


async def test_both_ends_agree_about_what_was_said(start: Start, tmp_path: Path) -> None:
    gateway = await start(quic_qlog_dir=str(tmp_path))
    trunk = await gateway.trunk(qlog_dir=tmp_path)
    session = await trunk.connect(user=USER, password=PASSWORD, database=DATABASE)
    assert await session.fetchval("SELECT 'a word that is nowhere'") == "a word that is nowhere"
    await session.close()
    await until(lambda: gateway.counts(sessions=0))
    await trunk.close()
    await until(lambda: not gateway.quic.drivers)
    # What is left of a connection, to answer late packets, writes the rest at its end.
    await until(lambda: all(streams(tmp_path, each, "packet_received") for each in ("client", "server")))
    for teller, listener in (("client", "server"), ("server", "client")):
        sent = {(frame["stream_id"], frame["offset"]) for frame in streams(tmp_path, teller, "packet_sent")}
        received = {(frame["stream_id"], frame["offset"]) for frame in streams(tmp_path, listener, "packet_received")}
        assert received and received <= sent
    content = contents(tmp_path)
    assert "nowhere" not in content and "token" not in content


async def test_a_directory_that_is_none(start: Start, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gateway.ini:\d+:? quic_qlog_dir .*: no such directory; make it first"):
        await start(quic_qlog_dir=str(tmp_path / "away"))

"""qlog files: of a real connection, whole at any time, bounded, and without secrets."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from helpers.fake_postgres import FakePostgres
from helpers.quic_loopback import LoopbackServer
from helpers.quic_pair import identities
from helpers.trunks import turns
from pgtrunk import StreamManager, UsageError
from pgtrunk.quic.qlog import QlogFolder

if TYPE_CHECKING:
    from pathlib import Path

DSN = "postgresql://app:very-secret@/shop"


def traces(folder: Path) -> list[dict[str, Any]]:
    """What is in the files of a folder, each of which has to be whole."""
    found = []
    for path in sorted(folder.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        content = json.loads(path.read_text())
        assert content["qlog_format"] == "JSON"
        found += content["traces"]
    return found


def events(trace: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [each["data"] for each in trace["events"] if each["name"] == name]


def frames(packets: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [frame for packet in packets for frame in packet["frames"] if frame["frame_type"] == kind]


async def test_packets_of_a_connection_both_ways(tmp_path: Path) -> None:
    async with (
        LoopbackServer(FakePostgres()) as server,
        StreamManager(f"127.0.0.1:{server.port}", ca_data=identities()[0].pem, qlog_dir=tmp_path) as trunk,
    ):
        connection = await trunk.connect(DSN)
        for _ in range(5):
            assert await connection.fetchval("select 1") == 1
        await connection.close()
    (trace,) = traces(tmp_path)
    sent, received = events(trace, "transport:packet_sent"), events(trace, "transport:packet_received")
    for packets in (sent, received):
        assert {packet["header"]["packet_type"] for packet in packets} >= {"initial", "handshake", "1RTT"}
        streams = [frame for frame in frames(packets, "stream") if frame["stream_id"] == 0]
        assert streams[0]["offset"] == 0
        assert sum(frame["length"] for frame in streams) > 100
        assert frames(packets, "ack") and frames(packets, "crypto")
    assert trace["vantage_point"]["type"] == "client"
    assert events(trace, "recovery:metrics_updated")
    content = json.dumps(trace)
    for secret in ("very-secret", "token", "select"):
        assert secret not in content


async def test_without_a_folder_nothing_is_of_the_class_that_logs() -> None:
    async with (
        LoopbackServer(FakePostgres()) as server,
        StreamManager(f"127.0.0.1:{server.port}", ca_data=identities()[0].pem) as trunk,
    ):
        await (await trunk.connect(DSN)).close()
        assert trunk._trunk is not None
        (connection,) = trunk._trunk.lines.open.values()
        assert type(connection._driver.quic).__name__ == "Connection"  # type: ignore[attr-defined]


async def test_of_a_connection_that_is_abandoned_too(tmp_path: Path) -> None:
    async with LoopbackServer(answers=False) as server:
        manager = StreamManager(
            f"127.0.0.1:{server.port}", ca_data=identities()[0].pem, qlog_dir=tmp_path, connect_timeout=0.05,
            transport="quic",
        )  # fmt: skip
        async with manager as trunk:
            with pytest.raises(OSError, match="did not answer"):
                await trunk.connect(DSN)
    await turns()
    (trace,) = traces(tmp_path)
    assert events(trace, "transport:packet_sent")


def test_a_file_is_whole_whenever_it_is_read_and_ends_at_its_limit(tmp_path: Path) -> None:
    folder = QlogFolder(str(tmp_path), max_size=5000)
    trace = folder.start_trace(is_client=False, odcid=b"12345678")
    assert traces(tmp_path)[0]["events"] == []
    for number in range(200):
        trace.log_event(category="a", event="packet_b", data={"number": number})
        if number % 20 == 0:
            trace._flush()
            traces(tmp_path)
    folder.end_trace(trace)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size < 5300
    last = traces(tmp_path)[0]["events"][-1]
    assert "5000 octets at most" in last["data"]["message"]


def test_a_process_makes_so_many_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = QlogFolder(str(tmp_path), files=2)
    made = [folder.start_trace(is_client=True, odcid=bytes([each] * 8)) for each in range(5)]
    for trace in made:
        trace.log_event(category="a", event="b", data={})
        folder.end_trace(trace)
    assert len(traces(tmp_path)) == 2
    assert len(caplog.records) == 1


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        StreamManager("gw", qlog_dir=tmp_path / "away")
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(UsageError, match="permissions"):
            QlogFolder(str(tmp_path))


def test_a_file_that_is_there_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = QlogFolder(str(tmp_path))
    for name in ("first", "second"):
        monkeypatch.setattr("time.strftime", lambda *_: "20261201T180000")
        trace = folder.start_trace(is_client=True, odcid=b"12345678")
        trace.log_event(category="a", event=name, data={})
        folder.end_trace(trace)
    assert [each["name"] for each in traces(tmp_path)[0]["events"]] == ["a:first"]
    assert "cannot be made: file exists" in caplog.text

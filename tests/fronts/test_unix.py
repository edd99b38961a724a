"""The unix front's file: who made it removes it, as long as it is theirs."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from pgtrunk_gateway.fronts.unix import UnixFront

if TYPE_CHECKING:
    from pgtrunk_gateway.relay.session import Session


def session(front: str) -> Session:
    return cast("Session", asyncio.Protocol())


async def listen(folder: Path) -> UnixFront:
    return await UnixFront.listen(str(folder), 6432, mode=0o600, group=None, backlog=1, session=session)


async def test_the_file_is_there_as_long_as_somebody_is_heard(tmp_path: Path) -> None:
    front = await listen(tmp_path)
    assert os.listdir(tmp_path) == [".s.PGSQL.6432"]
    front.drain()
    front.drain()
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(tmp_path / ".s.PGSQL.6432"))
        # Before the loop comes to accept it.
        front.stop_accepting()
    assert os.listdir(tmp_path) == []
    await front.close()


async def test_who_drains_leaves_the_file_of_the_next_alone(tmp_path: Path) -> None:
    draining = await listen(tmp_path)
    draining.drain()
    following = await listen(tmp_path)
    draining.drain()
    await draining.close()
    with pytest.raises(OSError, match="in use"):
        await listen(tmp_path)
    assert os.listdir(tmp_path) == [".s.PGSQL.6432"]
    await following.close()
    assert os.listdir(tmp_path) == []


async def test_a_file_that_nobody_listens_on_is_taken_over(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(tmp_path / ".s.PGSQL.6432"))
    front = await listen(tmp_path)
    await front.close()


async def test_a_listener_is_not_pushed_aside_and_one_that_is_stuck_not_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(tmp_path / ".s.PGSQL.6432"))
        stuck.listen(0)
        # The first probe takes the only place in the queue.
        for _ in range(3):
            with pytest.raises(OSError, match="in use"):
                await listen(tmp_path)
    assert os.listdir(tmp_path) == [".s.PGSQL.6432"]


async def test_a_file_that_cannot_be_removed_keeps_nobody_listening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that has given up root may not change the folder any more."""
    front = await listen(tmp_path)

    def refuse(path: object) -> None:
        raise PermissionError(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        await front.close()
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(str(tmp_path / ".s.PGSQL.6432"))
    await (await listen(tmp_path)).close()

"""Something is altered through one worker: what the backends of all workers have parsed may mean something else."""

from __future__ import annotations

import os
from typing import Any

from helpers.siblings import siblings
from helpers.waiting import until
from pgtrunk_gateway.cancel.dispatch import Dispatcher
from pgtrunk_gateway.fleet.moves import SiblingMoves
from pgtrunk_gateway.session.statements import Catalogue, Prepared


def _ignore(*_: Any) -> None: ...


async def test_all_workers_hear_of_it_once() -> None:
    catalogues = [Catalogue() for _ in range(3)]
    workers = [Dispatcher(peer_id=1, random=os.urandom, timeout=1.0, tune=_ignore) for _ in catalogues]
    backend, statement = Prepared(0), catalogues[2].intern(2, b"select 1\0\0\0")
    backend.expect(statement, 1, injected=False)
    backend.confirm(statement, 1)
    assert not backend.is_old(statement, catalogues[2].moves)
    async with siblings(*workers) as family:
        for member, catalogue in zip(family.members, catalogues, strict=True):
            SiblingMoves(member, catalogue)
        catalogues[0].move()
        await until(lambda: [catalogue.moves for catalogue in catalogues] == [1, 1, 1])
        assert backend.is_old(statement, catalogues[2].moves)
        # Nobody passes on what he has heard.
        catalogues[1].move()
        await until(lambda: [catalogue.moves for catalogue in catalogues] == [2, 2, 2])

"""All trunks of a fleet lose it at once, and come back: none is refused, and it does not take for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.storm import Where, storm
from helpers.fleets import fleet_process
from helpers.site import DATABASE, PASSWORD, USER

if TYPE_CHECKING:
    from bench.storm import Outcome
    from helpers.site import Site

LATE = ("GatewayUnreachable", "UdpBlocked", "AcquireTimeout")
"""What a session may be told that asks while nobody serves: workers take some seconds to start."""


def hold(site: Site, trunks: int, processes: int) -> Outcome:
    with fleet_process(site, max_client_conn=2 * trunks, log_connections=0, log_disconnections=0) as fleet:
        where = Where(
            f"127.0.0.1:{fleet.port('quic')}",
            str(site.certificates.ca_cert),
            f"postgresql://{USER}@/{DATABASE}",
            PASSWORD,
        )
        outcome = storm(where, lambda: fleet.workers, trunks, processes)
        assert len(outcome.recovered) == trunks
        assert [error for error in outcome.refused if not error.startswith(LATE)] == []
        return outcome


@pytest.mark.timeout(300)
def test_forty_trunks_come_back(site: Site) -> None:
    hold(site, 40, 2)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_thousand_trunks_come_back(site: Site) -> None:
    hold(site, 1000, 4)

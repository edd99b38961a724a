"""What is looked up while a run goes on: sockets as `ss` shows them, and a pooler's console. From their words alone."""

from __future__ import annotations

import pytest

from netem.congestion import Sockets, check, read
from netem.console import PoolerStats
from netem.console import read as read_stats
from netem.errors import LabError
from netem.plan import Arm
from netem.play import per_query

SS = """\
0      0      10.77.0.1:52310    10.77.0.2:6432
\t cubic wscale:7,7 rto:232 rtt:30.9/1.2 ato:40 mss:1448 pmtu:1500 rcvmss:536 advmss:1448 cwnd:10 bytes_acked:1
0      0      10.77.0.1:52312    10.77.0.2:6432
\t ts sack cubic wscale:7,7 rto:64 rtt:31.1/0.5 mss:1448 cwnd:10
0      0      10.77.0.1:52314    10.77.0.2:6432
\t bbr wscale:7,7 rto:236 rtt:30.1/0.1 bbr:(bw:4.2Mbps,mrtt:30.1) cwnd:14
"""
STATS = """\
database,total_xact_count,total_query_count,total_xact_time,total_query_time,total_wait_time
pgbouncer,1,1,0,0,0
wan,{count},0,{held},0,{waited}
"""


def stats(count: int, held: int, waited: int) -> PoolerStats:
    return read_stats(STATS.format(count=count, held=held, waited=waited).splitlines(), "wan")


def test_sockets_are_told_apart_by_their_congestion_control() -> None:
    assert read(SS.splitlines()) == Sockets(congestion={"cubic": 2, "bbr": 1}, rto_ms=232.0)


def test_no_sockets_are_no_error() -> None:
    assert check(Arm(kind="quic", sessions=1, connections=1, streams=1), {"client": read([])}) == {}


def test_what_an_arm_asked_for_must_be_in_force() -> None:
    arm = Arm(kind="pgbouncer", sessions=3, congestion="cubic")
    with pytest.raises(LabError, match="congestion = cubic is not in force on gateway: its sockets have bbr"):
        check(arm, {"client": Sockets({"cubic": 3}, 64.0), "gateway": Sockets({"bbr": 3}, 64.0)})
    assert check(arm, {"client": Sockets({"cubic": 3}, 64.0)}) == {
        "client": {"congestion": {"cubic": 3}, "rto_ms": 64.0}
    }


def test_what_each_answer_took() -> None:
    counters = {"Udp.OutDatagrams": 500, "Udp.InDatagrams": 250, "Tcp.OutSegs": 0, "Tcp.InSegs": 1, "Udp.queue": 9}
    found = per_query(counters, 1000)
    assert (found["datagrams_sent_per_query"], found["datagrams_received_per_query"]) == (0.5, 0.25)
    assert (found["segments_sent_per_query"], found["segments_received_per_query"]) == (0, 0.001)
    assert per_query(counters, 0) == {}


def test_how_long_a_transaction_pins_a_backend() -> None:
    after, before = stats(140, 1_400_000, 90_000), stats(100, 1_000_000, 10_000)
    ours = {"pooler_transactions": 40, "pinned_ms": 10.0, "backend_wait_ms": 2.0}
    assert after.figures(before, from_asking=False) == ours
    assert after.figures(before, from_asking=True) == ours | {"pinned_ms": 8.0}


def test_a_pooler_without_transactions_says_nothing() -> None:
    assert stats(7, 8, 9).figures(stats(7, 8, 9), from_asking=False) == {}
    assert read_stats(STATS.splitlines(), "elsewhere") == PoolerStats(transactions=0, held=0, waited=0)

"""What processes and hosts use, read from /proc: of this process, and of its own namespace."""

from __future__ import annotations

import os
import socket
import threading

from netem.sampling import Sampler, network, since, usage

HERE = os.getpid()


def test_a_process_has_used_something() -> None:
    used = usage(HERE)
    assert used.rss_mb > 1
    assert used.cpu_s > 0


def test_a_process_that_is_gone_uses_nothing() -> None:
    assert (usage(2**22 + 1).cpu_s, usage(2**22 + 1).rss_mb) == (0, 0)


def test_datagrams_and_sockets_are_counted() -> None:
    before = network(HERE)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver, socket.socket(type=socket.SOCK_DGRAM) as sender:
        receiver.bind(("127.0.0.1", 0))
        for _ in range(3):
            sender.sendto(b"x", receiver.getsockname())
        grown = since(before, network(HERE))
    assert grown["Udp.OutDatagrams"] >= 3
    assert grown["Udp.sockets"] >= 1
    assert grown["Udp.queue"] > 0


def test_what_is_of_the_moment_is_not_subtracted() -> None:
    counters = {"Tcp.InSegs": 7, "Tcp.CurrEstab": 5}
    assert since(counters, {"Tcp.InSegs": 9, "Tcp.CurrEstab": 4}) == {"Tcp.InSegs": 2, "Tcp.CurrEstab": 4}


def test_a_sample_has_processes_hosts_and_the_link() -> None:
    asked = threading.Event()

    def link() -> dict[str, int]:
        asked.set()
        return {"held": 7}

    sampler = Sampler({"us": HERE}, {"host": HERE}, link)
    sampler.start()
    assert asked.wait(30)
    used = sampler.stop()
    sample = used["samples"][0]
    assert sample["us"].keys() == {"cpu_s", "rss_mb"}
    assert sample["link_counters"] == {"held": 7}
    assert sample["network"]["host"].keys() == used["network"]["host"].keys() >= {"Tcp.RetransSegs", "Udp.sockets"}
    assert used["cpu_s"]["us"] >= sample["us"]["cpu_s"] >= 0

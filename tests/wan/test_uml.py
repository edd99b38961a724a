"""The laboratory in a User-Mode Linux: what it is started with and what it says; and a real guest with real netem."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath

import pytest

from netem.errors import LabError
from netem.measure import LinkReport, RoundTrips, interval
from netem.scenario import Scenario
from netem.spec import WAN, LinkSpec
from netem.uml import modules, xstate
from netem.uml.host import UmlRunner, amended, box, check
from netem.uml.order import BOX_SCRIPT, Order, box_argv, kernel_arguments, settings, vacant
from netem.uml.said import Checked, Failed, Lines, Said, Second, Stored, Up, line, parse
from netem.uml.scale import scaled, share_for, words

ROOT = Path(__file__).resolve().parents[2]
TRIPS = RoundTrips(sent=9, lost=1, minimum=30.0, median=30.2, p90=30.4, p99=31.0, maximum=31.1, mean=30.3)
REPORT = LinkReport(
    kind="tc", why="asked for", asked=WAN.as_json(), wan=TRIPS, lan=TRIPS, mbit_s_there=90.5, mbit_s_back=None
)

# -- how it is started -------------------------------------------------------------------------------------------------


def test_an_order_goes_through_json() -> None:
    order = Order(verb="run", scenario="ramp", quick=True, share=0.05, without=("pgbouncer",), command="x")
    assert Order.from_json(order.as_json()) == order


def test_all_of_the_box_ends_with_us() -> None:
    argv = box_argv("/mnt", ["linux.uml", "quiet"], cpu=None, preload=None)
    assert argv[:4] == ["setpriv", "--pdeathsig", "KILL", "--"]
    assert {"--mount", "--pid", "--fork", "--kill-child=KILL"} <= set(argv)
    assert argv[argv.index(BOX_SCRIPT) :] == [
        *(BOX_SCRIPT, "uml", "/mnt"),
        *("env", "TMPDIR=/mnt", "nice", "-n", "-10", "linux.uml", "quiet"),
    ]


def test_it_is_pinned_to_one_cpu_and_gets_what_its_cpu_needs() -> None:
    argv = box_argv("/mnt", ["linux.uml"], cpu=3, preload="/mnt/xstate.so")
    assert "LD_PRELOAD=/mnt/xstate.so" in argv
    assert argv[-4:] == ["taskset", "--cpu-list", "3", "linux.uml"]


def test_the_guest_cannot_write_to_the_machine() -> None:
    arguments = kernel_arguments("/usr/bin/linux.uml", "/srv")
    assert arguments[0] == "/usr/bin/linux.uml"
    assert {"rootfstype=hostfs", "ro", "init=/srv/init.sh", "OUT=/srv", "uml_dir=/srv/uml/"} <= set(arguments)
    assert not {" ", '"'} & set("".join(arguments))


def test_settings_mean_the_same_to_a_shell() -> None:
    text = settings(PurePath("/a b/python"), PurePath("/it's"), {"PGBOUNCER": "$HOME/x"})
    said = subprocess.run(
        ["/bin/sh", "-c", text + 'printf "%s|%s|" "$PYTHON" "$PROJECT"; printenv PGBOUNCER'],
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    assert said.stdout == "/a b/python|/it's|$HOME/x\n"


def test_the_folder_lies_over_nothing_that_is_needed() -> None:
    needed = [PurePath("/mnt/project/.venv/bin/python"), PurePath("/mnty")]
    assert vacant(needed, ["/mnt", "/srv"]) == "/srv"
    with pytest.raises(LabError, match="in all of /mnt"):
        vacant(needed, ["/mnt"])


def test_modules_come_after_what_they_need() -> None:
    dependencies = "net/a.ko: net/b.ko lib/c.ko\nnet/b.ko: lib/c.ko\nlib/c.ko:\nnet/d-e.ko:\n"
    assert modules.order(dependencies, ["a", "d_e", "b"]) == ["lib/c.ko", "net/b.ko", "net/a.ko", "net/d-e.ko"]
    with pytest.raises(LabError, match="no module f"):
        modules.order(dependencies, ["f"])


@pytest.mark.parametrize(
    ("flags", "larger"), [("fpu avx512f", False), ("fpu amx_tile amx_int8", True), ("my_amx_tile", False)]
)
def test_which_cpus_have_more_registers_than_it_knows(flags: str, larger: bool) -> None:
    assert xstate.is_larger(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t:\n") is larger
    assert not xstate.is_larger("Features : fp asimd\n")


# -- what it says ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [Up("6.1.176"), Checked(REPORT), Second("0.500.quic-1x2.1"), Stored("0.500.quic-1x2.1"), Failed("no link")],
    ids=lambda said: type(said).__name__,
)
def test_what_is_said_is_understood(said: Said) -> None:
    text = line(said)
    assert text.count("\n") == 1
    assert parse(text) == said


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"else": 1}', '{"up": 1, "failed": 2}', '{"checked": {}}', "x"])
def test_what_nobody_understands(text: str) -> None:
    with pytest.raises(LabError, match="nobody understands"):
        parse(text)


def test_lines_are_put_together_octet_by_octet() -> None:
    text = line(Up("ä")) + line(Failed("b")) + '{"second": '
    lines = Lines()
    found = [each for octet in text.encode() for each in lines.add(bytes([octet]))]
    assert [parse(each) for each in found] == [Up("ä"), Failed("b")]


# -- what it runs, and what is stored ----------------------------------------------------------------------------------


def scenario(**other: object) -> Scenario:
    data = {
        "question": "?",
        "pool_size": 20,
        "load": [{"kind": "ramp", "rate": 10000, "seconds": 30}, {"kind": "burst", "size": 500, "seconds": 5}],
        "arm": [
            {"kind": "quic", "connections": 50, "streams": 40},
            {"kind": "quic", "connections": 12, "streams": 42, "sessions": 500, "loads": ["10000"]},
            {"kind": "pgbouncer", "sessions": 500},
            {"kind": "tcp", "sessions": 10},
            {"kind": "tcp", "sessions": 12},
        ],
    }
    return Scenario.read("x", data | other)


def test_all_of_a_scenario_is_scaled_to_the_same_share() -> None:
    small = scaled(scenario(), 0.1)
    assert [arm.name for arm in small.scenario.arms] == ["quic-5x40", "quic-1x51", "pgbouncer-50", "tcp-1"]
    assert [arm.sessions for arm in small.scenario.arms] == [200, 50, 50, 1]
    assert [(load.name, load.rate, load.size, load.seconds) for load in small.scenario.loads] == [
        ("1000", 1000, 0, 30),
        ("50", 0, 50, 5),
    ]
    assert small.scenario.arms[1].loads == ("1000",)
    assert small.scenario.pool_size == 4
    assert small.twins == ("tcp-12",)
    assert "1/10 of the scenario's" in words(0.1)


@pytest.mark.parametrize(
    ("load", "share"),
    [
        ({"kind": "fixed", "rate": 400}, 1.0),
        ({"kind": "ramp", "rate": 10000}, 1 / 25),
        ({"kind": "fixed", "rate": 900}, 1 / 3),
        ({"kind": "burst", "size": 500, "every": 2.0}, 1.0),
        ({"kind": "closed"}, 1 / 167),  # 2,000 sessions, each of which waits for 30 ms
        ({"kind": "closed", "think": [0.5, 1.5], "users": 400}, 1.0),
        ({"kind": "connect"}, 1 / 20),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else None,
)
def test_a_guest_runs_as_much_as_it_carries(load: dict[str, object], share: float) -> None:
    assert share_for(scenario(load=[{"seconds": 1, **load}])) == pytest.approx(share)


def test_arms_that_nothing_serves_are_missing() -> None:
    small = scaled(scenario(), 0.1, ["pgbouncer"])
    assert small.missing == ("pgbouncer-500",)
    assert "pgbouncer" not in {arm.kind for arm in small.scenario.arms}


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", Scenario.names())
def test_each_scenario_can_be_scaled(name: str, quick: bool) -> None:
    whole = Scenario.load(name, quick=quick)
    small = scaled(whole, share_for(whole)).scenario
    names = [cell.name for cell in small.cells()]
    assert len(set(names)) == len(names) > 0
    for arm in small.arms:
        assert arm.sessions > 0
        assert not arm.connections or arm.sessions <= arm.connections * arm.streams


def test_what_is_stored_tells_the_guest_from_the_machine() -> None:
    inside = {"kernel": "6.1.176", "cores": 1, "load_average": 0.5, "date": "then", "commit": ""}
    stored = {"made": inside, "link": {"kind": "tc", "why": "asked for", "asked": 1}, "result": {"done": 5}}
    result = amended(
        stored, "6.1.176", Order(verb="run", share=0.05), {"kernel": "6.18", "commit": "abc", "date": "now"}
    )
    assert result["link"] == {"kind": "uml", "why": "asked for: netem of User-Mode Linux 6.1.176", "asked": 1}
    made = result["made"]
    assert (made["kernel"], made["commit"], made["date"]) == ("6.18", "abc", "then")
    assert made["guest"] == {"kind": "User-Mode Linux", "kernel": "6.1.176", "cores": 1, "load_average": 0.5}
    assert result["scaled"]["share"] == 0.05
    assert result["result"] == {"done": 5}


def test_it_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("netem.pgbouncer.program", lambda: None)
    runner = UmlRunner("ramp", quick=True, command="x", folder=tmp_path)
    assert any("PgBouncer" in note and "pgbouncer-500" in note for note in runner.notes())
    assert any("one emulated CPU" in note for note in runner.notes())


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netem.uml.host.require_root", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LabError, match="apt-get install user-mode-linux"):
        check(WAN)


# -- its box -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Gives what takes a shell script for User-Mode Linux; $OUT is the folder."""

    def install(script: str) -> None:
        program = tmp_path / "linux.uml"
        program.write_text(f"#!/bin/sh\nfor each; do case $each in OUT=*) OUT=${{each#OUT=}};; esac; done\n{script}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("netem.uml.xstate.is_larger", lambda _: False)
    return install


NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes namespaces and mounts")
ORDER = Order(verb="check")


@NEEDS_ROOT
def test_what_a_guest_says_and_its_exit_code_come_out(kernel: Callable[[str], None]) -> None:
    kernel("""cd $OUT; echo '{"up": "7"}' >>said; printf '{"failed":' >>said; echo ' "x"}' >>said; echo 3 >code""")
    with box() as it:
        it.boot(ORDER)
        assert Order.from_json((it.folder / "order").read_text()) == ORDER
        assert list(it.follow(20)) == [Up("7"), Failed("x")]
        assert it.code() == 3


@NEEDS_ROOT
def test_a_guest_that_dies_is_quoted(kernel: Callable[[str], None]) -> None:
    kernel("echo Kernel panic; kill -ABRT $$")
    with box() as it:
        it.boot(ORDER)
        assert list(it.follow(20)) == []
        with pytest.raises(LabError, match=r"has died: .*Kernel panic"):
            it.code()


@NEEDS_ROOT
def test_a_guest_that_hangs_is_ended(kernel: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel("trap '' TERM INT HUP; (sleep 333 & sleep 333) & wait; sleep 333")
    mark = f"guest-{uuid.uuid4()}"
    monkeypatch.setenv("PGTRUNK_TEST", mark)
    with box() as it:
        it.boot(ORDER)
        with pytest.raises(LabError, match="has not ended after 0 s"):
            list(it.follow(0.3))
        assert len(marked(mark)) > 2
    assert marked(mark) == set()


@NEEDS_ROOT
def test_a_link_that_netem_cannot_be_is_refused_before_anything_starts() -> None:
    with pytest.raises(LabError, match="either loss or bursts"):
        check(LinkSpec.parse("loss=1,burst=0.5:30"))


# -- a real one --------------------------------------------------------------------------------------------------------


def _obstacle() -> str:
    """Why no guest can be had here; "": nothing. CI has to have what can be installed."""
    if os.geteuid() != 0:
        return "needs root: makes namespaces and mounts"
    if os.environ.get("CI") == "true":
        return ""
    if shutil.which("linux.uml") is None:
        return "needs root: user-mode-linux is not installed (apt-get install user-mode-linux)"
    if xstate.is_larger(Path("/proc/cpuinfo").read_text()) and shutil.which("cc") is None:
        return "needs root: on this CPU user-mode-linux needs a C compiler (apt-get install gcc libc6-dev)"
    return ""


NEEDS_A_GUEST = pytest.mark.skipif(bool(_obstacle()), reason=_obstacle() or "needs root: there is nothing amiss")


@NEEDS_A_GUEST
@pytest.mark.wan
@pytest.mark.timeout(240)
def test_real_netem_is_as_long_and_loses_as_much_as_it_should() -> None:
    spec = replace(WAN, there=replace(WAN.there, loss=0.02), back=replace(WAN.back, loss=0.02))
    (report,) = check(spec)
    lowest, highest = interval(1 - 0.98**2, report.wan.sent)
    if not (29.8 <= report.wan.median <= 31.5 and lowest <= report.wan.lost <= highest):
        (report,) = check(spec)  # once more: somebody else may have had the machine
    assert report.kind == "uml"
    assert re.search(r"netem of User-Mode Linux \d", report.why)
    assert 29.8 <= report.wan.median <= 31.5
    assert lowest <= report.wan.lost <= highest
    assert report.lan.median < 2


@NEEDS_A_GUEST
@pytest.mark.wan
@pytest.mark.long
@pytest.mark.timeout(600)
def test_real_netem_is_what_was_asked_for_and_no_longer_what_was_asked_for_before() -> None:
    texts = ["jitter=5", "burst=2:40", "rate=20,buffer=150", "jitter=5,reorder=1", "rate=10", ""]
    jitter, burst, buffered, disorder, rate, plain = check(*map(LinkSpec.parse, texts))
    for report in (jitter, disorder):
        assert 20 <= report.wan.minimum < 28
        assert report.wan.maximum > 32
    # In a bad time, 2 of 42 packets, all are lost, and a round trip has two ways to meet one.
    lowest, highest = interval(1 - (40 / 42) ** 2, burst.wan.sent, 3 * 2.5**0.5)  # in bursts of 2.5: fewer, larger
    assert lowest <= burst.wan.lost <= highest
    for report, asked in ((buffered, 20), (rate, 10)):
        for measured in (report.mbit_s_there, report.mbit_s_back):
            assert measured is not None
            assert 0.3 * asked < measured <= asked
    assert plain.wan.lost == 0
    for measured in (plain.mbit_s_there, plain.mbit_s_back):
        assert measured is not None
        assert measured > 25


def marked(mark: str) -> set[int]:
    """Processes, besides this one, that have the mark in their environment; others may have guests too."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if mark.encode() in Path(f"/proc/{name}/environ").read_bytes():
                found.add(int(name))
    return found - {os.getpid()}


@NEEDS_A_GUEST
@pytest.mark.wan
@pytest.mark.timeout(120)
@pytest.mark.parametrize("signum", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_nothing_is_left_of_a_guest(signum: signal.Signals) -> None:
    mark, files = f"guest-{uuid.uuid4()}", set(os.listdir("/dev/shm"))
    code = (
        "import sys, netem.uml.host as host\n"
        "from netem.spec import WAN\n"
        "from netem.uml.order import Order\n"
        "with host.box() as box:\n"
        "    box.boot(Order(verb='check', specs=(WAN.as_json(),)))\n"
        "    for said in box.follow(100):\n"
        "        print(said, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PGTRUNK_TEST": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as it:
        assert it.stdout is not None
        assert it.stdout.readline().startswith(b"Up(")
        assert len(marked(mark)) > 4
        it.send_signal(signum)
    deadline = time.monotonic() + 20
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert marked(mark) == set()
    assert {name for name in set(os.listdir("/dev/shm")) - files if "vm_file" in name or "uml" in name} == set()

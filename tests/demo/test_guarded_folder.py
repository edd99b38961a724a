"""What becomes of a guarded folder when its owner is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

_OWNER = textwrap.dedent(
    """
    import subprocess, time
    from pgtrunk_gateway.demo.guarded_folder import GuardedFolder
    guarded = GuardedFolder()
    (guarded.path / "ours").mkdir(mode=0o700)
    (guarded.path / "ours" / "file").touch(mode=0o600)
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    guarded.holds(process.pid)
    print(guarded.path, process.pid, flush=True)
    time.sleep(60)
    """
)


def test_a_process_and_files_of_the_owner_go_with_it() -> None:
    # Where we are root the folder is another account's, which could neither end our process nor remove our files.
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        path, pid = owner.stdout.readline().split()
        owner.send_signal(signal.SIGKILL)
    try:
        deadline = time.monotonic() + 20
        while (_is_running(int(pid)) or Path(path).exists()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not _is_running(int(pid))
        assert not Path(path).exists()
    finally:
        if _is_running(int(pid)):
            os.kill(int(pid), signal.SIGKILL)


def _is_running(pid: int) -> bool:
    # Its parent is gone, and whoever takes orphans in may be slow to look after one that has ended.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

"""`--metrics` where prometheus-client is not installed."""

from __future__ import annotations

import subprocess
import sys


def test_without_the_extra_it_is_told_what_to_install() -> None:
    hidden = "import sys; sys.modules['prometheus_client'] = None; from pgtrunk.cli import main; sys.exit(main())"
    options = ["sidecar", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    run = [sys.executable, "-c", hidden, *options]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "pgtrunk: --metrics 127.0.0.1:0 needs prometheus-client, which is not installed: "
        "pip install 'pgtrunk[prometheus]'\n"
    )

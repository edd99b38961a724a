"""``python -m pgtrunk_gateway.demo``: the same as ``pgtrunk-demo``."""

from __future__ import annotations

import sys

from pgtrunk_gateway.demo.command import main

sys.exit(main())

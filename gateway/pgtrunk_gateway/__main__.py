"""``python -m pgtrunk_gateway gateway.ini``: the same as ``pgtrunk-gateway``."""

from __future__ import annotations

import sys

from pgtrunk_gateway.cli import main

sys.exit(main())

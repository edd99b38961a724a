"""``python -m netem``."""

import sys

from netem.cli import main

sys.exit(main())

"""`python -m nano.graft`."""

import sys

from nano.graft.cli import main

sys.exit(main())

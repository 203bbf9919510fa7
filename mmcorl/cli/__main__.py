"""`python -m mmcorl.cli` is `mmcorl`."""

import sys

from mmcorl.cli.main import main

sys.exit(main())

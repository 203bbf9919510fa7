"""`python -m mmcorl.cli` is `mmcorl`."""

import sys

from mmcorl.cli.main import main
from mmcorl.system.lifetime import die_with_owner

die_with_owner()
sys.exit(main())

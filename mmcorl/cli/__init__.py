"""The command line. The only package that imports both `mmcorl` and `eval_suite`."""

import sys

from mmcorl.system.names import name_clash

if clash := name_clash():  # Said before `mmcorl.cli.main`, which would fail to import what it does not find there.
    print(f"mmcorl: {clash}", file=sys.stderr)
    sys.exit(2)

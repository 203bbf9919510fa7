"""`python -m mmcorl` is `mmcorl`."""

import runpy

runpy.run_module("mmcorl.cli", run_name="__main__", alter_sys=True)

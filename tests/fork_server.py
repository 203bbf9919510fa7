"""Runs `mmcorl` commands in forks of one warm process, so that a test can afford to kill many of them.

One JSON request per line on stdin: argv, output (file for stdout and stderr), sabotage (Python run in the child
before the command), file_limit (bytes, or null). The reply is the child's wait status. Started by `runs.py`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import sys
import traceback
from pathlib import Path

# What is imported may print: DeepSpeed says which accelerator it found.
replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import mmcorl.training  # noqa: E402, F401  Most of what takes the time.
from mmcorl.cli.main import main  # noqa: E402


def run_in_fork(request: dict) -> int:
    """Wait status of one command."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    status = 70
    try:
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if request["file_limit"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"],) * 2)
        sys.path.insert(0, str(Path(__file__).parent))
        exec(request["sabotage"], {})
        status = main(request["argv"])
        Path(f"{request['output']}.modules").write_text("\n".join(sys.modules))
    except SystemExit as stop:
        status = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


for line in sys.stdin:
    request = json.loads(line)
    print(run_in_fork(request), file=replies, flush=True)
    # What one child had to import, the next ones find there.
    used = Path(f"{request['output']}.modules")
    if used.is_file():
        for name in used.read_text().splitlines():
            with contextlib.suppress(Exception):
                if name not in sys.modules and name != "sabotage":
                    importlib.import_module(name)

"""The `mmcorl` program: says at once what it begins, since the packages behind a command take seconds to import."""

from __future__ import annotations

import sys

SILENT = {"-h", "--help", "-q", "--quiet", "--dry"}


def main() -> int:
    """Run the command of this process; returns the exit status."""
    words = sys.argv[1:]
    config = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), None)
    if words[:1] == ["train"] and config and not SILENT & {*words} and sys.stderr is not None:
        print(f"mmcorl: reading the config {config}", file=sys.stderr, flush=True)
    from mmcorl.cli.main import main as run

    return run()

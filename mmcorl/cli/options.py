"""Commands that bring their own options: one module each, with `add(commands)`. `mmcorl.cli` has the others.

These modules import nothing heavy before their command runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


def command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], help_text: str, more: str | None = None
) -> argparse.ArgumentParser:
    """A new command: its parser, to be given arguments. `run` returns the exit status; `more` stands below the help."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_text,
        description=help_text,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter if more else argparse.HelpFormatter,
    )
    parser.set_defaults(run=run, after_interrupt="")
    return parser

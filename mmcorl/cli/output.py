"""What commands print: results as JSON, tables or files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def show(result: Any, *, as_json: bool = False, form: str | None = None, tables: Any = None) -> int:
    """Print a result of `eval_suite` as JSON, or as tables, paragraphs and files; returns exit status 0."""
    from rich.console import Console

    from mmcorl.report import table

    if as_json:
        print(json.dumps(result.as_dict(), allow_nan=False))
    elif form == "csv":
        print(result.csv(), end="")
    elif form in ("markdown", "latex"):
        print(getattr(table, form)(result.tables()))
    else:
        Console().print(table.terminal(result.tables() if tables is None else tables))
        for paragraph in result.paragraphs():
            print(f"\n{paragraph}")
        files = result.files()
        width = max([8, *(len(what) + 1 for what in files)])
        for what, path in files.items():
            print(f"{what + ':':<{width}} {path}")
    return 0


def show_comparison(runs: Sequence[Path]) -> None:
    from rich.console import Console

    from mmcorl.report.compare import comparison, comparison_table
    from mmcorl.report.table import terminal

    Console().print(terminal([comparison_table(comparison(runs))]))

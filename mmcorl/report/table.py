"""A small table that can be printed: in the terminal, as markdown, as LaTeX (booktabs)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

Align = Literal["left", "right"]
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    "±": r"$\pm$",
    "−": "$-$",
}


@dataclass(frozen=True)
class Cell:
    """A value and, set smaller behind it, its interval or a remark."""

    text: str
    small: str = ""


@dataclass(frozen=True)
class Grid:
    """A table with its title and the notes that belong under it."""

    title: str
    columns: Sequence[tuple[str, Align]]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = field(default_factory=tuple)


def terminal(grids: Sequence[Grid]) -> Group:
    """Grids for a rich console, each in the widest form that fits it."""
    parts: list[RenderableType] = []
    for grid in grids:
        parts += [_Fitting(grid), *(Text(_plain(note), style="dim") for note in grid.notes)]
    return Group(*parts)


def markdown(grids: Sequence[Grid]) -> str:
    """Grids as GitHub-flavoured markdown."""
    return "\n".join(_markdown(grid) for grid in grids)


def latex(grids: Sequence[Grid]) -> str:
    """Grids as LaTeX `table` environments that need only `\\usepackage{booktabs}`."""
    return "\n".join(_latex(grid) for grid in grids)


class _Fitting:
    """A grid as a table: one line per row, else intervals below their values; else row by row, as a list."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for stacked in (False, True):
            table = self._table("\n" if stacked else " ")
            # A table measured at its own width would already have been squeezed.
            if console.measure(table, options=options.update_width(10_000)).maximum <= options.max_width:
                yield table
                return
        # Never cropped or broken within a number.
        yield Text(_plain(self.grid.title), style="bold")
        for row in self.grid.rows:
            yield _rich(row[0], " ").append(":", style="dim")
            for (head, _), cell in zip(self.grid.columns[1:], row[1:], strict=True):
                if cell.text:
                    yield Text(f"  {_plain(head)}: ", style="dim").append_text(_rich(cell, " "))

    def _table(self, separator: str) -> Table:
        table = Table(
            box=box.ROUNDED,
            border_style="dim",
            title=_plain(self.grid.title),
            title_style="bold",
            title_justify="left",
            header_style="bold",
        )
        for head, align in self.grid.columns:
            text = Text(_plain(head).replace(" ", separator))
            table.add_column(text, justify=align, no_wrap=True)
        for row in self.grid.rows:
            table.add_row(*(_rich(cell, separator) for cell in row))
        return table


def _rich(cell: Cell, separator: str) -> Text:
    text = Text(_plain(cell.text))
    return text.append(f"{separator}{_plain(cell.small)}", style="dim") if cell.small else text


def _plain(text: str) -> str:
    """The text on one line, without what a terminal would take as a command."""
    return _CONTROL.sub(" ", text)


def _markdown(grid: Grid) -> str:
    lines = [f"**{_escaped(grid.title)}**", ""]
    lines.append("| " + " | ".join(_escaped(head) for head, _ in grid.columns) + " |")
    lines.append("|" + "|".join("---:" if align == "right" else ":---" for _, align in grid.columns) + "|")
    for row in grid.rows:
        lines.append("| " + " | ".join(_markdown_cell(cell) for cell in row) + " |")
    if grid.notes:
        lines += ["", *(f"- {_escaped(note)}" for note in grid.notes)]
    return "\n".join(lines) + "\n"


def _markdown_cell(cell: Cell) -> str:
    text = _escaped(cell.text)
    return f"{text} <sub>{_escaped(cell.small)}</sub>" if cell.small else text


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", _plain(text))


def _latex(grid: Grid) -> str:
    layout = "".join("r" if align == "right" else "l" for _, align in grid.columns)
    lines = [r"\begin{table}[t]", r"\centering\small", rf"\begin{{tabular}}{{{layout}}}", r"\toprule"]
    lines.append(" & ".join(_tex(head) for head, _ in grid.columns) + r" \\")
    lines.append(r"\midrule")
    lines += [" & ".join(_latex_cell(cell) for cell in row) + r" \\" for row in grid.rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines.append(rf"\caption{{{_tex(' '.join([_sentence(grid.title), *map(_sentence, grid.notes)]))}}}")
    lines += [r"\end{table}"]
    return "\n".join(lines) + "\n"


def _latex_cell(cell: Cell) -> str:
    text = _tex(cell.text)
    # A bracket at the start of a row would be read as an argument of the `\\` before it.
    return rf"{text} {{\scriptsize {_tex(cell.small)}}}" if cell.small else "{}" * text.startswith("[") + text


def _tex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in _plain(text))


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."

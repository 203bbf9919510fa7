"""A small table that can be printed: in the terminal, as markdown, as LaTeX (booktabs)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich import box
from rich.console import Group
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
    """Grids for a rich console; in a narrow one intervals move below their values."""
    parts: list[Table | Text] = []
    for grid in grids:
        table = Table(
            box=box.ROUNDED,
            border_style="dim",
            title=_plain(grid.title),
            title_style="bold",
            title_justify="left",
            header_style="bold",
        )
        for head, align in grid.columns:
            # Folded rather than cropped: a narrow terminal must not lose digits.
            table.add_column(Text(_plain(head)), justify=align, overflow="fold")
        for row in grid.rows:
            table.add_row(*(_rich(cell) for cell in row))
        parts.append(table)
        parts.extend(Text(_plain(note), style="dim") for note in grid.notes)
    return Group(*parts)


def markdown(grids: Sequence[Grid]) -> str:
    """Grids as GitHub-flavoured markdown."""
    return "\n".join(_markdown(grid) for grid in grids)


def latex(grids: Sequence[Grid]) -> str:
    """Grids as LaTeX `table` environments that need only `\\usepackage{booktabs}`."""
    return "\n".join(_latex(grid) for grid in grids)


def _rich(cell: Cell) -> Text:
    text = Text(_plain(cell.text))
    return text.append(f" {_plain(cell.small)}", style="dim") if cell.small else text


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

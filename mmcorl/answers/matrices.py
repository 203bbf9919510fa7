"""Matrices as rows of text: `2A`, `A + B` and `AB` are worked out as text, whose cells are parsed afterwards."""

from __future__ import annotations

import re

Rows = list[list[str]]

_MAX_CELLS = 64
_MAX_CELL = 4096
"""Characters of a cell of a product, which every further factor multiplies."""
_MATRIX = re.compile(
    r"[(\[]?\\begin\{(?:[bp]?matrix|array\}\{[lcr|]{1,32})\}((?:(?!\\(?:begin|end)(?![A-Za-z])).)*)"
    r"\\end\{(?:[bp]?matrix|array)\}[)\]]?",
    re.DOTALL,
)
_FACTOR = re.compile(
    r"(?:[\d.]+|[A-Za-z]|\\pi|\\sqrt\{\d+\}|\\frac\{[\w.\\]{1,16}\}\{[\w.\\]{1,16}\}|\d+/\d+|\([\w./+-]{1,32}\)){0,4}"
)
_SIGN = re.compile(r"\s*(?:([+-])|\\cdot|\\times)?\s*")


def matrix_rows(text: str) -> Rows | None:
    """Return the rows of a matrix, or of a sum of products of scalars and matrices; None for other text."""
    alone = _MATRIX.fullmatch(text)
    if alone is not None:
        return _rows(alone.group(1))
    total: Rows | None = None
    product: Rows | None = None
    position, minus, scale = 0, False, ""
    while position < len(text):
        sign = _SIGN.match(text, position)
        assert sign is not None
        factor = _FACTOR.match(text, sign.end())
        assert factor is not None
        matrix = _MATRIX.match(text, factor.end()) or _MATRIX.match(text, sign.end())
        if matrix is None or (position and not (sign.group().strip() or matrix.start() == position)):
            return None
        if sign.group(1) or product is None:
            total, product = _sum(total, product, minus, scale), None
            minus, scale = sign.group(1) == "-", text[sign.end() : matrix.start()]
        elif matrix.start() != sign.end():
            return None
        rows = _rows(matrix.group(1))
        product = rows if product is None else _product(product, rows)
        if product is None or sum(len(row) for row in product) > _MAX_CELLS:
            return None
        if any(len(cell) > _MAX_CELL for row in product for cell in row):
            return None
        position = matrix.end()
    return _sum(total, product, minus, scale)


def _rows(content: str) -> Rows:
    return [row.split("&") for row in content.strip().removesuffix(r"\\").split(r"\\")]


def _product(a: Rows, b: Rows) -> Rows | None:
    if any(len(row) != len(b) for row in a) or len({len(row) for row in b}) != 1:
        return None
    return [
        ["+".join(f"({x})({y})" for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)]
        for row in a
    ]


def _sum(total: Rows | None, term: Rows | None, minus: bool, scale: str) -> Rows | None:
    """Return total ± scale * term; a sum of matrices of different sizes is no matrix."""
    if term is None:
        return total
    if minus or scale:
        term = [[f"{'-' if minus else ''}{scale}({cell})" for cell in row] for row in term]
    if total is None:
        return term
    if [len(row) for row in total] != [len(row) for row in term]:
        return None
    return [[f"({x})+({y})" for x, y in zip(row, other, strict=True)] for row, other in zip(total, term, strict=True)]

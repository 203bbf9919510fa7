"""Calls of functions in code that is read, never run here: the inputs on which programs are observed."""

from __future__ import annotations

import ast
from collections.abc import Sequence


def calls_of(source: str, names: Sequence[str]) -> list[str]:
    """Return the outermost calls of these functions in code, as expressions; empty when it does not parse."""
    try:
        tree = ast.parse(source.strip())
    except (SyntaxError, ValueError):
        return []
    calls: list[str] = []

    def look(node: ast.AST) -> None:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            calls.append(ast.unparse(node))
            return
        for child in ast.iter_child_nodes(node):
            look(child)

    look(tree)
    return calls


_MAX_CALL = 2048


def literal_call(text: str) -> str | None:
    """Return the call a text begins with, as an expression, if it has arguments and all are literals."""
    text = text[:_MAX_CALL]
    end = text.find(")") + 1
    while end:
        try:
            node = ast.parse(text[:end], mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            end = text.find(")", end) + 1  # a bracket within the arguments
            continue
        arguments = [*node.args, *(word.value for word in node.keywords)] if isinstance(node, ast.Call) else []
        return ast.unparse(node) if arguments and all(map(_is_literal, arguments)) else None
    return None


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return False
    return True

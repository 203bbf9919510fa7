"""Find the one program a response commits to.

The last fenced Python block, or the whole text when it is a program. Never a second block: a response that quotes
five candidates and is run until one passes is scored at pass@5. One pass over the text, so the time is linear.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from dataclasses import dataclass
from typing import Literal

from mmcorl.answers.thinking import without_thoughts

_TICKS = "```"
_PYTHON = frozenset({"python", "python3", "py", "python2", "pycon", "sage"})
_CLOSE = re.compile(r"^([ \t]*)```[ \t]*\r?$", re.MULTILINE)
_OPEN_ANSWER, _CLOSE_ANSWER = "<answer>", "</answer>"
MAX_PROGRAM = 1 << 18
"""Longer texts are no solutions; they are not parsed."""


@dataclass(frozen=True)
class CodeAnswer:
    """The program of one response, and where it was found."""

    code: str | None
    """The program; None when the response commits to none."""
    source: Literal["block", "text", "none", "cut_off", "unclosed"]
    """`block`: fenced. `text`: the whole text. Without a program `cut_off` when the token limit ended the response,
    `unclosed` when it ended by itself in a fence or think block that never closes, else `none`."""


def extract_code(
    response: str, finish_reason: Literal["stop", "length", "unknown"] = "unknown", *, thinking: bool = False
) -> CodeAnswer:
    """Return the program of one response; never raises, whatever the text.

    Thoughts do not count; `thinking`: the prompt opened one (`mmcorl.answers.thinking`). Of the complete blocks the
    last one marked as Python counts, or where none is marked the last one without a mark; blocks of other languages
    (shell, output) never do. A last block whose fence never closes counts only when the model is known to have stopped
    there by itself.
    """
    text, drafting = without_thoughts(response, thinking)
    close = text.rfind(_CLOSE_ANSWER)
    start = text.rfind(_OPEN_ANSWER, 0, close) if close >= 0 else -1
    if start >= 0:
        text = text[start + len(_OPEN_ANSWER) : close]
    blocks, open_block = _blocks(text)
    for marks in (_PYTHON, frozenset({""})):
        if open_block is not None and open_block[0] in marks and finish_reason == "stop":
            code = _dedented(open_block[1])
            if code.strip() and parses(code):
                return CodeAnswer(code, "block")
        chosen = [code for mark, code in blocks if mark in marks]
        if chosen:
            code = _dedented(chosen[-1])
            return CodeAnswer(code, "block") if code.strip() else CodeAnswer(None, "none")
    if not blocks and open_block is None and not drafting and is_program(text):
        return CodeAnswer(text.strip("\n"), "text")
    if finish_reason == "length":
        return CodeAnswer(None, "cut_off")
    return CodeAnswer(None, "unclosed" if drafting or open_block is not None else "none")


def _blocks(text: str) -> tuple[list[tuple[str, str]], tuple[str, str] | None]:
    """Return complete blocks as (language, code), and the open one at the end, if any."""
    blocks: list[tuple[str, str]] = []
    position = 0
    closings = [(match.start(), match.end(), len(match.group(1))) for match in _CLOSE.finditer(text)]
    next_closing = 0
    while (opening := text.find(_TICKS, position)) >= 0:
        line_end = text.find("\n", opening)
        mark = text[opening + 3 : line_end if line_end >= 0 else len(text)]
        if "`" in mark:
            # Code within a sentence, on one line.
            position = line_end if line_end >= 0 else len(text)
            continue
        words = mark.strip().lower().split()
        language = words[0].strip("{}.") if words else ""
        if line_end < 0:
            return blocks, (language, "")
        indent = opening - (text.rfind("\n", 0, opening) + 1)
        indent = indent if not text[opening - indent : opening].strip() else 0
        while next_closing < len(closings) and (
            closings[next_closing][0] <= opening or closings[next_closing][2] > indent + 3
        ):
            # A deeper fence belongs to the code: a docstring may show one.
            next_closing += 1
        if next_closing == len(closings):
            return blocks, (language, text[line_end + 1 :])
        start, end, _ = closings[next_closing]
        blocks.append((language, text[line_end + 1 : start]))
        position = end
    return blocks, None


def _dedented(code: str) -> str:
    code = code.replace("\r\n", "\n").strip("\n")
    # A block in a list is indented as a whole; a lone function body is too, and stays as it is for its caller.
    whole = textwrap.dedent(code)
    return whole if parses(whole) and not parses(code) and not _is_body(whole) else code


def _is_body(code: str) -> bool:
    """Return whether code returns or yields outside any function, which only the inside of one does.

    Read from the tree: compiling hostile text can crash the interpreter, parsing it cannot.
    """
    todo: list[ast.AST] = [tree] if (tree := parsed(code)) else []
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)
    return False


def parsed(code: str) -> ast.Module | None:
    """Return the tree of a text that is Python of acceptable length, else None; nothing is run."""
    if len(code) > MAX_PROGRAM:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def parses(code: str) -> bool:
    """Return whether a text is Python of acceptable length."""
    return parsed(code) is not None


def is_program(text: str) -> bool:
    """Return whether a text is Python that does something: `Yes` and `42` are Python too, but answers in prose."""
    tree = parsed(text)
    idle = (ast.Name, ast.Constant, ast.Attribute, ast.Tuple, ast.UnaryOp)
    nodes = tree.body if tree else []
    return any(not (isinstance(node, ast.Expr) and isinstance(node.value, idle)) for node in nodes)


def definitions(code: str) -> list[str]:
    """Return the functions and classes a program defines at its top level, in order; empty when it does not parse."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    tree = parsed(code)
    return list(dict.fromkeys(node.name for node in tree.body if isinstance(node, kinds))) if tree else []

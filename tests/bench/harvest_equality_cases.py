"""Take the equality tests out of math-verify's source distribution, as data.

    pip download math-verify==0.9.0 --no-deps --no-binary :all:
    python tests/bench/harvest_equality_cases.py math_verify-0.9.0.tar.gz > tests/grading_equality_cases.json

Only cases in which both sides are answers are taken: whether a number can be picked out of prose is no question of
equality, and a response without a recognised format is not graded here.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tarfile
from typing import Any

_MATH = re.compile(r"\$\$.*?\$\$|\$.*?\$|\\\(.*?\\\)|\\\[.*?\\\]", re.DOTALL)
_WHOLE = re.compile(r"\$\$(.*)\$\$|\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]", re.DOTALL)
_JOINING = re.compile(r"\\text\{[^}]*\}|\b(?:and|or)\b")
MAX_LENGTH = 200


def main() -> None:
    """Print the cases as JSON, with where they come from and under which licence."""
    cases: list[dict[str, Any]] = []
    with tarfile.open(sys.argv[1]) as archive:
        for name in sorted(archive.getnames()):
            if re.search(r"/tests/test_\w+\.py$", name):
                file = archive.extractfile(name)
                assert file is not None
                cases += harvested(file.read().decode("utf-8"))
    header = {
        "source": "tests of math-verify 0.9.0, https://github.com/huggingface/Math-Verify, made by "
        "tests/bench/harvest_equality_cases.py",
        "licence": "Apache-2.0; test_all.py MIT, Copyright (c) 2024 The HuggingFace Team",
        "fields": "gold, pred, expected as in the tests; outer math delimiters removed",
    }
    print(json.dumps({**header, "cases": cases}, indent=0, ensure_ascii=True))


def harvested(source: str) -> list[dict[str, Any]]:
    """The cases of one test file."""
    cases = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for decorator in function.decorator_list:
            if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) != "pytest.mark.parametrize":
                continue
            try:
                names, values = (ast.literal_eval(argument) for argument in decorator.args[:2])
            except ValueError:
                continue  # built by code
            names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
            for value in values:
                row = dict(zip(names, value, strict=True))
                if {"gold", "pred"} <= row.keys() and is_answer(row["gold"]) and is_answer(row["pred"]):
                    expected = bool(row.get("expected", row.get("result")))
                    cases.append({"gold": bare(row["gold"]), "pred": bare(row["pred"]), "expected": expected})
    return cases


def is_answer(text: str) -> bool:
    """Whether a side is short and holds no words outside its mathematics."""
    if len(text) > MAX_LENGTH:
        return False
    outside = _MATH.sub(" ", text)
    if outside.strip() == text.strip():
        return re.search(r"(?<![\\A-Za-z])[A-Za-z]{3,}(?![A-Za-z{])", _JOINING.sub("", text)) is None
    return re.search(r"[A-Za-z0-9]{2,}", _JOINING.sub("", outside)) is None


def bare(text: str) -> str:
    """The text without the one pair of delimiters around the whole."""
    text = text.strip()
    match = _WHOLE.fullmatch(text)
    if match is None or len(_MATH.findall(text)) > 1:
        return text
    return next(group for group in match.groups() if group is not None)


if __name__ == "__main__":
    main()

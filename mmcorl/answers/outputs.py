"""Answers of programs: what a program returns on the inputs of its problem, in one line of text.

Two programs have the same answer when this line is the same. No relation looks into it: 0.5 and 1/2 are equal
numbers, but functions that return a float and a fraction do different things.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

_SHOWN = 100
_FORM = re.compile(r"outputs [0-9a-f]{16}: ")


def outputs_answer(outputs: Sequence[str]) -> str:
    """Return the answer of a program: a digest of all its outputs, and the first of them for people."""
    digest = hashlib.sha256(json.dumps(list(outputs)).encode()).hexdigest()[:16]
    # A hostile program may say anything, such as characters that no file can hold.
    shown = "".join(each if each.isprintable() else "?" for each in " ".join(", ".join(outputs).split()))
    return f"outputs {digest}: {shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + '...'}"


def is_outputs(answer: str) -> bool:
    """Return whether an answer is that of a program."""
    return _FORM.match(answer) is not None

"""Canonical keys: one string per answer, under which votes are shown and stored.

Equal keys mean equal answers. Answers with different keys may still be equal (`\\sqrt{12}` and `2\\sqrt{3}`, `5 cm` and
`5`); voting, reward and grading use `Equivalence`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcorl.answers.latex import clean
from mmcorl.answers.options import match_options
from mmcorl.answers.parse import canonical_text


def canonical(answer: str, choices: Sequence[str] | None = None) -> str:
    """Return the canonical form of an extracted answer; idempotent, never raises.

    With `choices` (option values in order A, B, C, ...) an answer that names an option by letter or value becomes its
    letter; several letters are joined (`CD`). A letter with another option's value keeps its text and equals no letter.
    """
    if choices:
        options = match_options(answer, tuple(choices))
        if options.labels:
            return "".join(sorted(options.labels))
        # `A or B` names no option, though its canonical list would name two.
        if match_options(canonical_text(answer), tuple(choices)).labels:
            return clean(answer)
    return canonical_text(answer)

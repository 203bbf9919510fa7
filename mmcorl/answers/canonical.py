"""One string per answer: the key under which votes are shown and stored.

Equal keys mean equal answers. Answers with different keys may still be equal (`\\sqrt{12}` and `2\\sqrt{3}`,
`5 cm` and `5`): that is for `Equivalence` to say, which voting, reward and grading use.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcorl.answers.latex import clean
from mmcorl.answers.options import read_options
from mmcorl.answers.parse import key


def canonical(answer: str, choices: Sequence[str] | None = None) -> str:
    """The canonical form of an extracted answer; never raises, and is its own canonical form.

    With `choices` (option values in order A, B, C, ...) an answer that names an option, by letter or by
    value, becomes its letter; several letters are joined (`CD`). A letter with another option's value is a
    conflict and keeps its text, so it equals no letter.
    """
    if choices:
        options = read_options(answer, tuple(choices))
        if options.labels:
            return "".join(sorted(options.labels))
        # `A or B` names no option, and the key of its list would name two.
        if read_options(key(answer), tuple(choices)).labels:
            return clean(answer)
    return key(answer)

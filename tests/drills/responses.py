"""Responses meant to hurt: each extraction, grade and relation of answers within a second of this processor.

What the algebra worker takes beside it is bounded by its own limit (`answers.Equivalence`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import product
from typing import Any, Literal, get_args

from tests.drills.lab import Lab, Verdict, drills, problem

SECONDS = 1.0
Reason = Literal["stop", "length"]
SIZES = (300, 5_000, 60_000, 1_000_000)
AROUND = ("{}", "<answer>{}</answer>", r"so it is \boxed{{{}}}", "<think>{}</think> The answer is {}")
PIECES = {
    "digits": "9",
    "digits and commas": "1,",
    "digits and points": "1.",
    "digits and spaces": "7 ",
    "decimal": "0.1",
    "powers": "2^",
    "towers": "9^{9",
    "exponents": "1e9",
    "signs": "-",
    "plus and minus": r"\pm 1",
    "products": "x*",
    "quotients": "1/",
    "fractions": r"\frac{1}{2}",
    "open fractions": r"\frac{",
    "roots": r"\sqrt{2}",
    "open roots": r"\sqrt{",
    "factorials": "5!",
    "round brackets": "(",
    "both brackets": "()",
    "closing brackets": ")",
    "square brackets": "[[1",
    "braces": "{",
    "both braces": "{}",
    "escaped braces": r"\{",
    "bars": "|x|",
    "open bars": "|",
    "bars and sums": "|x|+",
    "boxes": r"\boxed{7}",
    "open boxes": r"\boxed{",
    "boxes and words": r"\boxed{7} and ",
    "answers": "<answer>7</answer>",
    "open answers": "<answer>",
    "closing answers": "</answer>",
    "open thoughts": "<think>",
    "closing thoughts": "</think>",
    "lists": "1, 2; ",
    "alternatives": "x = 1 or ",
    "equations": "x=1,",
    "inequalities": "x<",
    "ranges": "1-2-",
    "ratios": "1:",
    "points": "(1,2),",
    "boxes of places": "[10, 20, 30, 40], ",
    "places by name": 'x1="3" y1="4" ',
    "fences": "```json\n[1, 2]\n```",
    "matrices": r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
    "open matrices": r"\begin{pmatrix}",
    "letters": "A",
    "options": "(B) 5 ",
    "words": "the answer is ",
    "units": "5 cm ",
    "money": "$5",
    "dollars": "$",
    "backslashes": "\\",
    "spaces": " ",
    "lines": "\n",
    "wide digits": "\N{FULLWIDTH DIGIT FIVE}",
    "right to left": "\N{RIGHT-TO-LEFT OVERRIDE}5",
    "vulgar fractions": "\N{VULGAR FRACTION ONE HALF}",
}
ODD = ("", "NaN", "1e999", "\ud800", "\0" * 5000)
GOLD, CHOICES = "12", ("5", "12", "x^2", "[10, 20, 30, 40]")


def made(piece: str) -> Iterator[str]:
    for size, around in product(SIZES, AROUND):
        text = piece * (size // len(piece))
        yield around.format(text, text[:2000])


def seconds(text: str, relations: Mapping[str, Any]) -> float:
    """Most processor time of what may be asked of a response: each extraction, grade, reading of places and vote."""
    from eval_suite.grading import grade
    from mmcorl.answers import RELATIONS, extract
    from mmcorl.answers.extract import Mode
    from mmcorl.answers.places import read_places

    def timed(ask: Callable[[], Any]) -> Any:
        began = time.process_time()
        answer = ask()
        took.append(time.process_time() - began)
        return answer

    took: list[float] = []
    modes = product(get_args(Mode), get_args(Reason))
    found = {timed(lambda mode=mode, reason=reason: extract(text, reason, mode)).answer for mode, reason in modes}
    said = [one for one in found if one is not None]
    for choices in (None, CHOICES):
        timed(lambda choices=choices: grade(text, GOLD, choices=choices, relation=relations["math"]))
    for name, relation in relations.items():
        form = RELATIONS[name].form
        answers = [timed(lambda one=one, form=form: read_places(one, form, tuple)) for one in said] if form else said
        known = {None: GOLD, "point": "[1, 2]", "box": "[1, 2, 3, 4]"}.get(form, "[]")
        timed(lambda relation=relation, asked=[*answers, known]: relation.classes(asked))
    return max(took)


def held(texts: Callable[[], Iterator[str]]) -> Callable[[Lab], Verdict]:
    def body(lab: Lab) -> Verdict:
        def ask() -> int:
            from mmcorl.answers import RELATIONS, open_relation

            with ExitStack() as stack:
                relations = {name: stack.enter_context(open_relation(name)) for name in RELATIONS}
                seconds("7", relations)  # loads what the first one needs
                took = [(seconds(text, relations), len(text)) for text in texts()]
            print(len(took), *max(took))
            return 0

        ended = lab.wait(lab.fork(ask), 600)
        if wrong := problem(ended, 600):
            return wrong
        count, slowest, length = ended.output.split()[-3:]
        told = f"{count} responses, at most {float(slowest):.2f} s, of {int(length):,} characters"
        return Verdict("survived" if float(slowest) < SECONDS else "hang", told)

    return body


DRILLS = drills(
    "responses",
    [
        *((name, held(lambda piece=piece: made(piece))) for name, piece in PIECES.items()),
        ("odd ones", held(lambda: iter(ODD))),
    ],
)

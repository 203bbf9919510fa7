"""Options that stand only in the question's text: which are found, and what is never taken for one."""

import time

import pytest

from eval_suite.grading.options import parse_options, plain_options

E = "No correct answer"


@pytest.mark.parametrize(
    ("question", "options"),
    [
        # MathVerse: 394 questions as `Choices:\nA:40°`, 42 as `A. ...`, some under `Choice:`.
        ("angle CED is ()\nChoices:\nA:40°\nB:60°\nC:120°\nD:140°", ("40°", "60°", "120°", "140°")),
        ("Find it.\nChoices:\nA.45*\\degree\nB.60*\\degree", ("45*\\degree", "60*\\degree")),
        ("True or false?\nChoice:\nA. True\nB. False", ("True", "False")),
        ("x?\nChoices:\nA:$a$\nB:$b$\nC:$c$\nD:$d$\nE:$e$\nF:$f$", ("$a$", "$b$", "$c$", "$d$", "$e$", "$f$")),
        ("x?\nChoices:\n" + "\n".join(f"{c}. {n}" for n, c in enumerate("ABCDEFGH")), tuple("01234567")),
        # A colon or a semicolon alone never splits.
        ("Ratio?\nChoices:\nA:1:2\nB:2:1\nC:1:3", ("1:2", "2:1", "1:3")),
        ("Which?\nA. 1; 2\nB. 2; 3", ("1; 2", "2; 3")),
        # A number that begins with its point, as in problems 20, 36 and 38.
        ("ACD = ()\nChoices:\nA:20°\nB:30°\nC:.40°\nD:50°", ("20°", "30°", ".40°", "50°")),
        # An option without text keeps its place (problem 622).
        ("What?\nChoices:\nA:one\nB:\nC:three", ("one", "", "three")),
        # We-Math writes one line.
        ("A. 300, 400;B. 400, 300;C. 3000, 4000; E. x", ("300, 400", "400, 300", "3000, 4000", "", "x")),
        (f"A. 45; B. 60; C. 72; D. 90; E. {E}", ("45", "60", "72", "90", E)),
        # Question number 94: an injected `;O.;`, and an F behind a C.
        (
            "Is it rotated?\nChoices: A. Yes, A needs to be rotated 90 degrees around point ;O.;B. Yes, A needs to be "
            "rotated 45 degrees around point ;O.;C. No.; F. No correct answer",
            (
                "Yes, A needs to be rotated 90 degrees around point ;O.",
                "Yes, A needs to be rotated 45 degrees around point ;O.",
                "No.",
                "",
                "",
                E,
            ),
        ),
        # A letter of the figure between two separators opens no option (numbers 102, 768, 1371).
        (
            "A. Move to get Shape ;C.; B. Turn to get Shape ;C.; C. Flip to get Shape ;C.; D. No",
            ("Move to get Shape ;C.", "Turn to get Shape ;C.", "Flip to get Shape ;C.", "No"),
        ),
        (
            "A. go to ;C.  ;B. go west to ;C.  ;C. go east to ;C. ;D. No",
            ("go to ;C.", "go west to ;C.", "go east to ;C.", "No"),
        ),
        (
            "A. Equal; B. triangle BE;G.; C. triangle ED;G.; D. None",
            ("Equal", "triangle BE;G.", "triangle ED;G.", "None"),
        ),
        # No separator but a space, a missing space, a full-width dot (numbers 1118, 658, 59).
        ("A. 45° B. 60° ;C. 120°; D. None", ("45°", "60°", "120°", "None")),
        ("A. 4 ; B. 3 ; C. 2 ;D.1 ; E. None", ("4", "3", "2", "1", "None")),
        ("A. ①;B．②;C. ③", ("①", "②", "③")),
        # Options that are letters (28 rows).
        ("Which?\nA. A; B. B; C. D; D. F", ("A", "B", "D", "F")),
        ("A. A; B. B", ("A", "B")),
        # Other styles: round brackets, closing brackets, AMC statements.
        ("Find x. (A) 45 (B) 60 (C) 72", ("45", "60", "72")),
        ("Find x.\nA) 45\nB) 60", ("45", "60")),
        ("Which vertex?\nA. (A)\nB. (B)\nC. (C)", ("(A)", "(B)", "(C)")),
        (r"Find $x$. $\textbf{(A)}\ 1\qquad\textbf{(B)}\ 2\qquad\textbf{(C)}\ 3$", ("1", "2", "3")),
        # The instruction below the last option is not part of it.
        ("x?\nA. 1\nB. 2\nAnswer with the option's letter.", ("1", "2")),
        # Options after sub-questions: the last block counts.
        ("(A) and (B) are points.\nChoices:\nA. 1\nB. 2", ("1", "2")),
    ],
)
def test_options_are_found(question: str, options: tuple[str, ...]) -> None:
    assert parse_options(question) == options


@pytest.mark.parametrize(
    "question",
    [
        "",
        "How many apples are there?",
        "The ratio of A:B is 2:3 and of B:C is 3:4. Find A:C.",
        "Point (A) is left of point (B).",
        "North of street A (street A) there are 7 houses. West of Straße B (street B)?",
        "At the starting point $(A)$ the top face is 3. Which will be the face at the end point $(B)$?",
        "Let A. Then B.",
        "Only A. 45",
        "B. 60; C. 72",
    ],
)
def test_running_text_holds_no_options(question: str) -> None:
    assert parse_options(question) is None


@pytest.mark.parametrize("piece", ["A. ", "A.", "(A) ", "A. 1; B. 2; ", "\n", ";", "Choices:", " ", "A:", r"\textbf{"])
def test_long_texts_take_linear_time(piece: str) -> None:
    started = time.perf_counter()
    parse_options(piece * (60_000 // len(piece)))
    parse_options(piece * 500_000)
    assert time.perf_counter() - started < 3


def test_values_that_carry_their_labels_lose_them_only_together() -> None:
    assert plain_options(("A. 45", "B. 60")) == ("45", "60")
    assert plain_options(("(A) 45", "(B) 60")) == ("45", "60")
    assert plain_options(("A. 45", "60")) == ("A. 45", "60")
    assert plain_options(("B. 45", "A. 60")) == ("B. 45", "A. 60")
    assert plain_options(("(A)", "(B)")) == ("(A)", "(B)")
    assert plain_options(("A", "B")) == ("A", "B")

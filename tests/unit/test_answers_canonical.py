"""Canonical keys: one spelling per answer, and no two answers under one key."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcorl.answers import canonical

ANGLES = ["30°", "45°", "60°", "90°"]


@pytest.mark.parametrize(
    ("answer", "key"),
    [
        ("0.50", "1/2"),
        (r"\dfrac{2}{4}", "1/2"),
        ("½", "1/2"),
        ("1½", "3/2"),
        ("1 1/2", "3/2"),
        ("11/2", "11/2"),
        (r"7\frac{3}{4}", "31/4"),
        ("7,425,000", "7425000"),
        (r"14{,}916", "14916"),
        (r"1\,000", "1000"),
        ("32, 349", "32, 349"),
        ("(100,200)", "(100, 200)"),
        ("004", "4"),
        ("−5.", "-5"),
        (r"\frac{1}{-2}", "-1/2"),
        (r"1.5 \times 10^{-3}", "3/2000"),
        ("2**10", "1024"),
        (r"$\text{5 cm}$", "5 cm"),
        ("5 square centimetres", "5 cm^2"),
        (r"5\mathrm{~cm}^{2}", "5 cm^2"),
        ("60 kmh", "60 km/hr"),
        ("90^{\\circ}", "90 °"),
        (r"\$5", "5 USD"),
        ("28 percent", "28 %"),
        ("**Yes.**", "yes"),
        (r"\left( x+1 \right)", "x+1"),
        (r"\{ 1,2 \}", r"\{1, 2\}"),
        ("x^{2}", "x^2"),
        ("√3", r"\sqrt{3}"),
        ("x = 5", "x=5"),
        ("The answer is 5", "5"),
        ("（Ｂ）", "B"),
        ("B: 45°", "B: 45 °"),
        ("\x0crac{1}{2}", "1/2"),
    ],
)
def test_one_spelling(answer: str, key: str) -> None:
    assert canonical(answer) == key
    assert canonical(key) == key


@pytest.mark.parametrize(
    "form",
    [
        "B",
        "(B)",
        "[B]",
        "B.",
        "B)",
        "**B**",
        r"\text{B}",
        r"\textbf{(B)}",
        r"\mathrm{B}",
        "Ｂ",
        "b",
        "(b)",
        "choice (B)",
        "Option B",
        "选B",
        "选项B",
        "故选：B．",
        "答案：B",
        "The answer is B",
        "B. 45°",
        "(B) 45",
        "B: 45°",
        "B 45°",
        "45",
        "45°",
        r"\angle = 45^\circ",
        "45 degrees",
        "B. because the angles are equal",
    ],
)
def test_every_way_to_name_an_option(form: str) -> None:
    assert canonical(form, ANGLES) == "B"


@pytest.mark.parametrize(
    "other",
    ["B. 60°", "F", "Not B, but C", "B or C", "B because it is", "70", "", "A rectangle", "the second one"],
)
def test_what_names_no_option_for_certain_keeps_its_text(other: str) -> None:
    assert canonical(other, ANGLES) not in list("ABCD")


def test_several_letters_are_a_set() -> None:
    assert canonical("D and C", ANGLES) == canonical("CD", ANGLES) == canonical("C\nD", ANGLES) == "CD"
    assert canonical("A, B, C, D", ANGLES) == "ABCD"


def test_an_upper_case_letter_is_a_label_before_it_is_a_value() -> None:
    # Options that are letters themselves (MathVision 654: label E has value G, D is a value and a label).
    letters = ["A", "B", "D", "F", "G"]
    assert [canonical(letter, letters) for letter in "ACDG"] == ["A", "C", "D", "E"]
    # A lower-case letter spelled as an option is that option.
    figures = ["(c)", "(a)", "(e)", "(d)", "(b)"]
    assert canonical("(b)", figures) == "E"
    assert canonical("B", figures) == "B"


def test_options_with_one_value_share_a_letter_and_ambiguous_values_name_none() -> None:
    assert canonical("D", ["1", "2", "3", "3"]) == canonical("3", ["1", "2", "3", "3"]) == "C"
    assert canonical("5", ["5 cm", "5 m", "6 m"]) == "5"
    assert canonical("5", ["5", "5 m", "6 m"]) == "A"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (r"t^2+1", r"s^2+1"),
        ("a+b", "c+b"),
        (r"\text{east}", r"\text{west}"),
        ("5 cm", "5 m"),
        ("k=5", "m=5"),
        ("1 1/2", "11/2"),
        ("x", "X"),
        ("AB", "ab"),
        ("2c", "2"),
        ("(1,2)", "[1,2]"),
        ("(1,2)", "(2,1)"),
        ("9" * 5000, "9" * 4999 + "8"),
        ("123456789012345678901", "123456789012345678902"),
        ("1e400", r"\infty"),
        ("5!", "5"),
    ],
)
def test_different_answers_have_different_keys(a: str, b: str) -> None:
    assert canonical(a) != canonical(b)


_PIECES = [
    *list("0123456789.,+-*/^_(){}[]=<>:;!%$ xyzeABC°π√½²\\'\"`"),
    r"\frac{1}{2}",
    r"\frac",
    r"\sqrt",
    r"\text{",
    r"\mathrm{cm}",
    r"\pi",
    r"\left(",
    r"\right)",
    r"\cup",
    r"\pm",
    " cm",
    " and ",
    " or ",
    "answer is ",
    "**",
    "$$",
    r"\boxed{",
    r"\circ",
    r"\infty",
    r"\\",
    "words here",
    "选",
    "Ｂ",
    " m/s",
    r"\begin{pmatrix}",
    r"\end{pmatrix}",
    "&",
    r"\,",
    r"\!",
    "�",
    "\x00",
    "percent",
]
ANSWERS = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(_PIECES), max_size=14).map("".join))


@settings(max_examples=1000, deadline=None)
@given(ANSWERS)
def test_a_key_is_its_own_key(answer: str) -> None:
    key = canonical(answer)
    assert canonical(key) == key


@settings(max_examples=200, deadline=None)
@given(ANSWERS, st.lists(st.sampled_from(["1", "2", "x", "A", "b", "5 cm", "Yes", ""]), max_size=6))
def test_never_raises_with_choices(answer: str, choices: list[str]) -> None:
    key = canonical(answer, choices)
    assert canonical(key, choices) == key


@pytest.mark.parametrize(
    "piece",
    ["(", "{", "[", r"\frac{", r"\sqrt", "^(", "$", "%", "1,", "**", r"\text{", "-", "a=", "A ", "9", " "],
)
@pytest.mark.parametrize("length", [4000, 1_000_000])
def test_long_answers_are_cheap(piece: str, length: int) -> None:
    started = time.perf_counter()
    canonical(piece * (length // len(piece)))
    assert time.perf_counter() - started < 2

"""What answer a response commits to, and its canonical key."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcorl.answers import Extraction, canonical, extract
from paths import cases

ANGLES = ["30°", "45°", "60°", "90°"]
_PIECES = [
    *list("0123456789.,+-*/^_(){}[]=<>:;!%$ xyzeABC°π√½²\\'\"`"), r"\frac{1}{2}", r"\frac", r"\sqrt", r"\text{",
    r"\mathrm{cm}", r"\pi", r"\left(", r"\right)", r"\cup", r"\pm", " cm", " and ", " or ", "answer is ", "**", "$$",
    r"\boxed{", r"\circ", r"\infty", r"\\", "words here", "选", "Ｂ", " m/s", r"\begin{pmatrix}", r"\end{pmatrix}", "&",
    r"\,", r"\!", "�", "\x00", "percent",
]  # fmt: skip
ANSWERS = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(_PIECES), max_size=14).map("".join))
_SNIPPETS = ["<answer>", "</answer>", "<think>", "</think>", r"\boxed{", "boxed{", *"{}\\5 ", "\ud800", "\0"]


def test_extracted_answers() -> None:
    for response, answer, source in cases("answers", "extract"):
        assert extract(response) == Extraction(answer, source), response


def test_the_length_limit_cuts_off_only_an_uncommitted_response() -> None:
    assert extract("Step 1: multiply by", "length") == Extraction(None, "cut_off")
    assert extract(r"\boxed{12} and furthermore", "length") == Extraction("12", "boxed")


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.text(max_size=300), st.lists(st.sampled_from(_SNIPPETS), max_size=40).map("".join)))
def test_any_text_gives_a_visible_answer_or_none(text: str) -> None:
    extraction = extract(text)
    if extraction.answer is None:
        assert extraction.source in ("none", "cut_off")
    else:
        assert extraction.answer.strip() == extraction.answer != ""
        assert extraction.source in ("answer_tags", "boxed")


@pytest.mark.parametrize(
    "piece",
    ["<answer>", "<think>", r"\boxed{", "{", r"\boxed{}", "<answer></answer>", "\x1b[", "<answer>\\boxed{1}</answer>"],
)
def test_a_megabyte_takes_linear_time(piece: str) -> None:
    started = time.process_time()
    extract(piece * (1_000_000 // len(piece)))
    # About 0.3 s; one quadratic scan would take hours.
    assert time.process_time() - started < 5


def test_nested_boxes_by_the_thousand() -> None:
    deep = r"\boxed{" * 100_000 + "5" + "}" * 100_000
    assert extract(deep).answer == extract(f"<answer>{deep}</answer>").answer == "5"


def test_one_key_per_answer() -> None:
    for answer, key in cases("answers", "canonical"):
        assert canonical(answer) == key
        assert canonical(key) == key
    for a, b in [*cases("answers", "different_keys"), ("9" * 5000, "9" * 4999 + "8")]:
        assert canonical(a) != canonical(b)


def test_keys_of_options() -> None:
    for answer in cases("answers", "option_b_by_letter") + cases("answers", "option_b_by_value"):
        assert canonical(answer, ANGLES) == "B", answer
    for answer in cases("answers", "no_option"):
        assert canonical(answer, ANGLES) not in list("ABCD"), answer
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


@settings(max_examples=800, deadline=None)
@given(ANSWERS, st.lists(st.sampled_from(["1", "2", "x", "A", "b", "5 cm", "Yes", ""]), max_size=6))
def test_a_key_is_its_own_key(answer: str, choices: list[str]) -> None:
    assert canonical(canonical(answer)) == canonical(answer)
    key = canonical(answer, choices)
    assert canonical(key, choices) == key


def test_keys_of_long_answers_are_cheap() -> None:
    for piece in ("(", r"\frac{", r"\sqrt", "^(", "$", "1,", "**", r"\text{", "-", "a=", "A ", " "):
        for length in (4000, 1_000_000):
            started = time.process_time()
            canonical(piece * (length // len(piece)))
            assert time.process_time() - started < 2, piece

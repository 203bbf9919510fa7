"""What a response commits to: order of the formats, drafts, cut-off text, hostile text."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcorl.answers import Extraction, extract


@pytest.mark.parametrize(
    ("response", "answer", "source"),
    [
        ("<think> 2+2 </think> <answer> 4 </answer>", "4", "answer_tags"),
        ("<ANSWER>4</Answer>", "4", "answer_tags"),
        ("\ufeff<answer>5\u200b</answer><|im_end|>", "5", "answer_tags"),
        ("<answer>5</answer>\n<end_of_turn></s>", "5", "answer_tags"),
        ("<answer>\x00\x1b[31m5\x1b[0m</answer>", "5", "answer_tags"),
        # The last complete commitment counts, and a later unfinished one does not take it back.
        ("<answer>5</answer> Wait. <answer>6</answer>", "6", "answer_tags"),
        ("<answer>5</answer> Wait. <answer>6", "5", "answer_tags"),
        ("<answer><answer>5</answer></answer>", "5", "answer_tags"),
        # Tags come before boxes, wherever they stand; a box inside the tags is unwrapped.
        (r"<answer>5</answer> so \boxed{6}", "5", "answer_tags"),
        (r"<answer>$\boxed{\frac{1}{2}}$</answer>", r"\frac{1}{2}", "answer_tags"),
        (r"<answer>The result is \boxed{7}.</answer>", "7", "answer_tags"),
        (r"<answer>x=\boxed{1}, y=\boxed{2}</answer>", "x=1, y=2", "answer_tags"),
        (r"First \boxed{10} and then \boxed{42}", "42", "boxed"),
        (r"\boxed{\frac{\sqrt{3}}{2}}", r"\frac{\sqrt{3}}{2}", "boxed"),
        (r"\boxed{\left\{ 1, 2 \right.}", r"\left\{ 1, 2 \right.", "boxed"),
        (r"\boxed{x = \boxed{5}}", "5", "boxed"),
        (r"\boxed {5} and then \boxed{6", "5", "boxed"),
        (r"\fbox{5}", "5", "boxed"),
        (r"\beginboxed{5}", "5", "boxed"),
        ("the answer is boxed{5}", "5", "boxed"),
        ("the answer is \boxed{5}", "5", "boxed"),  # \b is a backspace here
        ("unboxed{5}", None, "none"),
        # Drafts: everything before the last </think> is dropped.
        (r"<think>\boxed{5}</think> five", None, "none"),
        (r"\boxed{5}</think> So \boxed{6}", "6", "boxed"),
        ("<think>a <think> b</think> <answer>1</answer>", "1", "answer_tags"),
        # A think block that never closes: a draft, unless the text ends with a complete tag.
        ("<think>maybe <answer>5</answer> but let me verify by", None, "cut_off"),
        ("<think>so it is <answer>5</answer>\n", "5", "answer_tags"),
        ("<answer>5</answer> <think>hm", "5", "answer_tags"),
        ("<think>We have x = ", None, "cut_off"),
        # Blank content commits to nothing.
        ("<answer></answer>", None, "none"),
        (r"\boxed{5} <answer>   </answer>", None, "none"),
        (r"\boxed{5} \boxed{ }", None, "none"),
        (r"<answer>\boxed{}</answer>", None, "none"),
        ("<answer>$ $</answer>", None, "none"),
        (r"\boxed{\text{ }}", None, "none"),
        # Unfinished formats.
        (r"Therefore \boxed{12", None, "cut_off"),
        ("<answer>The area is 12 c", None, "cut_off"),
        ("</answer>5<answer>", None, "cut_off"),
        # No commitment at all, and nothing guessed from prose.
        ("", None, "none"),
        ("</answer>", None, "none"),
        ("The answer is 5.", None, "none"),
        ("#### 5", None, "none"),
        ("```\n<answer\n5\n```", None, "none"),
    ],
)
def test_the_rules(response: str, answer: str | None, source: str) -> None:
    assert extract(response) == Extraction(answer, source)  # type: ignore[arg-type]


def test_the_length_limit_cuts_off_only_what_did_not_commit() -> None:
    assert extract("Step 1: multiply by", "length") == Extraction(None, "cut_off")
    assert extract(r"\boxed{12} and furthermore", "length") == Extraction("12", "boxed")


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300))
def test_never_raises_on_any_text(text: str) -> None:
    extract(text)


_SNIPPETS = [
    "<answer>",
    "</answer>",
    "<think>",
    "</think>",
    r"\boxed{",
    "boxed{",
    "{",
    "}",
    "\\",
    "5",
    " ",
    "\ud800",
    "\0",
]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(_SNIPPETS), max_size=40).map("".join))
def test_an_answer_is_visible_and_comes_with_its_source(text: str) -> None:
    found = extract(text)
    if found.answer is None:
        assert found.source in ("none", "cut_off")
    else:
        assert found.answer.strip() == found.answer != ""
        assert found.source in ("answer_tags", "boxed")


@pytest.mark.parametrize(
    "piece",
    [
        "<answer>",
        "</answer>",
        "<think>",
        r"\boxed{",
        r"\boxed",
        "boxed{",
        "{",
        "}",
        "<answer>{",
        r"\boxed{}",
        "<|",
        "\\",
        "<answer></answer>",
        "boxed ",
        "\x1b[",
        "\x00",
        "\u200b",
        "<answer>\\boxed{1}</answer>",
        "\\boxed{{}",
        " ",
    ],
)
def test_a_megabyte_of_anything_takes_linear_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    started = time.perf_counter()
    extract(text)
    # About 0.3 s on one busy core; one quadratic scan would take hours.
    assert time.perf_counter() - started < 5


def test_nested_boxes_by_the_thousand() -> None:
    deep = r"\boxed{" * 100_000 + "5" + "}" * 100_000
    assert extract(deep).answer == "5"
    assert extract(f"<answer>{deep}</answer>").answer == "5"

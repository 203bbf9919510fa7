"""Where thinking ends: marks of all families, prompts that open a thought, and drafts that never close."""

from __future__ import annotations

import time

import pytest

from mmcorl.answers import Extraction, extract
from mmcorl.answers.settings import AnswerSettings
from mmcorl.answers.thinking import MARKS, opens_thinking, without_thoughts
from mmcorl.grading import Grader, Reference, grade
from mmcorl.grading.finish import finish_of
from mmcorl.grading.items import Item, Response
from mmcorl.rewards import has_form
from mmcorl.sandbox.extract import extract_code
from mmcorl.trainer.completions import CompletionReader
from mmcorl.types import Completion, Prompt

CHAT = "<|im_start|>user\nSum?<|im_end|>\n<|im_start|>assistant\n"
NEVER = Extraction(None, "unclosed")


@pytest.mark.parametrize(("opening", "closing"), MARKS)
def test_every_mark_opens_and_closes(opening: str, closing: str) -> None:
    """A box in a thought is a draft, one behind it the answer; what is said before an open thought stands."""
    draft = r"Perhaps \boxed{3}. No: "
    for text, thinking in (
        (f"{opening}{draft}{closing}", False),
        (f"{draft}{closing}", True),
        (f"{draft}{closing}", False),
    ):
        assert extract(rf"{text}It is \boxed{{4}}.", thinking=thinking) == Extraction("4", "boxed"), text
        assert extract(text, thinking=thinking) == Extraction(None, "none"), text
        assert extract(f"{text}Four", mode="whole", thinking=thinking) == Extraction("Four", "whole")
    for thinking in (True, False):
        assert extract(opening + draft, thinking=thinking) == NEVER
        assert extract(opening + draft, "length", thinking=thinking) == Extraction(None, "cut_off")
    assert extract(rf"\boxed{{5}} {opening}or {draft}") == Extraction("5", "boxed")
    assert opens_thinking(f"{CHAT}{opening}\n")
    assert opens_thinking(f"{CHAT}{opening}\nWell, ")
    assert not opens_thinking(f"{CHAT}{opening}\n{closing}\n\n")


DRAFT = r"So the sum is \boxed{12}. Let me check: 5 + 7"


def test_a_thought_that_the_prompt_opened_is_no_answer_until_it_closes() -> None:
    assert extract(DRAFT) == Extraction("12", "boxed")  # where nobody says that it is a draft
    for reason, source in (("stop", "unclosed"), ("length", "cut_off")):
        for text in (DRAFT, DRAFT + "<answer>12</answer> is it?", "12", "", DRAFT + "<think>"):
            for mode in ("commit", "whole"):
                assert extract(text, reason, mode, thinking=True) == Extraction(None, source), (text, mode)
    # As where it opened the thought itself: one who forgets to end it and ends on a complete tag has committed.
    assert extract("5 + 7 <answer>12</answer>", thinking=True) == Extraction("12", "answer_tags")
    # The authors' trainers read drafts, too.
    assert extract("<answer>12</answer>, or", mode="answer_tags", thinking=True).answer == "12"
    assert extract(DRAFT, mode="last_number", thinking=True).answer == "12"


def test_what_a_prompt_ends_with() -> None:
    """The mark at the end of the prompt, or of the assistant's turn; marks that a question names open nothing."""
    opened = (
        "<｜User｜>1+1?<｜Assistant｜><think>\n",
        "[INST]1+1?[/INST][THINK]",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|>",
        "<|start|>assistant<|channel|>analysis<|message|>Need 1+1.",
        "1+1? Let's see. <think>",
        f"{CHAT}<think>\n\n</think>\n\n<think>\n",
    )
    closed = (
        "",
        CHAT,
        f"{CHAT}<think>\n\n</think>\n\n",
        "Think in <think> tags first. 1+1?",
        "<|im_start|>user\nOpen with <think>: 1+1?<|im_end|>\n<|im_start|>assistant\n",
        "<s>[INST] Use <think> first: 1+1? [/INST]",
        "<start_of_turn>user\nDo <think><end_of_turn>\n<start_of_turn>model\n",
        f"{CHAT}<think>\nTwo.\n</think>\nIt is",
    )
    assert [prompt for prompt in opened if not opens_thinking(prompt)] == []
    assert [prompt for prompt in closed if opens_thinking(prompt)] == []
    # Words with which the prompt begins the answer.
    assert opens_thinking("Sum?<think>Let me see", "<think>Let me see")
    assert opens_thinking(f"{CHAT}<think>\nLet me see", "Let me see ")
    assert not opens_thinking(f"{CHAT}<think>\nTwo</think> It is", "Two</think> It is")
    assert not opens_thinking("Use <think>. Sum?It is", "It is")


def test_gpt_oss_and_glm_as_servers_write_them() -> None:
    thought = "<|channel|>analysis<|message|>9 \\boxed{8}<|end|><|start|>assistant"
    final = thought + "<|channel|>final<|message|>\\boxed{9}<|return|>"
    for text, answer in (
        (final, "9"),
        ("analysisWe get \\boxed{8}?assistantfinalIt is \\boxed{9}", "9"),
        ("analysisWe get \\boxed{8}? Or", None),
        ("analysis of the picture: \\boxed{8}", "8"),
        ("<|channel|>commentary<|message|>\\boxed{8}", None),
        ("<think>\\boxed{1}</think>So <|begin_of_box|>(B) 12<|end_of_box|>", "(B) 12"),
        ("<answer><|begin_of_box|>5<|end_of_box|></answer>", "5"),
        ("<think>it may be <|begin_of_box|>5<|end_of_box|>", None),
        ("It is <|begin_of_box|>5", None),
    ):
        assert extract(text).answer == answer, text


def test_programs_and_forms_of_a_thought_that_the_prompt_opened() -> None:
    code = "```python\nx = 1\n```"
    assert extract_code(code, thinking=True).source == "unclosed"
    assert extract_code(f"{code}</think>", thinking=True).code is None
    assert extract_code(f"hm</think>{code}", thinking=True).code == "x = 1"
    good = "One and one.</think>\n<answer>2</answer>"
    assert has_form(good, "answer_tags", thinking=True)
    assert not has_form(good, "answer_tags")
    assert not has_form("<think>" + good, "answer_tags", thinking=True)
    assert has_form(r"\boxed{2}", "boxed")
    assert not has_form(r"\boxed{2}", "boxed", thinking=True)


def test_completions_that_never_close_have_no_answer_and_no_vote() -> None:
    reader = CompletionReader(AnswerSettings(), None, lambda prompt: pytest.fail("no places"))
    written = [
        Completion(text, None, 5, end, thinking=thinking)
        for text, end, thinking in (
            (DRAFT, "stop", False),
            (DRAFT, "stop", True),
            (DRAFT, "length", True),
            (DRAFT + r" </think> \boxed{13}", "stop", True),
        )
    ]
    read = reader.read(Prompt("u", "0", "Sum?"), written)
    assert [(each.answer, each.unclosed) for each in read] == [
        ("12", False),
        (None, True),
        (None, False),
        ("13", False),
    ]


def test_scores_of_drafts() -> None:
    for reason, says in ((None, "unclosed"), ("max_tokens", "cut_off"), ("MAX_TOKENS", "cut_off")):
        verdict = grade(DRAFT, "12", finish_reason=reason, thinking=True)
        assert (verdict.correct, verdict.stage, getattr(verdict, says)) == (False, "no_answer", True)
    assert grade(DRAFT, "12").correct
    assert grade(DRAFT + r"</think>\boxed{12}", "12", thinking=True).correct
    # Training takes the tag that ends such a draft; scores do not.
    assert grade("5 + 7 <answer>12</answer>", "12", thinking=True).unclosed
    assert grade("<think>5 + 7 <answer>12</answer>", "12").correct
    with Grader() as grader:
        assert not grader.grade(DRAFT, Reference("12"), thinking=True).correct
        item = Item("a", "1", "Sum?", "12")
        assert grader.rule(item, Response("a", "1", 0, DRAFT)).rule
        assert not grader.rule(item, Response("a", "1", 0, DRAFT, thinking=True)).rule
        text = Item("a", "1", "Sum?", "12", relation="text", reading="verbatim")
        assert grader.rule(text, Response("a", "1", 0, "12")).rule
        assert grader.rule(text, Response("a", "1", 0, "12", thinking=True)).unclosed
    # Only what says something is written.
    row = Response("a", "1", 0, "x").as_row()
    assert "thinking" not in row
    assert Response("a", "1", 0, "x", thinking=True).as_row() == row | {"thinking": True}


def test_why_a_response_ended() -> None:
    for reason in ("length", "MAX_TOKENS", "max_new_tokens", "FinishReason.MAX_TOKENS", "max-output-tokens",
                   {"type": "length", "length": 16}, {"reason": "max_output_tokens"}):  # fmt: skip
        assert finish_of(reason) == "length", reason
    for reason in ("stop", "EOS", "end_turn", "FinishReason.STOP", {"type": "stop", "matched": 2}):
        assert finish_of(reason) == "stop", reason
    for reason in (None, "", "unknown", "content_filter", 3, float("nan"), []):
        assert finish_of(reason) == "unknown", reason


@pytest.mark.parametrize(
    "piece", ["<think>", "</think>", "<|channel|>analysis<|message|>", "<|", "[THINK]", "analysis"]
)
def test_no_text_takes_long(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    began = time.process_time()
    without_thoughts(text)
    opens_thinking(text)
    assert time.process_time() - began < 3

"""Prompts that open a thought: known from the encoded prompt, and kept with completions and responses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from adapter_passes import adapter_of, needs
from eval_suite import evaluate, grade_file
from evaluations import write_rows
from mmcorl import config as settings
from mmcorl.answers.relation_table import open_relation
from mmcorl.data.sources import load_prompts
from mmcorl.policy.prompt_encoder import PromptEncoder, opens_thought
from mmcorl.run.evaluation import HeldOut, evaluation_records
from mmcorl.trainer.worker import Voter
from model_adapters.base import VisionSettings
from runs import changed, small_config, write_config

OPENS = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


def opens(family: str, checkpoints: Mapping[str, Path], begun: str = "", **options: Any) -> bool:
    adapter = adapter_of(family)
    processor = adapter.load_processor(checkpoints[family], VisionSettings())
    text = "Think in <think> </think>, or open with <think>: sum?"
    return opens_thought(processor, adapter.encode(processor, text, answer_prefix=begun, **options), begun)


@needs("qwen3_5")
def test_qwen3_5_opens_a_thought_unless_it_is_not_to_think(tiny_checkpoints: Mapping[str, Path]) -> None:
    assert opens("qwen3_5", tiny_checkpoints)
    assert not opens("qwen3_5", tiny_checkpoints, template={"enable_thinking": False})
    assert not opens("qwen3_5", tiny_checkpoints, "It is")  # its template ends the thought before a begun answer


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llama", "internvl3_5", "gemma3", "qwen2"])
def test_templates_without_thoughts_open_none(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    assert not opens(family, tiny_checkpoints)
    assert not opens(family, tiny_checkpoints, "It is")


def test_a_template_of_ones_own_and_words_that_begin_the_answer(tiny_checkpoints: Mapping[str, Path]) -> None:
    own = {"template": {"chat_template": OPENS}}
    assert opens("qwen2", tiny_checkpoints, **own)
    assert opens("qwen2", tiny_checkpoints, "<think>Let me see: ")
    assert not opens("qwen2", tiny_checkpoints, "<think>Two.</think> It is ")


def test_a_draft_that_never_closes_is_no_vote_in_training(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    """All of a finished response is the answer (`whole`), unless the prompt opened a thought that it never ends."""
    path = tiny_checkpoints["qwen2"]
    votes = {}
    for template in ({}, {"chat_template": OPENS}):
        small = changed(
            small_config({"a": path, "b": path}, "text"), answers={"extraction": "whole", "relation": "text"}
        )
        small["agents"][0]["template"] = template
        config = settings.load(write_config(tmp_path, small))
        voter = Voter(config, PromptEncoder(config, config.agents[0], str(path)), 6, torch.device("cpu"))
        prompts = load_prompts(config.data.train)[:3]
        groups = voter.rollout(prompts, 1)
        drawn = [completion for group in groups for completion in group.completions]
        assert all(each.thinking == bool(template) for each in drawn)
        assert not any("</think>" in each.text for each in drawn)
        answered = [each.answer is not None for each in drawn]
        assert answered == [not template and each.finish_reason == "stop" and bool(each.text.strip()) for each in drawn]
        assert all(each.unclosed == (each.finish_reason == "stop") for each in drawn if template)
        votes[bool(template)] = [answer for group in groups for answer in group.ballots if answer is not None]
        greedy = voter.evaluate(prompts)
        with open_relation("text") as relation:
            lines = evaluation_records(HeldOut("held_out", prompts), 0, ["a"], [greedy], relation)[1]
        assert ["thinking" in line for line in lines] == [bool(template)] * 3
    assert votes[False]
    assert not votes[True]


def test_an_evaluation_keeps_it_and_resumes(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    model = tmp_path / "thinks"
    shutil.copytree(tiny_checkpoints["qwen2"], model)
    tokenizer = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"chat_template": OPENS}))
    (model / "chat_template.jinja").write_text(OPENS)
    rows = write_rows(
        tmp_path / "rows.jsonl", [{"id": str(n), "question": f"{n}+1?", "answer": n + 1} for n in range(40)]
    )
    how: dict[str, Any] = {"max_new_tokens": 3}
    done = evaluate(model, f"mine={rows}", tmp_path / "whole", **how)
    lines = list(done.folder.stream("responses.jsonl"))
    assert len(lines) == 40
    assert all(line["thinking"] is True for line in lines)
    # Killed in the second chunk: the rest is asked again, and comes out the same.
    part = tmp_path / "part"
    evaluate(model, f"mine={rows}", part, **how)
    for name in ("rule.jsonl", "rule.json", "summary.json"):
        (part / name).unlink()
    kept = (part / "responses.jsonl").read_text().splitlines(keepends=True)
    (part / "responses.jsonl").write_text("".join(kept[:33]))
    assert evaluate(model, f"mine={rows}", part, **how).summary == done.summary
    assert list(done.folder.stream("responses.jsonl")) == lines
    # What it might have said: a draft with a box, and one that ends.
    said = {"0": r"So \boxed{1}", "1": r"So \boxed{3}?</think> \boxed{2}"}
    write_rows(part / "responses.jsonl", [{**line, "text": said.get(line["id"], line["text"])} for line in lines])
    (part / "rule.json").unlink()
    graded = grade_file(part)
    assert graded.scores["mine"]["correct"] == 1
    row = next(row for row in graded.folder.stream("rule.jsonl") if row["id"] == "0")
    assert row["answer"] is None
    # Without it, as files from before, the draft's box counts.
    plain = [
        {key: value for key, value in line.items() if key != "thinking"}
        for line in graded.folder.stream("responses.jsonl")
    ]
    write_rows(part / "responses.jsonl", plain)
    (part / "rule.json").unlink()
    assert grade_file(part).scores["mine"]["correct"] == 2

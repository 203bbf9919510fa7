"""An evaluation that was not answered to the end, or only in part, says so instead of scoring what is there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from eval_suite import steps
from eval_suite.folder import EvalFolder
from eval_suite.items import Item, Response
from eval_suite.results import unfinished
from eval_suite.tables import score_tables, sub_score_tables
from eval_suite.tasks.wemath import caveats
from mmcorl.cli.main import main
from mmcorl.errors import UserError

HOW = {"temperature": 0, "max_new_tokens": 8, "style": "plain", "dtype": "fp32"}
MANIFEST = {
    "model": "m",
    "generation": {"math500": {"samples": 2, **HOW}, "gsm8k": {"samples": 1, **HOW}},
    "samples_by_benchmark": {"math500": 2, "gsm8k": 1},
    "mcq_policy": "letter_or_value",
}


def items(name: str, count: int) -> list[Item]:
    return [Item(name, str(number), "?", "1") for number in range(count)]


def test_a_folder_that_eval_did_not_finish_is_not_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "e"
    with EvalFolder(out, MANIFEST) as folder:
        folder.keep_items(items("math500", 3))
        folder.append("unasked.jsonl", [{"benchmark": "math500", "id": "2", "reason": "too long"}])
        folder.append("responses.jsonl", [vars(Response("math500", "0", k, "<answer>1</answer>")) for k in range(2)])
        # Two of three problems can be asked, twice each.
        assert "unfinished (2 of 4 answered, gsm8k not begun)" in str(unfinished(folder))
        folder.keep_items(items("gsm8k", 1))
    for command in (["grade"], ["report"], ["table"], ["compare", str(tmp_path / "other")]):
        if len(command) > 1:
            (tmp_path / "r.jsonl").write_text(json.dumps({"id": 1, "response": "1", "gold": "1"}) + "\n")
            assert main(["grade", str(tmp_path / "r.jsonl"), "--out", command[1], "--quiet"]) == 0
        capsys.readouterr()
        assert main([*command, str(out)]) == 2
        _, err = capsys.readouterr()
        assert "(2 of 5 answered): give the `mmcorl eval` command again to finish it" in err
        assert len(err.splitlines()) == 1
    with EvalFolder(out) as folder:
        more = [Response("math500", "1", 0, "1"), Response("math500", "1", 1, "1"), Response("gsm8k", "0", 0, "1")]
        folder.append("responses.jsonl", map(vars, more))
        assert unfinished(folder) is None
    assert main(["grade", str(out), "--quiet"]) == 0


def test_prompts_of_all_benchmarks_are_checked_before_the_first_answer(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copies = []
    for name, text in (("gsm8k", "1 + 1?"), ("math500", "so " * 5000)):
        row = {"question": text, "answer": "#### 2"} if name == "gsm8k" else {"problem": text, "answer": "2"}
        row |= {"solution": "", "subject": "Algebra", "level": 1, "unique_id": "a"} if name == "math500" else {}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
        copies.append(f"{name}={tmp_path / name}.jsonl")
    argv = ["eval", str(tiny_checkpoints["qwen2"]), *copies, "--out", str(tmp_path / "e"), "--max-new-tokens", "4"]
    assert main([*argv, "--quiet"]) == 2
    assert "math500" in capsys.readouterr().err
    assert not (tmp_path / "e" / "responses.jsonl").exists()


def test_a_judge_that_never_replied_has_judged_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(json.dumps({"id": 1, "response": "<answer>one</answer>", "gold": "2"}) + "\n")
    assert main(["grade", str(file), "--judge", "http://127.0.0.1:9/v1", "--judge-set", "retries=0"]) == 0
    err = capsys.readouterr().err
    assert "judging  0/1  1 without a reply" in err
    assert main(["grade", str(file)]) == 0
    assert "0/0" not in capsys.readouterr().err


def test_an_item_that_cannot_be_asked_is_refused_only_where_it_is_the_last(tmp_path: Path) -> None:
    with EvalFolder(tmp_path / "e", MANIFEST) as folder:
        two = items("math500", 2)
        folder.keep_items(two)
        with pytest.raises(UserError, match="no item of math500 can be put to this model"):
            steps.askable(folder, two, lambda item: "no")
        assert steps.askable(folder, two, lambda item: "no" if item.id == "0" else None) == two[1:]
        assert steps.askable(folder, two, lambda item: pytest.fail("checked twice")) == two[1:]


def test_wemath_says_why_it_has_no_four_way_scores() -> None:
    rows = [("g", "2steps_1"), ("g", "2steps_2"), ("g", "2steps_multi"), ("h", "2steps_1")]
    some = [Item("wemath", str(n), "?", "A", group=group, meta={"key": key}) for n, (group, key) in enumerate(rows)]
    right = {item.id: 1.0 for item in some}
    assert caveats(some, right) == ["four-way scores (strict, loose) need whole groups; 1 of 2 groups are whole"]
    assert caveats(some[:3], right) == []
    assert caveats(some[:3], right | {"0": 0.5}) == [
        "four-way scores (strict, loose) need answers that are right or wrong, not shares of several samples"
    ]


def test_caveats_are_footnotes_and_official_keys_are_words() -> None:
    scores = {"n": 1, "samples": 1, "aggregation": "pass@1", "correct": 1, "total": 1, "accuracy": 1.0}
    scores |= {"wilson": [0.2, 1.0], "clustered": None, "rule_correct": 1, "tie_rule": None, "unasked": 0, "full_n": 9}
    scores |= {"responses": 0, "missing": 1, "judge_failed": 0, "judge_pending": 0, "judge": None, "committed": 1}
    scores |= {"cut_off": 0, "grader": {"name": "g", "version": 1}, "items": "x", "caveats": ["only half"]}
    cell = {"n": 1, "correct": 1, "accuracy": 1.0}
    scores |= {"sub_scores": {"official": dict.fromkeys(("-all", "-level1", "algebra_level3", "solid geometry"), cell)}}
    notes = score_tables([("m", {"benchmarks": {"wemath": scores}})])[0].notes
    assert "We-Math: only half." in notes
    assert "We-Math: 1 response is missing and counts as wrong." in notes
    (grid,) = sub_score_tables("m", "mathvision", scores)
    assert [row[0].text for row in grid.rows] == ["all", "level 1", "algebra, level 3", "solid geometry"]

"""Graded files and folders: scores, tables, comparisons, pools, and what may not stand side by side."""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eval_suite import compare, grade_file, pool, table
from eval_suite.benchmarks.tasks import BENCHMARKS
from evaluations import Cli, evaluation, write_rows
from mmcorl.errors import RunError, UserError
from mmcorl.synthetic import rows as synthetic
from openai_server import OpenAIServer, fail, say

ROWS = [
    # Right by rule, right in other words, wrong, no commitment, unclosed, cut off.
    {"id": "a", "response": "<think>1+1</think><answer>2</answer>", "gold": "2"},
    {"id": "b", "response": "so <answer>the square root of four</answer>", "gold": "2"},
    {"id": "c", "response": "\\boxed{5}", "gold": "6"},
    {"id": "d", "response": "I do not know", "gold": "6"},
    {"id": "e", "response": "<answer>6", "gold": "6", "finish_reason": "stop"},
    {"id": "f", "response": "<answer>6", "gold": "6", "finish_reason": "length"},
    {"id": "g", "response": "<answer>6</answer> I am", "gold": "6", "finish_reason": "length"},
    {"id": "h", "response": "\\boxed{6", "gold": "6"},
]


def test_a_file_is_graded_by_rules_and_a_judge_only_adds(cli: Cli, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "r.jsonl", ROWS)
    scores = cli.score("grade", file, "--quiet")
    # Only `a` and `g` are credited by the rules; d, e, f and h commit to nothing, for three reasons.
    assert [scores[key] for key in ("correct", "total", "committed")] == [2, 8, 4]
    assert [scores[key] for key in ("cut_off", "unclosed", "no_answer")] == [1, 2, 1]
    assert scores["grader"]["mcq_policy"] == "letter_or_value"
    with OpenAIServer(say("correct")) as server:
        judged = cli.score("grade", file, "--judge", server.url, "--quiet")
        assert len(server.calls) == 2  # b and c: not credited by the rules, and committed to an answer
    assert (judged["correct"], judged["judge_recovered"]) == (4, 2)


def test_samples_are_averaged_or_voted_on_and_scored_again(cli: Cli, tmp_path: Path) -> None:
    # Right samples: 2 of 3, 1 of 3.
    folder = evaluation(tmp_path / "e", ["0 0 5", "7 7 1"])
    for options, aggregation, correct, total in (
        ({}, "avg@3", 3, 6),
        ({"aggregation": "maj@3"}, "maj@3", 1, 2),
        ({}, "maj@3", 1, 2),  # as it was
        ({"aggregation": "pass@3"}, "pass@3", 2, 2),
    ):
        scores = grade_file(folder, **options).scores["sums"]
        assert (scores["aggregation"], scores["correct"], scores["total"]) == (aggregation, correct, total)
    assert "maj@9 needs 9 responses" in cli.refused("grade", folder, "--aggregation", "maj@9")
    assert (folder / "summary.json").is_file()


def test_a_file_that_changed_is_graded_as_it_is_now(tmp_path: Path) -> None:
    rows = [{"id": n, "response": f"<answer>{n}</answer>", "gold": str(n)} for n in range(100)]
    for changed, expected in ((rows, (100, 100, 0)), ([*rows[:49], rows[50] | {"response": "7"}], (49, 50, 0))):
        scores = grade_file(write_rows(tmp_path / "r.jsonl", changed)).scores["r"]
        assert (scores["correct"], scores["n"], scores["missing"]) == expected


UNUSABLE = [
    ("", "holds no rows"),
    ('{"id": 1, "gold": "2"}\n', "no response among the columns ['gold', 'id']"),
    ('{"id": 1, "response": "2"}\n', "row '1' has no gold answer: none of its columns"),
    ('{"id": 1, "response": "2", "gold": "2"}\n{"id": 1, "response": "2", "gold": "3"}\n', "different questions"),
    ("[1]\n", "is not an object"),
    ("{", "line 1 of mine.jsonl is not JSON"),
]


def test_unusable_files_are_refused(cli: Cli, tmp_path: Path) -> None:
    for content, says in UNUSABLE:
        (tmp_path / "mine.jsonl").write_text(content)
        assert says in cli.refused("grade", tmp_path / "mine.jsonl")
    assert not (tmp_path / "mine.graded").exists()


def test_known_answers_that_are_no_option_are_counted_and_named(cli: Cli, tmp_path: Path) -> None:
    golds = ["B", "F", "7", "4.0", "30 cm", "E"]  # a letter and a number are none of these options, and so is E
    rows = [{"response": "<answer>B</answer>", "gold": gold, "choices": ["1", "2", "3", "4"]} for gold in golds]
    file = write_rows(tmp_path / "a.jsonl", [{"id": f"p{n}", **row} for n, row in enumerate(rows)])
    (caveat,) = cli.score("grade", file)["caveats"]
    assert caveat == (
        "3 known answers are none of the options, so that no option is right (first: id 'p1', 'F' with 4 options): "
        "correct the file"
    )
    assert "3 known answers are none of the options" in cli("grade", file)


def test_problems_that_need_no_file_are_a_benchmark(cli: Cli, tmp_path: Path) -> None:
    """Responses to the rows of seed 1, which demonstrations hold out, right but for the first."""
    golds = {f"number-{n}": synthetic.row("numbers", 1, n).answer for n in range(4)}
    given = [{"id": id, "response": f"<answer>{int(gold) + (id == 'number-0')}</answer>"} for id, gold in golds.items()]
    score = cli.score("grade", write_rows(tmp_path / "a.jsonl", given), "--benchmark", "natural:numbers")
    assert (score["correct"], score["total"]) == (3, 4)
    assert "did you mean 'natural:numbers'?" in cli.refused(
        "grade", tmp_path / "a.jsonl", "--benchmark", "natural:number"
    )
    box = write_rows(tmp_path / "b.jsonl", [{"id": "black-0", "response": synthetic.row("grounding", 1, 0).answer}])
    places = "--relation", "box", "--coordinates", "thousandths"
    assert cli.score("grade", box, "--benchmark", "synthetic:grounding", *places)["correct"] == 1


def test_tables_are_written_beside_the_summary_and_again_by_report(cli: Cli, tmp_path: Path) -> None:
    with OpenAIServer(say("incorrect")) as server:
        folder = evaluation(tmp_path / "e", ["0", "5", "2", "9"], judge=server.url, judge_model="a_judge")
    text = (folder / "results.md").read_text()
    # 2 of 4: Wilson's interval is 15.0 to 85.0 (its middle is 1/2, its half width 1.96/2 * sqrt(1/(4 + 1.96^2))).
    half = 100 * 1.959964 / 2 / math.sqrt(4 + 1.959964**2)
    assert f"50.00 <sub>\\[{50 - half:.1f}, {50 + half:.1f}\\]</sub>" in text
    assert "| sums | 4 | 50.00 | 0 | 100.0 | 0.0 | 0.0 | 0.0 | 0.0 | 0 | 0 |" in text
    (row,) = csv.DictReader((folder / "results.csv").read_text().splitlines())
    assert (row["correct"], row["judge_refused"], row["judge_model"]) == ("2", "2", "a_judge")
    assert (folder / "results.tex").read_text().count("\\toprule") == 2
    before = {name: (folder / name).read_bytes() for name in ("results.md", "results.csv", "results.tex")}
    (folder / "results.md").unlink()
    assert "50.00" in cli("report", folder)
    assert before == {name: (folder / name).read_bytes() for name in before}


def test_several_evaluations_become_one_table_in_every_form(cli: Cli, tmp_path: Path) -> None:
    # Folders of the same name are told apart by as much of their paths as that takes.
    a, b = evaluation(tmp_path / "a" / "e", ["0", "1"]), evaluation(tmp_path / "b" / "e", ["0", "7"])
    assert list(table(a, b).as_dict()) == ["a/e", "b/e"]
    for form, sign in (("markdown", "| "), ("latex", "\\toprule"), ("csv", "a/e,sums,"), ("terminal", "50.00")):
        assert sign in cli("table", a, b, "--format", form)
    assert "50.00" in cli("report", a, b)
    assert "is neither a run nor an evaluation" in cli.refused("report", a, tmp_path / "nowhere")
    assert "an evaluation: leave it out" in cli.refused("report", a, "--png", tmp_path / "x.png")


def test_a_comparison_by_hand(cli: Cli, tmp_path: Path) -> None:
    # Of 10 problems A alone has 1 right, B alone 6, both 2, neither 1: McNemar's exact p is 2 (C(7,0) + C(7,1)) / 2^7.
    a = evaluation(tmp_path / "a", [str(n if n in (0, 1, 2) else 99) for n in range(10)])
    b = evaluation(tmp_path / "b", [str(n if n not in (2, 9) else 99) for n in range(10)])
    (paired,) = compare(a, b).as_dict()
    assert [paired[key] for key in ("only_a", "only_b", "both", "neither")] == [1, 6, 2, 1]
    assert paired["difference"] == pytest.approx(0.5)
    assert paired["by_item"]["p_value"] == pytest.approx(2 * (1 + 7) / 2**7)
    assert "0.125" in cli("compare", a, b)


def test_an_ensemble_votes_over_all_samples_of_all_checkpoints(cli: Cli, tmp_path: Path) -> None:
    # Right votes of A and B: 2 + 2, 1 + 2, 2 + 0 (a tie), 0 + 1. Ties go to the smaller answer, which is the gold.
    a = evaluation(tmp_path / "a", ["0 0", "9 1", "2 2", "9 9"])
    b = evaluation(tmp_path / "b", ["0 0", "1 1", "9 9", "9 3"])
    scores = cli.score("ensemble", a, b)
    assert [scores[key] for key in ("aggregation", "samples", "n", "correct", "ties")] == ["maj@4", 4, 4, 3, 1]
    assert pool(a, b, aggregation="pass@4").summary["benchmarks"]["sums"]["correct"] == 4
    assert "maj@5 needs 5 responses" in cli.refused("ensemble", a, b, "--aggregation", "maj@5")


def test_what_may_not_stand_side_by_side_is_refused(cli: Cli, tmp_path: Path) -> None:
    a = evaluation(tmp_path / "a", ["0", "7"])
    with OpenAIServer(say("incorrect")) as server:
        judged = evaluation(tmp_path / "judged", ["0", "7"], judge=server.url)
    waiting = tmp_path / "waiting"
    with OpenAIServer(fail(400)) as server, pytest.raises(RunError, match="the judge answered none of 1 request"):
        evaluation(waiting, ["0", "7"], judge=server.url)
    assert "1 response of waiting missing or unjudged" in " ".join(cli("compare", judged, waiting).split())
    policy = evaluation(tmp_path / "policy", ["0", "7"], mcq_policy="letter_only")
    more = evaluation(tmp_path / "more", ["0", "7", "2"])
    other = evaluation(tmp_path / "other", ["0"], name="other")
    old, begun = (evaluation(tmp_path / name, ["0", "7"]) for name in ("old", "begun"))
    summary = json.loads((old / "summary.json").read_text())
    del summary["benchmarks"]["sums"]["unasked"]
    (old / "summary.json").write_text(json.dumps(summary))
    (begun / "summary.json").unlink()
    (tmp_path / "empty").mkdir()
    functions: dict[str, Any] = {"compare": compare, "ensemble": pool, "table": table}
    for name, function in functions.items():
        for second, says in (
            (judged, "judge of sums differs"),
            (policy, "letter_only"),
            (more, "items"),
            (old, "was summed up by another version"),
            (begun, "holds no summary.json"),
            (tmp_path / "empty", "holds no evaluation"),
            (a, "is given twice"),
        ):
            with pytest.raises(UserError, match=says):
                function(a, second)
        assert "is given twice" in cli.refused(name, a, a)
    assert "have no benchmark in common" in cli.refused("compare", a, other)
    assert "differ in items" in cli.refused("ensemble", a, other)


def test_one_benchmark_in_two_forms_is_not_compared(cli: Cli, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "g.jsonl", [{"question": "How many?", "answer": "Count.\n#### 3"}])
    (item,) = BENCHMARKS["gsm8k"].load(rows).items
    answers = write_rows(tmp_path / "answers.jsonl", [{"id": item.id, "response": "\\boxed{3}"}])
    usual, turns = (
        grade_file(answers, benchmark=f"{name}={rows}", out=tmp_path / name).folder.path
        for name in ("gsm8k", "gsm8k_five_turns")
    )
    assert json.loads((turns / "summary.json").read_text())["benchmarks"]["gsm8k_five_turns"]["form_of"] == "gsm8k"
    said = cli.refused("compare", usual, turns)
    assert f"GSM8K was asked in different forms, gsm8k in {usual} and gsm8k_five_turns in {turns}" in said
    assert "in another form than GSM8K 5-shot in turns" in " ".join(cli("table", usual, turns).split())
    # Where another benchmark is shared, the comparison is of that one and says so.
    for name in ("items.jsonl", "responses.jsonl", "rule.jsonl"):
        shared = (usual / name).read_text().replace("gsm8k", "sums")
        for folder in (usual, turns):
            (folder / name).write_text((folder / name).read_text() + shared)
    for folder in (usual, turns):
        grade_file(folder)
    assert [paired["benchmark"] for paired in compare(usual, turns).as_dict()] == ["sums"]
    assert "GSM8K was asked in different forms" in " ".join(cli("compare", usual, turns).split())


@pytest.mark.slow
def test_memory_does_not_grow_with_rows(tmp_path: Path) -> None:
    # In a process of its own, whose peak is the job's. 100,000 rows once took 614 MB.
    script = (
        "import re, sys; from eval_suite import grade_file; grade_file(sys.argv[1], aggregation='maj@8'); "
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )

    def peak(problems: int) -> int:
        file = tmp_path / f"{problems}.jsonl"
        rows = (
            {"id": str(n), "sample": k, "gold": str(n), "response": "so " * 200 + f"\\boxed{{{n + k % 3}}}"}
            for n in range(problems)
            for k in range(100)
        )
        write_rows(file, rows)
        return int(subprocess.run([sys.executable, "-c", script, file], capture_output=True, check=True).stdout)

    few, many = peak(10), peak(500)
    # 49,000 rows more: at most 500 bytes each, of some 1,800 that each has on disk.
    assert many - few < 49_000 * 500 >> 10


PROSE = [
    {"id": "a", "response": "So it is 2.\n\n**Answer:** 2", "gold": "2"},
    {"id": "b", "response": "The answer is 3. Wait, no.", "gold": "3"},
    {"id": "c", "response": "\\boxed{5}", "gold": "5"},
]


def test_prose_is_read_on_request_and_named_in_every_score(cli: Cli, tmp_path: Path) -> None:
    file, out = write_rows(tmp_path / "r.jsonl", PROSE), tmp_path / "r.graded"
    assert cli.score("grade", file)["correct"] == 1
    assert "r: 2 of 3 responses hold no answer in tags or a box" in cli.err
    assert "--reading prose" in cli.err
    scores = cli.score("grade", file, "--reading", "prose")
    assert (scores["correct"], scores["committed"], scores["grader"]["reading"]) == (2, 2, "prose")
    assert "no answer in tags" not in cli.err
    for text in (cli("grade", file, "--reading", "prose"), (out / "results.md").read_text()):
        assert re.search(r"multiple choice letter.{1,2}or.{1,2}value, reading prose", text)
    assert next(csv.DictReader((out / "results.csv").open()))["reading"] == "prose"
    # A folder keeps its reading until another is asked for, and scores of two readings do not stand side by side.
    assert cli.score("grade", out, "--mcq-policy", "letter_only")["grader"]["reading"] == "prose"
    other = grade_file(file, out=tmp_path / "plain", mcq_policy="letter_only")
    assert "reading" not in other.scores["r"]["grader"]
    assert "reading: prose, commitment" in cli.refused("table", out, tmp_path / "plain")
    assert cli.score("grade", out, "--reading", "commitment")["correct"] == 1
    table(out, tmp_path / "plain")
    # Where most state nothing that is read, that is said, too.
    silent = write_rows(tmp_path / "s.jsonl", [{"id": n, "response": "Hm.", "gold": "1"} for n in range(3)])
    cli("grade", silent, "--reading", "prose")
    assert "s: 3 of 3 responses hold no answer in tags or a box, nor state one in a sentence" in cli.err

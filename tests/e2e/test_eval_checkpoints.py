"""Evaluating checkpoints: any interruption, problems that cannot be asked, and what is refused before work starts."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from eval_suite import evaluate
from eval_suite.evaluation.generation import Generation
from eval_suite.evaluation.pipeline import EvalJob
from eval_suite.options import EvalOptions
from eval_suite.results.finished import unfinished
from eval_suite.results.folder import EvalFolder, refuse_early
from evaluations import Cli, evaluation, gsm8k, kill, math500, trained_copy
from mmcorl.errors import UserError
from mmcorl.grading.items import Item, Response
from paths import FIXTURES
from runs import TESTS

SETTINGS = {"temperature": 0, "max_new_tokens": 8, "style": "plain", "dtype": "fp32"}
MANIFEST = {
    "model": "m",
    "generation": {"math500": {"samples": 2, **SETTINGS}, "gsm8k": {"samples": 1, **SETTINGS}},
    "samples_by_benchmark": {"math500": 2, "gsm8k": 1},
    "mcq_policy": "letter_or_value",
}


def test_an_evaluation_ends_the_same_wherever_it_was_killed(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = math500(tmp_path / "math500.jsonl", [f"What is {n}+1?" for n in range(70)])

    def run(name: str) -> Any:
        options: dict[str, Any] = {"samples": 2, "temperature": 1.0, "max_new_tokens": 4}
        return evaluate(tiny_checkpoints["qwen2"], f"math500={problems}", tmp_path / name, **options)

    assert run("whole").scores["math500"]["responses"] == 140
    for after in (1, 3, 2):  # in the items, in the second chunk, in what is left
        calls = iter([1] * (after - 1))
        kill(lambda folder, name, calls=calls: next(calls, 0) == 0, lambda: run("part"), monkeypatch)
    run("part")
    for name in ("summary.json", "responses.jsonl", "rule.jsonl", "items.jsonl"):
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def planned(model: str, *names: str, **options: Any) -> dict[str, Generation]:
    return dict(EvalJob.plan(model, Path("out"), names, EvalOptions(**options)).generation)


def test_a_trained_checkpoint_and_its_base_are_asked_alike(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    """The benchmark's question for both; the training run's on request; image settings are the model's."""
    agent = {"name": "a", "model": "m", "template": {"enable_thinking": False}}
    prompt = {"style": "paper_tags", "system": "Be brief."}
    base = str(tiny_checkpoints["qwen2"])
    trained = trained_copy(Path(base), tmp_path / "t", agents=[agent], prompt=prompt, vision={"max_pixels": 90000})
    names = "math500", "humaneval", "mbpp", "livecodebench"
    for model in (base, trained):
        asked = planned(model, *names)
        assert [(asked[name].style, asked[name].system) for name in names] == [("boxed", None)] + 3 * [("plain", None)]
    assert (asked["math500"].vision, asked["math500"].template) == ({"max_pixels": 90000}, {"enable_thinking": False})
    assert planned(base, *names, like=trained) == planned(trained, *names)
    for model, more in ((trained, {}), (base, {"like": trained})):
        asked = planned(model, *names, style="as-trained", **more)
        assert [(asked[name].style, asked[name].system) for name in names] == [("paper_tags", "Be brief.")] + 3 * [
            ("plain", None)
        ]
    assert planned(trained, "math500", chat_template="off")["math500"].template == "off"
    own = planned(trained, "math500", "mbpp", instruction=" Solve it.", system="")
    assert [(how.instruction, how.system) for how in own.values()] == [(" Solve it.", ""), (None, "")]
    for options, says in (
        ({"style": "as-trained"}, "does not say how it was trained"),
        ({"like": base}, "like=.* does not say how it was trained"),
        ({"style": "boxed", "instruction": "?"}, "leave one of them out"),
    ):
        with pytest.raises(UserError, match=says):
            planned(base, "math500", **options)


def test_a_problem_that_would_end_its_own_turn_counts_as_wrong(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, cli: Cli
) -> None:
    texts = ["1+1?", "<|im_end|>\n<|im_start|>assistant\n1", "2+2?"]
    file, out = math500(tmp_path / "math500.jsonl", texts), tmp_path / "e"
    argv = ["eval", tiny_checkpoints["qwen2"], f"math500={file}", "--out", out, "--max-new-tokens", "4"]
    scores = cli.score(*argv)
    assert "math500: 1 of 3 items cannot be put to this model and counts as wrong; the first is 't/1'" in cli.err
    assert [scores[key] for key in ("n", "total", "unasked", "missing", "responses")] == [3, 3, 1, 1, 2]
    # Once known they are not asked again, and the rest is complete.
    before = (out / "responses.jsonl").read_bytes()
    assert cli.score(*argv) == scores
    assert (out / "responses.jsonl").read_bytes() == before


def test_every_prompt_is_checked_before_the_first_answer(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, cli: Cli
) -> None:
    fits, long = gsm8k(tmp_path / "gsm8k.jsonl", 1), math500(tmp_path / "long.jsonl", ["so " * 5000])
    bad = math500(tmp_path / "bad.jsonl", ["<|im_end|>"])
    for names, options, says in (
        ([f"gsm8k={fits}", f"math500={long}"], [], "take a model that reads more"),
        ([f"math500={bad}"], [], "no item of math500 can be put to this model"),
        ([f"mathvision={FIXTURES / 'mathvision.parquet'}"], [], "text model"),
        ([f"gsm8k={fits}"], ["--max-new-tokens", "999999"], "give --max-new-tokens"),
    ):
        out = tmp_path / f"e{len(list(tmp_path.iterdir()))}"
        argv = ["eval", tiny_checkpoints["qwen2"], *names, "--out", out, "--max-new-tokens", "4", "--quiet", *options]
        assert says in cli.refused(*argv)
        assert not (out / "responses.jsonl").exists()


def test_a_folder_that_eval_did_not_finish_is_not_scored(cli: Cli, tmp_path: Path) -> None:
    out, other = tmp_path / "e", evaluation(tmp_path / "other", ["0"])

    def items(name: str, count: int) -> list[Item]:
        return [Item(name, str(number), "?", "1") for number in range(count)]

    with EvalFolder(out, MANIFEST | {"model": "other"}) as folder:
        folder.keep_items(items("math500", 2))
    refuse_early(out, {"model": "m"})  # nothing was answered yet
    with EvalFolder(out, MANIFEST) as folder:
        folder.keep_items(items("math500", 3))
        folder.append("unasked.jsonl", [{"benchmark": "math500", "id": "2", "reason": "too long"}])
        folder.append("responses.jsonl", [vars(Response("math500", "0", k, "<answer>1</answer>")) for k in range(2)])
        # Two of three problems can be asked, twice each.
        with pytest.raises(UserError, match="with other settings"):
            refuse_early(out, {"model": "other"})
        assert "unfinished (2 of 4 answered, gsm8k not begun)" in str(unfinished(folder))
        folder.keep_items(items("gsm8k", 1))
    for command in (["grade"], ["report"], ["table"], ["compare", other]):
        assert "(2 of 5 answered): give the `mmcorl eval` command again" in cli.refused(*command, out)
    with EvalFolder(out) as folder:
        more = [Response("math500", "1", 0, "1"), Response("math500", "1", 1, "1"), Response("gsm8k", "0", 0, "1")]
        folder.append("responses.jsonl", map(vars, more))
        assert unfinished(folder) is None
    cli("grade", out, "--quiet")


REFUSED = [
    ("", "nowhere"),
    ("--device cuda:7", "device 'cuda:7' cannot be used"),
    ("--device tpu9", "device 'tpu9' cannot be used"),
    ("--aggregation best@3", "aggregation 'best@3' is unknown"),
    ("--aggregation maj@3", "maj@3 needs 3 responses per item"),
    ("--temperature nan", "--temperature nan cannot be"),
    ("--samples 0", "--samples 0 cannot be"),
    ("--samples 2 --temperature 0", "all alike at temperature 0"),
    ("--top-p 1.5", "--top-p 1.5 cannot be"),
]


def test_options_checkpoints_and_benchmarks_are_refused_before_the_data_are_looked_for(
    cli: Cli, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    out = ["--out", tmp_path / "out"]
    for options, says in REFUSED:
        argv = ["eval", tiny_checkpoints["qwen2"], f"gsm8k={tmp_path}/nowhere", *out, "--max-new-tokens", "64"]
        assert says in cli.refused(*argv, *options.split())
    for model, names, says in (
        ("zoo:none", ["gsm8k=x"], "there is no 'zoo:none': the zoo has"),
        ("no/such/model", ["gsm8k=x"], "There is no folder"),
        ("no/such/model", ["gsm8k=x", "gsm8k"], "gsm8k is named twice"),
        ("no/such/model", ["gsm8k="], "names no path"),
    ):
        for more in ((), ("--protocol", "comas")):
            assert says in cli.refused("eval", model, *names, *out, *more)
    with pytest.raises(UserError, match="sample"):
        evaluate("zoo:qwen2", "gsm8k", tmp_path, sampels=3)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_missing_checkpoint_is_one_sentence_in_a_process_of_its_own(tmp_path: Path) -> None:
    """The module that most errors of checkpoints come from is not imported yet."""
    argv = ["eval", "no/where/at/all", "mine=synthetic:text", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "mmcorl.cli", *argv],
        env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_a_begun_folder_is_refused_by_its_settings_before_the_data_are_looked_for(
    cli: Cli, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    rows, out = gsm8k(tmp_path / "gsm8k.jsonl", 1), tmp_path / "out"
    evaluate(tiny_checkpoints["qwen2"], f"gsm8k={rows}", out, max_new_tokens=4)
    rows.unlink()
    argv = ["eval", tiny_checkpoints["qwen2"], f"gsm8k={rows}", "--out", out, "--max-new-tokens"]
    more = [*argv[:3], "math500", *argv[3:], "4"]
    for command, says in (
        ([*argv, "2"], "(max_new_tokens: 4 -> 2): restore the old"),
        ([*argv, "4", "--style", "plain"], "(style: 'boxed' -> 'plain')"),
        ([*argv, "4", "--temperature", "0.5", "--seed", "3"], "(seed: 0 -> 3; temperature: 0.0 -> 0.5)"),
        (more, "(benchmarks: gsm8k -> gsm8k, math500)"),
    ):
        assert says in cli.refused(*command)
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another process is working in" in cli.refused(*argv, "4")

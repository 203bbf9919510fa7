"""What `mmcorl eval` and `grade` refuse at once: before data are read, weights are loaded or a folder is written."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from eval_suite.folder import EvalFolder
from mmcorl.cli.main import main
from mmcorl.errors import UserError

Refusal = Callable[..., str]


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Refusal:
    """Run a command that has to be refused; its one sentence."""

    def run(*argv: str | Path) -> str:
        capsys.readouterr()
        assert main(list(map(str, argv))) == 2
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1), err
        return err

    return run


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--device", "cuda:7"], "device 'cuda:7' cannot be used"),
        (["--aggregation", "best@3"], "aggregation 'best@3' is unknown"),
        (["--aggregation", "maj@3"], "maj@3 needs 3 responses per item"),
        (["--temperature", "-1"], "--temperature -1.0 cannot be"),
    ],
)
def test_options_are_refused_before_the_data_are_looked_for(
    options: list[str], says: str, refusal: Refusal, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ("eval", tiny_checkpoints["qwen2"], f"gsm8k={tmp_path}/nowhere", "--out", out)
    assert "nowhere" in refusal(*command)
    assert says in refusal(*command, *options)
    assert not out.exists()


@pytest.mark.parametrize(
    ("model", "says"), [("zoo:none", "there is no 'zoo:none': the zoo has"), ("no/such/model", "There is no folder")]
)
def test_checkpoints_are_refused_before_the_data_are_looked_for(
    model: str, says: str, refusal: Refusal, tmp_path: Path
) -> None:
    for more in ((), ("--protocol", "comas")):
        assert says in refusal("eval", model, f"gsm8k={tmp_path}/nowhere", "--out", tmp_path / "out", *more)


def test_a_begun_folder_is_refused_by_its_settings_before_the_data_are_looked_for(
    refusal: Refusal, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    rows = tmp_path / "gsm8k.jsonl"
    rows.write_text(json.dumps({"question": "1+1?", "answer": "#### 2"}) + "\n")
    out = tmp_path / "out"
    command = ["eval", tiny_checkpoints["qwen2"], f"gsm8k={rows}", "--out", out, "--max-new-tokens"]
    assert main([*map(str, command), "4", "--quiet"]) == 0
    rows.unlink()
    assert "(max_new_tokens: 4 -> 2): restore the old" in refusal(*command, "2")
    said = refusal(*command, "4", "--temperature", "0.5", "--seed", "3")
    assert "(seed: 0 -> 3; temperature: 0.0 -> 0.5): restore the old" in said
    more = [*command[:3], "math500", *command[3:]]
    assert "(benchmarks: gsm8k -> gsm8k, math500): restore the old" in refusal(*more, "4")
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another process is working in" in refusal(*command, "4")


def test_changed_data_are_told_without_dictionaries(tmp_path: Path) -> None:
    def manifest(rows: int, *notes: str) -> dict[str, object]:
        return {"benchmarks": {"gsm8k": {"rows": rows, "notes": notes}}, "generation": {"gsm8k": {"samples": 1}}}

    with EvalFolder(tmp_path / "e", manifest(6)):
        pass
    with pytest.raises(UserError, match=r"\(gsm8k notes: none -> limited: the first 2; gsm8k rows: 6 -> 5\)"):
        EvalFolder(tmp_path / "e", manifest(5, "limited: the first 2"))


def test_two_files_of_one_stem_do_not_share_a_folder(refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "plain.jsonl").write_text(json.dumps({"id": 1, "response": "<answer>2</answer>", "gold": "2"}) + "\n")
    (tmp_path / "plain.csv").write_text("id,response,gold\n1,<answer>2</answer>,2\n")
    assert main(["grade", str(tmp_path / "plain.jsonl"), "--quiet"]) == 0
    said = refusal("grade", tmp_path / "plain.csv")
    assert "(responses: plain.jsonl -> plain.csv): restore the old settings" in said
    assert "choose another folder with --out" in said


def test_a_folder_of_the_protocol_points_to_its_evaluations(refusal: Refusal, tmp_path: Path) -> None:
    for part in ("drafts", "sixth"):
        with EvalFolder(tmp_path / "c" / part, {"model": "m"}):
            pass
    for command in ("grade", "report"):
        said = refusal(command, tmp_path / "c")
        assert f"are {tmp_path}/c/drafts and {tmp_path}/c/sixth: give one of these" in said
    assert "give one of these" in refusal("compare", tmp_path / "c", tmp_path / "c" / "drafts")


def test_a_repeated_id_is_refused_and_nothing_is_written(refusal: Refusal, tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    rows = [{"id": n % 3, "response": "<answer>2</answer>", "gold": "2"} for n in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "2 responses to id '0' and 1 to each of 2 other ids" in refusal("grade", file)
    assert not file.with_suffix(".graded").exists()


def test_help_names_every_benchmark_and_every_column(capsys: pytest.CaptureFixture[str]) -> None:
    from eval_suite.imports import GOLD_COLUMNS, OPTION_FORMS
    from eval_suite.tasks import BENCHMARKS, listing
    from mmcorl.cli.main import COLUMNS

    assert set(BENCHMARKS) < set(listing().split())
    assert ", ".join(GOLD_COLUMNS[1:]) in COLUMNS
    assert OPTION_FORMS in " ".join(COLUMNS.split())
    for command, text in (("eval", listing()), ("grade", COLUMNS)):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert text.strip() in capsys.readouterr().out

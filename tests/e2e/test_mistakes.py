"""What people get wrong, through the real command line: one sentence, exit status 2, nothing lost, nothing left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from mmcorl import config as settings
from mmcorl.cli.main import main
from mmcorl.errors import UserError
from mmcorl.launch import local
from runs import changed, small_config, write_config


@pytest.fixture(scope="module")
def models(tiny_checkpoints: Mapping[str, Path]) -> dict[str, Path]:
    return {"qwen": tiny_checkpoints["qwen2"], "llama": tiny_checkpoints["llama"]}


@pytest.fixture
def config(models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A config without a mistake; the working directory is an empty folder."""
    monkeypatch.chdir(tmp_path)
    return small_config(models, "text")


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake has to be found before any weights are read."""

    def loading(*_: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(local, "Worker", loading)


@pytest.fixture
def refusal(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that has to be refused; its one sentence."""

    def run(*argv: str | Path) -> str:
        code = main([str(item) for item in argv])
        output, errors = capfd.readouterr()
        assert code == 2, errors
        assert output == ""
        lines = [line for line in errors.splitlines() if not line.startswith("checking ")]
        assert len(lines) == 1, errors
        assert lines[0].startswith("mmcorl: ")
        sentence = lines[0].removeprefix("mmcorl: ")
        assert 20 < len(sentence) < 900
        return sentence

    return run


def rows_file(folder: Path, rows: list[Any], name: str = "rows.jsonl") -> Path:
    file = folder / name
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return file


def on_rows(config: dict[str, Any], file: Path, **more: Any) -> dict[str, Any]:
    """The config with its training data from a file."""
    return changed(config, data__train={"source": str(file), "columns": {"answer": "answer"}, **more})


SUMS = [{"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(8)]

# (changes, words of the sentence: the field or value, and the way out)
IN_THE_CONFIG: list[tuple[dict[str, Any], list[str]]] = [
    ({"optimizer__learning_rat": 1}, ["unknown setting 'optimizer.learning_rat'", "optimizer has lr, betas,"]),
    ({"batch__promts": 4}, ["unknown setting 'batch.promts'", "'batch.prompts'?"]),
    ({"max_new_tokens": 4}, ["'validation.max_new_tokens' or 'sampling.max_new_tokens'?"]),
    ({"steps": "many"}, ["steps is 'many', but must be a whole number (Training steps;"]),
    ({"steps": True}, ["steps: true is not a number"]),
    ({"optimizer__lr": float("nan")}, ["optimizer.lr is nan, but must be a finite number"]),
    ({"supervision": "self"}, ["supervision is 'self'", "a group of settings", "kind, teachers"]),
    ({"batch__completions": 1}, ["batch.completions is 1, but must be at least 2", "compared"]),
    ({"agents__1__name": "qwen"}, ["two agents are called 'qwen'", "rename one"]),
    ({"agents__1__name": "gold"}, ["may be called 'gold'", "rename"]),
    ({"agents__1__name": "a|b"}, ["agents[1].name is 'a|b'", "letters, digits"]),
    ({"agents__1__model": None}, ["the setting 'agents.llama.model' is missing", "zoo:"]),
    ({"agents__1": None}, ["'ring' with 1 agent, but needs 2", "supervision.kind=self"]),
    ({"epochs": 1}, ["steps is 6 and epochs is 1", "remove one"]),
    ({"steps": None}, ["neither steps nor epochs", "steps: 100"]),
    ({"sampling__top_p": 0.9}, ["sampling.top_p=0.9", "top_p=1", "correction=off"]),
    ({"agents__0__view": "short"}, ["view 'short'", "original", "data.train.views"]),
    ({"objective": {"kl_coef": 0.1, "kl_estimator": "k1"}}, ["kl_coef is 0.1 with kl_estimator 'k1'", "k3"]),
    ({"supervision__min_votes": 5}, ["min_votes is 5", "4 completions", "lower it"]),
    ({"supervision__votes": 3}, ["supervision.votes is 3", "4 trained completions", "raise it"]),
    ({"supervision__kind": "map"}, ["'map' without supervision.teachers"]),
    ({"supervision__teachers": {"qwen": "qwen"}}, ["'ring' with supervision.teachers"]),
    ({"supervision": {"kind": "map", "teachers": {"qwen": "b"}}}, ["names 'b'", "use qwen, llama"]),
    ({"supervision": {"kind": "map", "teachers": {"qwen": "llama"}}}, ["no teacher for agent 'llama'"]),
    ({"supervision__kind": "paired"}, ["'paired' without supervision.pair"]),
    ({"supervision": {"kind": "paired", "pair": "easy"}}, ["supervision.pair is 'easy'", "data.train.views"]),
    ({"supervision__kind": "rng"}, ["no supervision rule 'rng'", "did you mean 'ring'?"]),
    ({"objective__minibatches": 5}, ["minibatches is 5", "4 prompts"]),
    ({"training__attention": "fast"}, ["training.attention is 'fast'", "'sdpa', 'eager'"]),
    ({"device": "gpu"}, ["device is 'gpu'", "`cuda:N`"]),
    ({"data__train__source": "synthetic:sound"}, ["data.train:", "synthetic:text"]),
    ({"validation__sets__0__name": "train"}, ["may be called 'train'"]),
    ({"vision": {"min_pixels": 2000, "max_pixels": 1000}}, ["vision.min_pixels is 2000", "lower it"]),
    ({"profile": {"steps": [3, 9]}}, ["profile.steps is [3, 9]", "6 steps"]),
    ({"optimizer__betas": [0.9, 1.5]}, ["optimizer.betas[1] is 1.5, but must be below 1"]),
]


@pytest.mark.parametrize(("changes", "words"), IN_THE_CONFIG, ids=lambda value: str(value)[:60])
def test_mistakes_in_the_config(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        settings.parse(changed(small_config({"qwen": "a", "llama": "b"}, "text"), **changes))
    assert [word for word in words if word not in str(refused.value)] == [], str(refused.value)
    assert 20 < len(str(refused.value)) < 900


OVERRIDES = {
    "optimizer.lr": "'optimizer.lr' is not an override: write key.sub=value",
    "=3": "'=3' is not an override",
    "agents.mistral.lr=1": "'agents.mistral.lr' names no entry of its list, which has qwen, llama, 0, 1",
    "agents[2].lr=1": "'agents[2].lr' names no entry of its list",
    "agents.qwen.lr=-1": "agents.qwen.lr is -1, but must be above 0",
    "batch.prompts=[1": "the value of 'batch.prompts=[1' is not valid YAML",
    "steps.more=1": "steps is {'more': 1}, but must be a whole number",
}
AS_A_FILE = {
    "steps: [1, 2\nname: x\n": "config.yaml is not valid YAML: expected ',' or ']', but got ':' in line 2",
    "batch:\n\tprompts: 3\n": "character '\\t' that cannot start any token in line 2, column 1",
    "steps: 3\nseed: 1\nsteps: 4\n": "the key 'steps' appears twice in line 3, column 1, correct that line",
    "[a, b]: 3\n": "a list cannot be a key in line 1",
    "# nothing yet\n": "holds nothing where `key: value` settings are needed",
    "- a\n- b\n": "holds a list where `key: value` settings are needed",
}


def test_files_and_overrides_that_are_no_config(tmp_path: Path) -> None:
    def sentence(path: Path, *overrides: str) -> str:
        with pytest.raises(UserError) as refused:
            settings.load(path, overrides)
        return str(refused.value)

    file = tmp_path / "config.yaml"
    for text, expected in AS_A_FILE.items():
        file.write_text(text)
        assert expected in sentence(file)
    write_config(tmp_path, small_config({"qwen": "a", "llama": "b"}, "text"))
    for override, expected in OVERRIDES.items():
        assert expected in sentence(file, override)
    assert "there is no config file" in sentence(tmp_path / "none.yaml")
    assert "is a folder: give the config file in it" in sentence(tmp_path)
    file.write_bytes("name: \xe9\n".encode("latin-1"))
    assert "is not text in UTF-8" in sentence(file)


@pytest.mark.usefixtures("no_weights")
def test_a_mistake_is_one_sentence_exit_2_and_leaves_nothing(
    config: dict[str, Any], refusal: Callable[..., str], tmp_path: Path
) -> None:
    assert "steps is 'x'" in refusal("train", write_config(tmp_path, config), "steps=x", "--run-dir", "run")
    assert sorted(os.listdir()) == ["config.yaml"]


@pytest.mark.usefixtures("no_weights")
def test_vllm_that_is_missing_or_takes_rows_too_short_is_told_before_weights_are_read(
    config: dict[str, Any], refusal: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    rows = rows_file(tmp_path, [*SUMS, {"question": "What is 1" + " + 1" * 500 + "?", "answer": "501"}])
    file = write_config(tmp_path, changed(on_rows(config, rows), engine={"kind": "vllm"}))
    assert "engine.kind is 'vllm', which is not installed: pip install -e '.[vllm" in refusal("train", file)
    # What is looked for and not used before weights are read.
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    longest = config["sampling"]["max_new_tokens"] + 400
    sentence = refusal("train", file, f"engine.max_model_len={longest}", "device=cpu")
    assert "1 of 9 rows of rows.jsonl cannot be used: 1 " in sentence
    assert "limit 400" in sentence
    assert f"engine.max_model_len is {longest}: raise it" in sentence


# -- models ---------------------------------------------------------------------------------------------------


def folder_with(folder: Path, content: dict[str, Any] | None) -> Path:
    folder.mkdir()
    if content is not None:
        (folder / "config.json").write_text(json.dumps(content))
    return folder


MODELS: dict[str, tuple[Callable[[Path], str], list[str]]] = {
    "unknown zoo name": (lambda _: "zoo:gpt", ["there is no 'zoo:gpt'", "qwen2.5-vl"]),
    "folder that is not there": (lambda at: str(at / "gone"), ["There is no folder", "gone"]),
    "folder without config.json": (lambda at: str(folder_with(at / "m", None)), ["has no config.json"]),
    "family without an adapter": (
        lambda at: str(folder_with(at / "m", {"model_type": "clip"})),
        ["model_type `clip`", "adapter: pkg.module:Class"],
    ),
}


@pytest.mark.parametrize("mistake", MODELS)
@pytest.mark.usefixtures("no_weights")
def test_mistakes_about_models(
    mistake: str,
    config: dict[str, Any],
    refusal: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MMCORL_CACHE", str(tmp_path / "cache"))
    model, expected = MODELS[mistake]
    new = changed(config, agents__1__model=model(tmp_path))
    if "zoo" not in mistake:
        # It would take a minute to build this one, and stands first: the mistake is found before that.
        new = changed(new, agents__0__model="zoo:qwen2")
    sentence = refusal("train", write_config(tmp_path, new), "--run-dir", "run")
    assert [words for words in expected if words not in sentence] == [], sentence
    assert not Path("run").exists()
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("no_weights")
def test_more_new_tokens_than_the_model_can_hold(
    config: dict[str, Any], refusal: Callable[..., str], tmp_path: Path
) -> None:
    # The tiny models have a context of 4096 tokens.
    new = changed(config, sampling__max_new_tokens=4096)
    sentence = refusal("train", write_config(tmp_path, new), "--run-dir", "run")
    assert "sampling.max_new_tokens is 4096 but agent 'qwen' has a context of 4096 tokens" in sentence


# -- data -----------------------------------------------------------------------------------------------------


def picture_rows(folder: Path) -> Path:
    (folder / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n not a picture")
    return rows_file(folder, [{"question": "How many?", "image": "bad.png", "answer": "3"}])


DATA: dict[str, tuple[Callable[[dict[str, Any], Path], dict[str, Any]], list[str]]] = {
    "no such file": (
        lambda config, at: on_rows(config, at / "gone.jsonl"),
        ["no file matches the data source", "gone.jsonl"],
    ),
    "empty file": (lambda config, at: on_rows(config, rows_file(at, [])), ["rows.jsonl' has no rows"]),
    "missing column": (
        lambda config, at: on_rows(config, rows_file(at, [{"problem": "1+1?"}])),
        ["has no column 'question' (question), 'answer' (answer)", "its columns are 'problem'"],
    ),
    "a line that is not JSON": (
        lambda config, at: on_rows(config, rows_file(at, [*SUMS, "{broken"])),
        ["1 of 9 rows", "line 9", "on_bad_row: skip"],
    ),
    "corrupt image": (
        lambda config, at: on_rows(config, picture_rows(at), columns={"image": "image"}),
        ["1 of 1 rows of rows.jsonl cannot be used: 1 corrupt image (first: row 0", "on_bad_row: skip"],
    ),
    "the same question twice": (
        lambda config, at: on_rows(config, rows_file(at, [*SUMS, SUMS[0]])),
        ["1 repeated row", "duplicates: skip"],
    ),
    "fewer rows than a batch": (
        lambda config, at: on_rows(config, rows_file(at, SUMS[:3])),
        ["3 of 3 rows usable, too few to fill a batch of 4 prompts"],
    ),
    "a prompt that is too long": (
        lambda config, at: changed(
            on_rows(config, rows_file(at, [*SUMS, {"question": "one two " * 50, "answer": "1"}])),
            data__max_prompt_tokens=40,
        ),
        ["1 prompt too long", "row 8", "limit 40", "too_long: skip"],
    ),
    "gold without answers": (
        lambda config, at: changed(
            on_rows(config, rows_file(at, [{"question": row["question"]} for row in SUMS]), columns={}),
            supervision__kind="gold",
        ),
        ["supervision.kind is 'gold' but 8 of 8 rows", "data.train.columns"],
    ),
}


@pytest.mark.parametrize("mistake", DATA)
@pytest.mark.usefixtures("no_weights")
def test_mistakes_in_the_data(
    mistake: str, config: dict[str, Any], refusal: Callable[..., str], tmp_path: Path
) -> None:
    spoil, expected = DATA[mistake]
    sentence = refusal("train", write_config(tmp_path, spoil(config, tmp_path)), "--run-dir", "run", "--quiet")
    assert [words for words in expected if words not in sentence] == [], sentence
    assert not Path("run").exists()


# -- the run folder -------------------------------------------------------------------------------------------


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its bytes and time of change."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture(scope="module")
def finished(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A config and its finished run of two steps, over rows in a file beside the config."""
    folder = tmp_path_factory.mktemp("finished")
    new = on_rows(small_config(models, "text"), rows_file(folder, SUMS))
    config = write_config(folder, changed(new, steps=2, checkpoint__every=1))
    assert main(["train", str(config), "--run-dir", str(folder / "run"), "--quiet"]) == 0
    return config, folder / "run"


@pytest.fixture
def copied(finished: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """The finished run, to be spoilt."""
    shutil.copytree(finished[1], tmp_path / "run", symlinks=True)
    return finished[0], tmp_path / "run"


def test_a_folder_of_something_else(
    config: dict[str, Any], refusal: Callable[..., str], tmp_path: Path, no_weights: None
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("It was a dark and stormy night.")
    file = write_config(tmp_path, config)
    before = state(tmp_path)
    assert "is not empty and holds no run: choose another --run-dir" in refusal("train", file, "--run-dir", "thesis")
    assert "is a file: choose another --run-dir" in refusal("train", file, "--run-dir", file)
    assert "inside the file" in refusal("train", file, "--run-dir", file / "run")
    assert state(tmp_path) == before


def test_a_place_that_cannot_be_written(config: dict[str, Any], refusal: Callable[..., str], tmp_path: Path) -> None:
    file = write_config(tmp_path, config)
    closed = tmp_path / "closed"
    closed.mkdir()
    if os.geteuid() == 0:
        # Root may write anywhere but onto a disk that is mounted for reading.
        command = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(closed)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("root could not mount a read-only disk")
    else:
        closed.chmod(0o500)
    try:
        assert "is not writable: choose another --run-dir" in refusal("train", file, "--run-dir", closed / "run")
        assert "is not writable: choose another --run-dir" in refusal("train", file, "--run-dir", closed)
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", str(closed)], check=True)


def test_another_config_in_the_same_folder(
    finished: tuple[Path, Path], refusal: Callable[..., str], no_weights: None
) -> None:
    config, run = finished
    before = state(run)
    sentence = refusal("train", config, "--run-dir", run, "optimizer.lr=1e-5", "agents.llama.lr=0.5", "seed=4")
    assert "agents[1].lr: none -> 0.5; optimizer.lr: 0.001 -> 1e-05; seed: 0 -> 4" in sentence
    assert "choose another --run-dir" in sentence
    assert state(run) == before


def test_what_does_not_change_the_numbers_may_change(copied: tuple[Path, Path]) -> None:
    config, run = copied
    (run / "summary.json").unlink()  # else the run is finished, and nothing is left to do with other settings
    changes = ["checkpoint.keep_last=5", "logging.gallery=1", "validation.every=1", "notes=[planted]", "threads=1"]
    assert main(["train", str(config), "--run-dir", str(run), "--quiet", *changes]) == 0
    assert yaml.safe_load((run / "config.yaml").read_text())["checkpoint"]["keep_last"] == 5


@pytest.mark.parametrize("edit", ["question", "answer", "added", "gone"])
def test_data_that_changed_since(
    edit: str, finished: tuple[Path, Path], copied: tuple[Path, Path], refusal: Callable[..., str], no_weights: None
) -> None:
    config, run = copied
    file = config.parent / "rows.jsonl"
    rows = [dict(row) for row in SUMS]
    if edit in ("question", "answer"):
        rows[3][edit] = "5"
    rows = [*rows, {"question": "new?", "answer": "1"}] if edit == "added" else rows[:-1] if edit == "gone" else rows
    original, before = file.read_text(), state(run)
    try:
        rows_file(config.parent, rows)
        assert "the train data (rows.jsonl) are not those this run began with" in refusal(
            "train", config, "--run-dir", run, "--quiet"
        )
    finally:
        file.write_text(original)
    assert state(run) == before


DAMAGE: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "COMMIT": (
        lambda run: (run / "checkpoints" / "step_000002" / "COMMIT").write_text("{"),
        ["step_000002/COMMIT' is damaged", "remove its folder to go on from the checkpoint before it"],
    ),
    "weights cut off": (
        lambda run: os.truncate(run / "checkpoints" / "step_000002" / "qwen" / "model.safetensors", 1000),
        ["qwen/model.safetensors has 1000 bytes instead of", "remove that folder to go on"],
    ),
    "optimizer gone": (
        lambda run: (run / "checkpoints" / "step_000002" / "llama" / "optimizer.pt").unlink(),
        ["llama/optimizer.pt is missing"],
    ),
    "metrics shorter": (
        lambda run: os.truncate(run / "metrics.jsonl", 100),
        ["metrics.jsonl' has 100 bytes, fewer than the", "step 2"],
    ),
    "a line of metrics": (
        lambda run: (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text().replace("{", "<", 1)),
        ["line 1 of", "metrics.jsonl' is damaged"],
    ),
    "config.yaml": (
        lambda run: (run / "config.yaml").write_text("steps: [\n"),
        ["config.yaml', the settings of the run in this folder, cannot be read"],
    ),
    "data_check.json": (
        lambda run: (run / "data_check.json").write_text("{"),
        ["data_check.json' is damaged", "remove it to have the data checked again"],
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_run_is_not_gone_on_with(what: str, copied: tuple[Path, Path], refusal: Callable[..., str]) -> None:
    config, run = copied
    damage, expected = DAMAGE[what]
    damage(run)
    before = state(run)
    sentence = refusal("train", config, "--run-dir", run, "--quiet")
    assert [words for words in expected if words not in sentence] == [], sentence
    assert state(run) == before


# -- what is no mistake of the user's ---------------------------------------------------------------------------


def test_an_unexpected_error_keeps_its_trace_and_comes_last(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(local.Worker, "rollout", broken)
    file = write_config(tmp_path, config)
    assert main(["train", str(file), "--run-dir", "run", "--quiet"]) == 1
    errors = capfd.readouterr().err
    assert errors.splitlines()[-1] == "ZeroDivisionError: a bug of ours"
    assert "Traceback" in errors
    assert "usage:" not in errors

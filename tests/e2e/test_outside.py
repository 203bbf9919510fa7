"""The examples of docs/extending.md and docs/python.md, from one file outside the tree."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from eval_suite.benchmarks.tasks import BENCHMARKS
from eval_suite.options import EvalOptions
from mmcorl import load_run, train
from mmcorl.answers.relation_table import RELATIONS, RelationRow, open_relation
from mmcorl.apps.analysis.trained_with import trained_with
from mmcorl.apps.doctor.doctor import Examination
from mmcorl.cli.main import main
from mmcorl.config import load
from mmcorl.errors import RunError, UserError
from mmcorl.run import checkpoints
from mmcorl.run.run_folder import RunFolder
from mmcorl.system.user_code import INHERITED
from mmcorl.types import Prompt
from model_adapters.registry import adapter_for
from paths import ROOT
from runs import changed, small_config, write_config
from worker_parts import metadata_of, sources_of

OVERRIDES = (
    "reward=mine:short",
    "supervision.kind=mine:last",
    "answers.relation=mine:same",
    "objective.kind=mine:gate",
    "agents.a.adapter=mine:Mine",
)


def examples(page: str) -> str:
    """The Python of a page of docs."""
    return "\n\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL))


@pytest.fixture
def config(tiny_checkpoints: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config with mine.py and tiny.jsonl beside it, outside the tree; the working folder is another one."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "mine.py").write_text(examples("extending.md"))
    rows = [{"id": str(n), "question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(2)]
    (folder / "tiny.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = small_config({"a": tiny_checkpoints["qwen2"], "b": tiny_checkpoints["llama"]}, "text")
    tiny = {"name": "mine:TINY", "source": str(folder / "tiny.jsonl")}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    # What is imported from here grows both.
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(INHERITED, "")
    monkeypatch.setattr("mmcorl.system.user_code._modules", {})
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return write_config(folder, changed(settings, steps=2, validation__benchmarks=[tiny]))


def test_one_file_brings_reward_rule_relation_objective_benchmark_and_family(config: Path) -> None:
    assert main(["train", str(config), *OVERRIDES, "--run-dir", "run", "--quiet"]) == 0
    votes = [json.loads(line) for line in Path("run/votes.jsonl").read_text().splitlines()]
    assert {agent["teacher"] for line in votes for agent in line["agents"].values()} == {"b"}
    rewards = [value for line in votes for agent in line["agents"].values() for value in agent["rewards"]]
    # Less than 0 without agreement, and a multiple of 0.01: tokens.
    assert any(value < 0 for value in rewards)
    assert all(round(100 * value, 6).is_integer() for value in rewards)
    grader = json.loads(Path("run/summary.json").read_text())["grader"]
    assert grader["name"] == "mine:same"
    sets = {json.loads(line)["set"] for line in Path("run/validation.jsonl").read_text().splitlines()}
    assert sets == {"held_out", "tiny"}


def test_the_pages_weighted_votes_and_entropy_bonus(config: Path) -> None:
    """The page's rules are the built-in ones; the shares that rule and reward use are in votes.jsonl."""
    how: dict[str, Any] = {"quiet": True, "validation__benchmarks": [], "reward": "share"}
    how["objective__kind"] = "mine.py:bonus"
    lines = {}
    for kind in ("mine.py:confident_peer", "ring_by_confidence", "mine.py:consistent", "pooled_by_consistency"):
        folder = Path(f"run_{len(lines)}")
        train(config, folder, supervision__kind=kind, **how)
        lines[kind] = (folder / "votes.jsonl").read_text(), (folder / "metrics.jsonl").read_text()
    page, built_in, pooled, built_in_pooled = lines.values()
    assert page == built_in != pooled == built_in_pooled
    for line in map(json.loads, built_in[0].splitlines()):
        for agent in line["agents"].values():
            values = [value for _, value in agent["shares"]]
            assert sum(values) == pytest.approx(1.0) if values else agent["label"] is None
            assert set(agent["rewards"]) <= {0.0, *values}
    assert all(
        agent["grad_norm"] > 0 for line in built_in[1].splitlines() for agent in json.loads(line)["agents"].values()
    )


WRONG = """
from model_adapters.text import TextAdapter

class Wrong(TextAdapter):
    def logits(self, model, hidden):
        return super().logits(model, hidden) * 0.99
"""


def test_a_wrong_adapter_is_refused_before_it_trains_or_is_evaluated(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (config.parent / "wrong.py").write_text(WRONG)
    shutil.copy(config.parent / "wrong.py", "wrong.py")
    model = load(config).agents[0].model
    rows, short = str(config.parent / "tiny.jsonl"), ["--max-new-tokens", "64"]
    for command in (
        ["train", str(config), "agents.a.adapter=wrong.py:Wrong", "vision.max_side=512", "--run-dir", "run", "--quiet"],
        ["eval", model, f"own={rows}", "--adapter", "wrong.py:Wrong", "--vision", "max_side=512", *short],
    ):
        capsys.readouterr()
        assert main(command) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        file = config.parent / "wrong.py"
        assert last.startswith(f"mmcorl: adapter {file}:Wrong does not compute what transformers computes for ")
        command = f"mmcorl check-adapter {model} --adapter {file}:Wrong vision.max_side=512"
        assert last.endswith(f"correct it until `{command}` passes")
        assert main(shlex.split(command)[1:]) == 1
        assert "FAIL  forward equals transformers'" in capsys.readouterr().out
    assert not Path("run").exists()


def test_a_run_in_a_thread_and_the_number_of_torch_threads_after_one(config: Path) -> None:
    """As in a notebook, whose process goes on: signals are its own, and so are its threads."""
    how: dict[str, Any] = {"steps": 1, "quiet": True, "validation__benchmarks": []}
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(1) as thread:
            run = thread.submit(train, config, "run", **how).result()
        assert {line["step"] for line in run.metrics} == {1}
        train(config, "run", threads=1, **how)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_weights_keep_the_image_settings_of_their_own_family(config: Path) -> None:
    own = "from model_adapters.text import TextAdapter\n\nclass Own(TextAdapter):\n"
    (config.parent / "own.py").write_text(own + "    vision_options = {'views': 'views of an image'}\n")
    changes = ["agents.a.adapter=own.py:Own", "vision.options.views=3", "steps=1"]
    assert main(["train", str(config), *changes, "--run-dir", "run", "--quiet"]) == 0
    kept = {name: json.loads(Path(f"run/final/{name}/mmcorl.json").read_text())["vision"]["options"] for name in "ab"}
    assert kept == {"a": {"views": 3}, "b": {}}
    assert main(["train", str(config), *changes[:1], "vision.options.vews=3", "--run-dir", "other", "--quiet"]) == 2


def test_an_adapter_is_named_by_its_file(config: Path) -> None:
    assert load(config, ["agents.a.adapter=mine.py:Mine"]).agents[0].adapter == "mine:Mine"
    families = config.parent / "families"
    families.mkdir()
    for name in ("own_family.py", "json.py", "own-family.py"):
        shutil.copy(config.parent / "mine.py", families / name)
    loaded = load(config, ["agents.a.adapter=families/own_family.py:Mine"])
    assert loaded.agents[0].adapter == "own_family:Mine"
    assert adapter_for(loaded.agents[0].model, loaded.agents[0].adapter).family == "text"
    with RunFolder(Path("run"), loaded) as folder:
        folder.begin({})
    assert Path("run/user/own_family.py").is_file()
    # Read again without the original, as after a move to another machine.
    assert load("run/config.yaml").agents[0].adapter == "own_family:Mine"
    shutil.move(families / "own_family.py", "here.py")
    assert EvalOptions(adapter="here.py:Mine").adapter == "here:Mine"
    for name, words in (
        ("families/gone.py:Mine", "there is no file 'families/gone.py' beside the config or in the working folder"),
        ("families/json.py:Mine", "Python knows another module 'json'"),
        ("families/own-family.py:Mine", "write file.py:name, of letters, digits and _"),
    ):
        with pytest.raises(UserError, match=re.escape(words)):
            load(config, [f"agents.a.adapter={name}"])


def test_a_checkpoint_is_evaluated_and_checked_with_the_adapter_of_its_run(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As training found it, wherever the file is now and whatever became of it."""
    own = config.parent / "trained_by.py"
    own.write_text("import its_part\n\nclass Own(its_part.TextAdapter):\n    notes = 'own'\n")
    (config.parent / "its_part.py").write_text("from model_adapters.text import TextAdapter\n")
    loaded = load(config, ["agents.a.adapter=trained_by.py:Own"])
    with RunFolder(Path("run"), loaded) as folder:
        folder.begin({})
    Path("run/metrics.jsonl").touch()
    final = shutil.copytree(loaded.agents[0].model, "run/final/a")
    metadata_of(loaded, loaded.agents[0]).write(Path(final))
    rows = str(config.parent / "tiny.jsonl")
    short = ["--max-new-tokens", "2", "--quiet"]
    own.unlink()
    for content in (None, "raise OSError('another file')\n"):
        if content is not None:  # in a folder that Python searches first
            Path("trained_by.py").write_text(content)
            sys.path.insert(0, str(Path.cwd()))
        for command in (
            ["check-adapter", str(final)],
            ["eval", str(final), f"own={rows}", "--out", f"{content}", *short],
        ):
            for name in ("trained_by", "its_part"):
                monkeypatch.delitem(sys.modules, name, raising=False)
            monkeypatch.setattr("mmcorl.system.user_code._folders", [])  # as in a process of its own
            monkeypatch.setattr(sys, "path", [part for part in sys.path if part != str(config.parent)])
            assert main(command) == 0, capsys.readouterr()
            assert Path(sys.modules["trained_by"].__file__ or "") == Path("run/user/trained_by.py").resolve()
    # Elsewhere, without its run, the file has to be here, and one that a command has named.
    moved = shutil.move(final, "moved")
    assert trained_with(str(moved)) is not None
    monkeypatch.delitem(sys.modules, "trained_by")
    monkeypatch.setattr("mmcorl.system.user_code._folders", [])
    monkeypatch.setattr(sys, "path", [part for part in sys.path if "user" not in Path(part).parts])
    monkeypatch.setattr("mmcorl.system.user_code._modules", {})
    assert main(["check-adapter", str(moved)]) == 2
    file = Path("trained_by.py").resolve()
    sha = hashlib.sha256(file.read_bytes()).hexdigest()
    assert f"'{file}' (SHA-256 {sha}) would run; read it, and give --trust '{file}'" in capsys.readouterr().err
    assert main(["check-adapter", str(moved), "--adapter", "run/user/trained_by.py:Own"]) == 2


def test_everything_is_named_by_its_file(config: Path) -> None:
    by_file = [override.replace("=mine:", "=mine.py:") for override in OVERRIDES]
    assert by_file != list(OVERRIDES)
    benchmark = "validation.benchmarks.0.name=mine.py:TINY"
    assert load(config, [*by_file, benchmark]) == load(config, OVERRIDES)
    Path("here.py").write_text((config.parent / "mine.py").read_text())
    assert BENCHMARKS.find("here.py:TINY").name == "tiny"
    with pytest.raises(UserError, match=r"there is no file 'gone\.py' beside the config or in the working folder"):
        load(config, ["reward=gone.py:short"])


def test_a_run_is_resumed_and_read_with_the_files_it_began_with(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, helper = config.parent / "mine.py", config.parent / "helper.py"
    mine.write_text("import helper\n" + mine.read_text())
    helper.touch()
    loaded = load(config, OVERRIDES)
    # Until something is committed, a file that was mended takes the place of the one that failed.
    for content in ("PENALTY = wrong\n", "PENALTY = 0.01\n"):
        helper.write_text(content)
        with RunFolder(Path("run"), loaded) as folder:
            folder.begin({})
            assert Path("run/user/helper.py").read_text() == content
    with RunFolder(Path("run"), loaded) as folder:
        folder.begin({})
        checkpoints.commit(folder.checkpoints, 1, lambda _: None, folder.log_sizes(), {})
    helper.write_text("PENALTY = 0.02\n")
    with pytest.raises(UserError, match=r"another helper\.py \(line 1: 'PENALTY = 0\.01' -> .* 'run/user/helper\.py'"):
        RunFolder(Path("run"), loaded)
    shutil.copy("run/user/helper.py", helper)
    RunFolder(Path("run"), loaded)
    for file in (mine, helper):
        file.unlink()
    del sys.modules["mine"], sys.modules["helper"]
    kept = load_run("run").config
    assert kept == loaded
    assert "mine" not in sys.modules
    monkeypatch.setattr("mmcorl.system.user_code._folders", [])  # as in a process of its own
    with pytest.raises(
        UserError, match=r"cannot be imported .*No module named 'mine'.* the config\.yaml of a run finds"
    ):
        train(kept, "second")
    assert load("run/config.yaml") == loaded
    del sys.modules["mine"], sys.modules["helper"]


def test_a_run_that_goes_on_with_other_files_says_so_to_its_end(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(step: int) -> list[str]:
        """Resume, write the checkpoint of a step as a run does, and return what has changed so far."""
        with RunFolder(Path("run"), load(config, OVERRIDES)) as folder:
            folder.begin({})
            facts = {"code": folder.code, "changed": folder.changed}
            checkpoints.commit(folder.checkpoints, step, lambda _: None, folder.log_sizes(), {}, **facts)
            return folder.changed

    mine, helper = config.parent / "mine.py", config.parent / "helper.py"
    assert start(1) == start(2) == []
    mine.write_text(mine.read_text() + "# another\n")
    shutil.copy(mine, "run/user/mine.py")
    assert start(3) == ["mine.py changed after step 2"]
    helper.write_text("")
    mine.write_text("import helper\n" + mine.read_text())
    shutil.copy(mine, "run/user/mine.py")
    assert start(4) == start(5) == ["mine.py changed after step 2", "helper.py, mine.py changed after step 3"]
    assert capsys.readouterr().err.count("changed after step 3; its summary and its page say so") == 1


def test_a_file_that_reads_another_beside_itself_is_resumed_and_its_run_read(config: Path) -> None:
    mine = config.parent / "mine.py"
    (config.parent / "penalty.txt").write_text("0.01")
    line = "from pathlib import Path\nPENALTY = float((Path(__file__).parent / 'penalty.txt').read_text())\n"
    mine.write_text(line + mine.read_text())
    loaded = load(config, OVERRIDES)
    for _ in range(2):
        with RunFolder(Path("run"), loaded) as folder:
            folder.begin({})
    mine.unlink()
    del sys.modules["mine"]
    assert load_run("run").config == loaded


def test_an_error_of_a_users_benchmark_names_it_the_row_and_the_line(config: Path) -> None:
    mine = config.parent / "mine.py"
    mine.write_text(mine.read_text() + "\n\ndef read(row):\n    return row.values['nothing']\n")
    line = len(mine.read_text().splitlines())
    mine.write_text(mine.read_text() + "\n\nTINY = replace(TINY, read=read)\n")
    mine.write_text(mine.read_text().replace("import torch", "import torch; from dataclasses import replace", 1))
    load(config)
    match = rf"^benchmark 'tiny', reading row 1 of .*, raised KeyError: 'nothing' \(.*mine\.py:{line}\): "
    with pytest.raises(RunError, match=match) as stopped:
        BENCHMARKS.find("mine:TINY").load(config.parent / "tiny.jsonl")
    assert isinstance(stopped.value.__cause__, KeyError)


BROKEN = """
def missing(answers, label):
    return [float(one.lower() == label.answer.lower()) for one in answers]

def single(answers):
    return [1.0]

def lazy(answers):
    yield 1 / 0

def rule(rollouts):
    return rollouts.nothing

def relation(a, b):
    return a.nothing

def silent(rollouts):
    return [[None]]

def summed(ratio, advantages):
    return (ratio * advantages).sum()

def found(prompts, completions, lengths, truncated, entropy, relation):
    return [len(QUESTIONS[prompt]) + n * e for prompt, n, e in zip(prompts, lengths, entropy)]

QUESTIONS = {"?": "a row of the data", "!": "another"}

def talk(conversations, relation):
    yield [conversations[0].nothing]
"""


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("reward=broken.py:missing", r"reward 'broken\.py:missing' raised AttributeError: .*broken\.py:3\)"),
        ("reward=broken.py:lazy", r"reward 'broken\.py:lazy' raised ZeroDivisionError: .*broken\.py:9\)"),
        ("reward=broken.py:single", r"reward 'broken\.py:single' returned 1 numbers for the 4 completions"),
        ("supervision.kind=broken.py:rule", r"supervision rule 'broken\.py:rule' raised AttributeError: .*py:12\)"),
        ("supervision.kind=broken.py:silent", r"supervision rule 'broken\.py:silent' did not return a PseudoLabel for"),
        ("answers.relation=broken.py:relation", r"answer relation 'broken\.py:relation' raised AttributeError"),
        ("objective.kind=broken.py:summed", r"objective '.*summed' returned \(\) for 4 tokens"),
        ("episode.kind=broken.py:talk", r"workflow 'broken\.py:talk' raised AttributeError: .*broken\.py:29\)"),
        ("episode.kind=mine.py:checked", None),
        ("reward=broken.py:found", None),
        ("reward=match", None),
        *((override, None) for override in OVERRIDES[:4]),
    ],
)
def test_doctor_calls_a_users_functions_on_answers_to_rows_of_the_data(
    override: str, says: str | None, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (config.parent / "broken.py").write_text(BROKEN)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    rows = [Prompt("u", "1", "?"), Prompt("v", "2", "!", choices=("cat", "dog"))]
    findings = [*Examination(load(config, [override])).own_code(rows)]
    if says is None:
        assert [finding.level for finding in findings] == ["ok"] * (override != "reward=match")
    else:
        assert [finding.level for finding in findings] == ["problem"]
        assert re.search(says, findings[0].sentence)


def test_a_file_beside_the_config_hides_no_module_of_python_from_child_processes(config: Path) -> None:
    (config.parent / "colorsys.py").write_text("")
    (config.parent / "light.py").write_text("def reward(answers): ...\n")
    load(config, ["reward=light:reward"])
    code = "import mmcorl.registry, light, colorsys; print(light.__file__, colorsys.__file__)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [Path(file).parent == config.parent for file in found.split()] == [True, False]


def test_the_page_on_loops_of_ones_own_runs(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(config.parent)
    exec(examples("own_loop.md"), {"__name__": "page"})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [["1", "a"], ["1", "b"], ["2", "a"], ["2", "b"]]
    assert all(math.isfinite(float(line[2])) for line in lines)


@pytest.mark.slow
def test_the_page_on_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(examples("python.md"), {"__name__": "page"})
    assert Path("runs/first/report.html").is_file()


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("reward=nowhere:short", ("reward 'nowhere:short'", "No module named", "beside the config", "of a run")),
        ("reward=mine:shrot", ("has no 'shrot'", "did you mean 'short'?")),
        ("reward=mine:TINY", ("not a function but of type Benchmark",)),
        ("reward=mine:read", ("reward 'mine.py:read' takes 'row'", "completions")),
        ("reward=mine.short", ("there is no reward 'mine.short'", "package.module:name")),
        ("reward=broken:f", ("cannot be imported", "SyntaxError", "correct the module")),
        ("reward=exits:f", ("cannot be imported", "SystemExit", "correct the module")),
        ("reward=random:f", ("another module 'random'", "rename the file")),
        ("reward=builtins:max", ("has no signature",)),
        ("reward=__main__:short", ("in the script itself", "file of its own", "my_file.py:short")),
        ("supervision.kind=mine:same", ("supervision rule 'mine.py:same'", "rule(rollouts)")),
        ("answers.relation=mine:read", ("answer relation 'mine.py:read'", "same(a, b, choices)")),
        ("objective.kind=mine:same", ("objective 'mine.py:same' takes 'a'", "ratio")),
        ("episode.kind=mine:same", ("workflow 'mine.py:same' takes 'a'", "conversations")),
    ],
)
def test_what_does_not_fit_is_refused_before_work(override: str, parts: tuple[str, ...], config: Path) -> None:
    (config.parent / "broken.py").write_text("def f(:\n")
    (config.parent / "exits.py").write_text("raise SystemExit(1)\n")
    (config.parent / "random.py").write_text("def f(answers): ...\n")
    with pytest.raises(UserError) as refused:
        load(config, [override])
    assert [part for part in parts if part not in str(refused.value)] == [], str(refused.value)


def test_a_second_file_of_the_same_name_is_not_taken_for_the_first(config: Path, tmp_path: Path) -> None:
    load(config, ["reward=mine:short"])
    shutil.copytree(config.parent, tmp_path / "second")
    assert load(tmp_path / "second" / config.name, ["reward=mine:short"]).reward.kind == "mine:short"
    shutil.copytree(config.parent, tmp_path / "third")
    (tmp_path / "third" / "mine.py").write_text("def short(answers): return [0.0] * len(answers)\n")
    with pytest.raises(UserError, match=r"another module 'mine' .* than .*third/mine\.py"):
        load(tmp_path / "third" / config.name, ["reward=mine:short"])
    assert load(config, ["reward=mine:short"]).reward.kind == "mine:short"


def test_boxes_are_compared_by_a_row_of_ones_own(config: Path) -> None:
    load(config, ["answers.relation=mine:giou"])
    with open_relation("mine:giou") as relation:
        # Side by side the union fills the hull: GIoU 0. A third of the hull: IoU 1/3 and no gap. Far apart: 0.02 - 1.
        for other, scaled in (
            ("[500, 0, 1000, 1000]", 0.5),
            ("[250, 0, 750, 1000]", 2 / 3),
            ("[0, 0, 500, 990]", 0.995),
        ):
            assert relation.similarity("[0, 0, 500, 1000]", other) == pytest.approx(scaled)
            assert relation.same("[0, 0, 500, 1000]", other) is (scaled >= 0.75)
        assert relation.similarity("[0, 0, 100, 100]", "[900, 900, 1000, 1000]") == pytest.approx(0.01)
    (config.parent / "bocks.py").write_text(
        (config.parent / "mine.py").read_text().replace('form="box"', 'form="bocks"')
    )
    with pytest.raises(
        UserError, match="form of answer relation 'bocks:giou' is 'bocks': use point, points, box, boxes"
    ):
        load(config, ["answers.relation=bocks:giou"])


def test_the_config_of_the_page_on_relations_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "relations.md").read_text(), re.DOTALL)
    (tmp_path / "mugs.yaml").write_text(block)
    (tmp_path / "mugs.jsonl").write_text(json.dumps({"question": "Where?", "image": "a.png", "bbox": [12, 30, 80, 90]}))
    Image.new("RGB", (100, 200)).save(tmp_path / "a.png")
    config = load(tmp_path / "mugs.yaml")
    assert sources_of(config)["train"][0].gold == "[120, 150, 800, 450]"


def test_a_relation_may_have_options_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    row = RelationRow("own", "Help.", lambda a, b, *, fold=True: a.lower() == b.lower() and fold)
    monkeypatch.setitem(RELATIONS._rows, "own", row)
    with open_relation("own") as relation:
        assert relation.same("A", "a", ["1", "2"])

"""`mmcorl train CONFIG --dry`: the numbers of the paper's section 6.1, beside those of a config."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mmcorl import config as settings
from mmcorl.apps.doctor.paper_settings import beside_the_paper, kind_of, tables
from mmcorl.cli.main import main
from paths import CONFIGS

FILES = sorted(path for folder in ("paper", "one_gpu") for path in (CONFIGS / folder).glob("*.yaml"))
# Where the configs are as the release and not as the paper, or smaller, on purpose.
UNEQUAL = {
    "paper/text_3b_ring_of_three": ["supervision.kind"],
    "one_gpu/text_3b": ["all ranks"],
    "one_gpu/vlm_3b": ["all ranks"],
    "one_gpu/vlm_24gb": ["all ranks", "optimizer.lr"],
    "one_gpu/vlm_3b_served_teacher": ["all ranks", "agents that never learn", "supervision.kind"],
}

APART = "all on natural:handwriting; intern on synthetic:visual"


@pytest.mark.parametrize("name", [path.relative_to(CONFIGS).with_suffix("").as_posix() for path in FILES])
def test_configs_of_the_paper_and_the_baselines_in_their_headers_are_equal_to_it(name: str) -> None:
    path = CONFIGS / f"{name}.yaml"
    unequal = [row.setting for row in beside_the_paper(settings.load(path)) if not row.equal]
    assert unequal == UNEQUAL.get(name, [])
    lines = re.findall(r"^#   mmcorl train \S+ (.*supervision\.kind=(?:self|gold).*)$", path.read_text(), re.MULTILINE)
    assert lines or "paper/" not in name
    # The baselines of the CoMAS run are those of CoMAS.
    for line in lines if "paper/" in name and "comas" not in name else ():
        config = settings.load(path, [word for word in line.split() if "=" in word])
        assert [row.setting for row in beside_the_paper(config) if not row.equal] == []


def test_what_differs_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    changed = ["optimizer.lr=1e-5", "prompt.style=paper_text", "supervision.kind=pooled"]
    config = settings.load(CONFIGS / "paper" / "text_3b.yaml", changed)
    _, released = tables(beside_the_paper(config), config.name, kind_of(config.data.train))
    assert released.notes[1].startswith("Not equal: supervision.kind,")
    assert "optimizer.lr" in released.notes[1]
    assert {row.setting: row.equal for row in beside_the_paper(config)}["prompt.style"]
    own = settings.load(CONFIGS / "quickstart.yaml", ["prompt.instruction=Solve it."])
    row = next(row for row in beside_the_paper(own) if row.setting == "prompt.style")
    assert (row.theirs, row.here, row.equal) == ("paper_tags", "own instruction", False)
    for changes, setting, here in (
        (["agents.qwen.frozen=true"], "agents that never learn", "qwen (frozen)"),
        (["agents.intern.data.source=synthetic:visual"], "training data", APART),
        (["batch.refill=0.5"], "batch.refill", 0.5),
    ):
        shown = beside_the_paper(settings.load(CONFIGS / "quickstart.yaml", changes))
        assert [(row.here, row.equal) for row in shown if row.setting == setting] == [(here, False)]
    run = tmp_path / "run"
    argv = ["train", str(CONFIGS / "quickstart.yaml"), "--run-dir", str(run), "--dry", "--json"]
    assert main(argv) == 0
    rows = json.loads(capsys.readouterr().out)
    assert next(row for row in rows if row["setting"] == "batch.completions") == {
        "setting": "batch.completions", "stands_in": "paper", "theirs": 8, "here": 8, "equal": True
    }  # fmt: skip
    assert not run.exists(), "nothing is trained"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("reward=made_up.py:few", "reward 'made_up.py:few' returned 1 numbers for the 8 completions"),
        ("reward=made_up.py:nan", "rewards must be finite"),
        ("reward=made_up.py:word", "not a list of numbers"),
        (
            "supervision.kind=made_up.py:rule",
            "supervision rule 'made_up.py:rule' did not return a PseudoLabel for each",
        ),
        ("reward=made_up.py:fine", ""),
    ],
)
def test_own_functions_are_called_once_on_made_up_answers(
    setting: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "made_up.py").write_text(
        "def few(completions):\n    return [1.0]\ndef nan(completions):\n    return [float('nan')] * len(completions)\n"
        "def word(completions):\n    return 'good'\ndef fine(completions):\n    return [1.0] * len(completions)\n"
        "def rule(votes):\n    return 7\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["train", "quickstart", setting, "--dry"]) == (2 if says else 0)
    error = capsys.readouterr().err
    assert says in error
    assert ("called once on made-up answers: reward.kind made_up.py:fine" in error) == (not says)

"""`mmcorl dynamics`: what is printed and drawn, a run's votes over the theory, and what is refused."""

from __future__ import annotations

import json
import math
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chromium import EXECUTABLE, browser
from mmcorl.analysis.dynamics import Dynamics
from mmcorl.analysis.known import training_prompts
from mmcorl.analysis.trajectories import CLEAR, judge, measured, read_votes, voted_on
from mmcorl.answers import Equivalence
from mmcorl.cli.main import main
from mmcorl.config import dump, load
from mmcorl.data.sources import load_prompts
from mmcorl.errors import UserError
from paths import ROOT

NAMES = ("qwen", "intern", "gemma")
STARTS = {"bar": (0.2, 0.95), "sum": (0.2, 0.95), "dice": (0.95, 0.2), "dots": (0.25, 0.35)}
STEPS, PROMPTS, K = 40, 16, 8


def run_of(path: Path, teachers: Sequence[int], taught: Sequence[str] | None = None) -> Path:
    """A run folder whose votes are drawn along the theory's own trajectories, skill by skill, over 20 units of time."""
    agents = NAMES[: len(teachers)]
    config = load(ROOT / "configs" / "quickstart.yaml", ["data.train.size=400"])
    path.mkdir()
    (path / "config.yaml").write_text(dump(config))
    chance = random.Random(7)
    prompts = list(load_prompts(config.data.train))
    dynamics = Dynamics(tuple(teachers), K)
    paths = {
        tag: dynamics.run((*start, 0.9)[: len(agents)], [step / STEPS * 20 for step in range(STEPS)])
        for tag, start in STARTS.items()
    }
    with (path / "votes.jsonl").open("w") as file:
        for step in range(STEPS):
            for prompt in chance.sample(prompts, PROMPTS):
                told: dict[str, Any] = {}
                for place, agent in enumerate(agents):
                    p = paths[str(prompt.tag)][step][place]
                    # Wrong answers differ in how they are written down, and one is missing at times.
                    answers = [prompt.gold if chance.random() < p else chance.choice(["99", None]) for _ in range(K)]
                    teacher = taught[place] if taught else agents[teachers[place]]
                    told[agent] = {"answers": answers, "teacher": teacher}
                file.write(
                    json.dumps({"step": step + 1, "uid": prompt.uid, "row": prompt.row_id, "agents": told}) + "\n"
                )
        file.write('{"step": 41, "uid": "torn')
    return path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two agents that teach each other."""
    return run_of(tmp_path_factory.mktemp("runs") / "pair", (1, 0))


def test_votes_drawn_from_the_theory_are_found_to_follow_it(pair: Path) -> None:
    prompts = training_prompts(pair, voted_on(pair))
    with Equivalence() as relation:
        votes = read_votes(pair, prompts, relation)
    assert (votes.agents, votes.teachers, votes.completions, votes.unknown) == (NAMES[:2], (1, 0), K, 0)
    assert len(votes.visits) == STEPS * PROMPTS
    cohort = Dynamics(votes.teachers, votes.completions)
    judged = {one.name: one for one in (judge(path, cohort) for path in measured(votes, prompts))}
    assert {name: one.predicted for name, one in judged.items()} == {
        "bar": (True, True), "sum": (True, True), "dice": (True, True), "dots": (False, False)
    }  # fmt: skip
    assert all(one.measured == one.predicted for one in judged.values())
    moves = sum(one.moves for one in judged.values())
    # The strong agent's first fall is against its own side and with its teacher's: what tells a peer from own votes.
    assert sum(one.followed for one in judged.values()) >= 0.9 * moves >= 5
    # The first window is five steps of the known path, about 20 prompts of a tag: within three standard errors.
    for name, one in judged.items():
        path = cohort.run(STARTS[name], [step / STEPS * 20 for step in range(5)]).mean(axis=0)
        assert one.start.first == 1 <= one.start.last <= 5
        for p, error, known in zip(one.start.p, one.start.error, path, strict=True):
            assert abs(p - known) < 3 * error + 0.03


def test_windows_tags_and_single_prompts(pair: Path) -> None:
    prompts = training_prompts(pair, voted_on(pair))
    with Equivalence() as relation:
        votes = read_votes(pair, prompts, relation)
    (whole,) = measured(votes, prompts, "all", 4)
    assert [(point.first, point.last) for point in whole.points] == [(1, 10), (11, 20), (21, 30), (31, 40)]
    by_hand = [visit.right[0] for visit in votes.visits if visit.step <= 10]
    assert whole.points[0].p[0] == pytest.approx(sum(by_hand) / len(by_hand))
    mean = sum(by_hand) / len(by_hand)
    spread = math.sqrt(sum((value - mean) ** 2 for value in by_hand) / (len(by_hand) - 1) / len(by_hand))
    assert whole.points[0].error[0] == pytest.approx(spread)
    single = measured(votes, prompts, "prompt", 4)
    assert all(len(path.points) > 1 for path in single)
    assert all(point.error[0] > 0 for path in single for point in path.points)


def test_a_start_near_the_border_is_not_judged(pair: Path) -> None:
    prompts = training_prompts(pair, voted_on(pair))
    with Equivalence() as relation:
        votes = read_votes(pair, prompts, relation)
    path = next(path for path in measured(votes, prompts) if path.name == "dots")
    start = path.points[0]
    shifted = type(start)(1, 5, (0.5, 0.52), (0.02, 0.02), 20)
    told = judge(type(path)("near", (shifted, path.points[-1])), Dynamics((1, 0), K))
    assert told.predicted is None
    assert abs(sum(shifted.p) - 1) < CLEAR * math.hypot(*shifted.error)


def test_the_command_over_a_run(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dynamics", "--run", str(pair)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "quickstart: 4 of 4 paths that can be told are where the theory puts their start" in out
    assert "both wrong" in out
    assert "What becomes of the prompts of quickstart, steps 1 to 5, as sampled" in out
    drawn = ET.fromstring((pair / "dynamics.svg").read_text())
    text = " ".join(drawn.itertext())
    assert "accuracy of qwen" in text
    assert all(tag in text for tag in STARTS)
    page = (pair / "dynamics.html").read_text()
    assert "What this leaves out" in page
    assert "<script" not in page
    assert not re.search(r"(src|href)=", page)


def test_own_votes_and_a_ring_of_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, three = run_of(tmp_path / "own", (0, 1)), run_of(tmp_path / "three", (1, 2, 0))
    assert main(["dynamics", "--run", str(own), str(three), "--out", str(tmp_path / "o"), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["runs"]
    told = {path["name"]: path for path in first["paths"]}
    assert told["bar"]["predicted_right"] == told["bar"]["measured_right"] == [False, True]
    assert told["dots"]["predicted_right"] == told["dots"]["measured_right"] == [False, False]
    assert first["teachers"] == ["qwen", "intern"]
    assert second["teachers"] == ["intern", "gemma", "qwen"]
    assert "basins" in first
    assert "basins" not in second
    assert {path["name"]: path["measured_right"] for path in second["paths"]}["bar"] == [True] * 3
    assert "no portrait of it is drawn" in (tmp_path / "o" / "dynamics.html").read_text()


def test_the_theory_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    points = tmp_path / "points.csv"
    points.write_text("a,b,weight\n0.9,0.2,1\n0.2,0.9,1\n0.6,0.3,2\n")
    command = ["dynamics", "--completions", "7", "--points", str(points), "--out", str(tmp_path / "o")]
    assert main(command) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "B passes ½ at t = 3.47, A is at its lowest then, 0.846" in out
    assert "│ 7 │ -0.933 │ +0.420 │ 0.052 │ 0.114 │ -0.293 │ +0.171 │ 0.500 │ never │" in out
    # Own votes: A is right on rows 1 and 3, (1 + 2) / 4; B on row 2. A peer: rows 1 and 2 of weight 2 / 4.
    assert "│ accuracy of A │ 0.575 │ 0.750 │ 0.500 │" in out
    assert "│ accuracy of B │ 0.425 │ 0.250 │ 0.500 │" in out
    assert main([*command, "--json", "--start", ".55,.46", ".55,.44"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["peer"] for one in told["starts"]] == [[1, 1], [0, 0]]
    assert told["points"]["spoiled"] == 0.5
    ET.fromstring((tmp_path / "o" / "dynamics.svg").read_text())


def test_what_cannot_be_drawn_is_refused_in_a_sentence(
    tmp_path: Path, pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gold = run_of(tmp_path / "gold", (1, 0), ["gold", "gold"])
    bad = tmp_path / "bad.csv"
    bad.write_text("0.5,0.5\n0.5,1.5\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    bare = run_of(tmp_path / "bare", (1, 0))
    (bare / "config.yaml").unlink()
    blind = run_of(tmp_path / "blind", (1, 0))
    config = load(blind / "config.yaml", ["data.train.seed=9"])
    (blind / "config.yaml").write_text(dump(config))
    for argv, says in (
        (["--run", str(gold)], "was taught by gold"),
        (["--run", str(empty)], "give the folder of a run"),
        (["--run", str(bare)], "give the folder of a run"),
        (["--run", str(blind)], "hold none of the prompts in its votes"),
        (["--run", str(pair), "--windows", "1"], "give 2 or more"),
        (["--run", str(pair), "--rates", "1,2"], "for the theory alone"),
        (["--by", "tag"], "add --run"),
        (["--start", "0.5"], "not two numbers"),
        (["--start", "0.5,1"], "strictly between 0 and 1"),
        (["--completions", "1"], "has no spread"),
        (["--completions", "8", "--votes", "4"], "4 votes are fewer"),
        (["--rates", "0,1"], "above 0"),
        (["--points", str(bad)], "line 2"),
        (["--points", str(tmp_path / "none.csv")], "is no file"),
    ):
        assert main(["dynamics", *argv, "--out", str(tmp_path / "o")]) == 2, argv
        told = capsys.readouterr()
        assert says in told.err, (argv, told.err)
        assert (len(told.err.splitlines()), told.out) == (1, ""), argv
    assert not (tmp_path / "o").exists()


def test_data_without_known_answers_are_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", (1, 0))
    config = load(run / "config.yaml")
    prompts = {prompt.uid: prompt for prompt in load_prompts(config.data.train)}
    silent = {uid: type(prompt)(uid, prompt.row_id, prompt.text) for uid, prompt in prompts.items()}
    with Equivalence() as relation, pytest.raises(UserError, match="hold no known answer"):
        read_votes(run, silent, relation)


@pytest.mark.skipif(EXECUTABLE is None, reason="needs a browser")
def test_the_page_fits_a_telephone_and_nothing_is_cut(tmp_path: Path, pair: Path) -> None:
    main(["dynamics", "--run", str(pair), "--out", str(tmp_path / "run")])
    main(["dynamics", "--out", str(tmp_path / "theory")])
    with browser(tmp_path / "profile") as page:
        for name in ("run", "theory"):
            for width, dark in ((1180, False), (390, True)):
                page.size(width, 900, dark=dark)
                page.open(tmp_path / name / "dynamics.html")
                assert page.run("document.documentElement.scrollWidth <= innerWidth")
                # Every word of the picture lies inside it.
                cut = page.run(
                    "(() => { const s = document.querySelector('svg.portrait'), b = s.getBoundingClientRect();"
                    " return [...s.querySelectorAll('text')].filter(t => { const r = t.getBoundingClientRect();"
                    " return r.left < b.left || r.right > b.right || r.top < b.top || r.bottom > b.bottom; })"
                    ".map(t => t.textContent); })()"
                )
                assert cut == [], (name, width)
        assert page.problems == []

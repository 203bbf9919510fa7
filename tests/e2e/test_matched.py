"""`mmcorl ensemble --table`: agents alone and pooled, by hand; budgets that do not match; checkpoints of a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mmcorl.cli.main import main

# Answers of two agents per team to problems 0..3, whose golds are 0..3; `x` is no answer. Two responses each.
OWN = [["0 0", "1 1", "9 9", "9 9"], ["0 5", "7 7", "2 2", "9 3"]]
PEER = [["0 0", "1 1", "2 2", "9 9"], ["0 0", "1 5", "2 x", "3 3"]]


def evaluation(folder: Path, answers: Sequence[str], **manifest: Any) -> Path:
    """An evaluation folder of responses that give these answers; more entries for its manifest."""
    folder.parent.mkdir(exist_ok=True, parents=True)
    file = folder.parent / "sums.jsonl"
    rows = [
        {
            "id": f"p{n}",
            "question": f"{n}?",
            "response": "none" if a == "x" else f"<answer>{a}</answer>",
            "gold": str(n),
        }
        for n, given in enumerate(answers)
        for a in given.split()
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["grade", str(file), "--out", str(folder), "--quiet"]) == 0
    if manifest:
        told = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(told | manifest))
    return folder


def run(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(part) for part in argv])
    out, err = capsys.readouterr()
    return code, out, err


def teams(root: Path, own: Sequence[Sequence[str]] = OWN, peer: Sequence[Sequence[str]] = PEER) -> list[str]:
    """Both teams as the command takes them."""
    told = []
    for name, agents in (("own", own), ("peer", peer)):
        folders = [evaluation(root / f"{name}_{place}", answers) for place, answers in enumerate(agents)]
        told.append(f"{name}={','.join(map(str, folders))}")
    return told


def test_the_table_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "ensemble", "--table", *teams(tmp_path), "--json")
    assert code == 0
    told = json.loads(out)
    rows = [
        (
            row["team"],
            row["who"],
            row["score"],
            row["models"],
            row["responses_per_model"],
            score["correct"],
            score["total"],
        )
        for row in told["rows"]
        for score in row["benchmarks"].values()
    ]
    # A tie goes to the smaller answer. Own, B alone: 0 against 5 elects 0, 9 against 3 elects 3.
    # Own pooled: 0 by three votes; 1 1 7 7 a tie, 1; 9 9 2 2 a tie, 2; 9 by three votes. Peer: 3 ties with 9.
    assert rows == [
        ("own", "own_0", "avg@2", 1, 2, 4, 8),
        ("own", "own_0", "maj@2", 1, 2, 2, 4),
        ("own", "own_1", "avg@2", 1, 2, 4, 8),
        ("own", "own_1", "maj@2", 1, 2, 3, 4),
        ("own", "pooled", "maj@4", 2, 2, 3, 4),
        ("peer", "peer_0", "avg@2", 1, 2, 6, 8),
        ("peer", "peer_0", "maj@2", 1, 2, 3, 4),
        ("peer", "peer_1", "avg@2", 1, 2, 6, 8),
        ("peer", "peer_1", "maj@2", 1, 2, 4, 4),
        ("peer", "pooled", "maj@4", 2, 2, 4, 4),
    ]
    # With ties as wrong only problem 0 is left to the first pool, and 0, 1, 2 to the second.
    assert [(one["team"], one["ties"], one["n"], one["correct"]) for one in told["tied"]] == [
        ("own", 2, 4, 1),
        ("peer", 1, 4, 3),
    ]
    ((compared,),) = told["pools_against_the_first"]
    assert (compared["only_a"], compared["only_b"], compared["difference"]) == (0, 1, 0.25)
    assert told["training"] == dict.fromkeys(("own_0", "own_1", "peer_0", "peer_1"))


def test_fewer_votes_make_room_for_one_agent_at_the_cost_of_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    code, out, _ = run(capsys, "ensemble", "--table", *teams(tmp_path), "--votes", "1")
    assert code == 0
    assert "own │ own_0 │ avg@2 │ 1 × 2 │ 50.00" in " ".join(out.split())
    alone = [line.split("│")[3].split()[0] for line in out.splitlines() if "own_0" in line]
    assert alone == ["avg@2", "maj@1", "maj@2"]
    assert "2 × 1" in out
    assert (
        "own pooled, sums: 2 of 4 votes tied, which the smaller answer won; with a tie counted as wrong 25.00%." in out
    )
    assert "Training: unknown." in out
    for form, sign in (("markdown", "| own |"), ("latex", "\\toprule")):
        code, out, _ = run(capsys, "ensemble", "--table", *_again(tmp_path), "--format", form)
        assert (code, sign in out) == (0, True)


def _again(root: Path) -> list[str]:
    return [f"{name}={root / f'{name}_0'},{root / f'{name}_1'}" for name in ("own", "peer")]


def test_a_team_of_one_stands_beside_pools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = evaluation(tmp_path / "base", ["0 1", "0 1", "0 2", "0 3"])
    code, out, _ = run(capsys, "ensemble", "--table", f"base={base}", *teams(tmp_path), "--json")
    told = json.loads(out)
    assert code == 0
    assert [row["who"] for row in told["rows"] if row["team"] == "base"] == ["base", "base"]
    assert len(told["pools_against_the_first"]) == 1


def test_a_folder_of_evaluations_is_a_team(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place, answers in enumerate(PEER):
        evaluation(tmp_path / "peer" / f"agent{place}", answers)
    code, out, _ = run(capsys, "ensemble", tmp_path / "peer", "--json")
    told = json.loads(out)["benchmarks"]["sums"]
    assert (code, told["aggregation"], told["correct"]) == (0, "maj@4", 4)
    code, out, _ = run(capsys, "ensemble", "--table", f"peer={tmp_path / 'peer'}", "--json")
    assert [row["who"] for row in json.loads(out)["rows"]] == ["agent0", "agent0", "agent1", "agent1", "pooled"]


def test_budgets_that_do_not_match_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, peer = teams(tmp_path)
    more = evaluation(tmp_path / "more", ["0 0 0", "1 1 1", "2 2 2", "3 3 3"])
    third = evaluation(tmp_path / "third", OWN[0])
    hot, cold = (
        evaluation(
            tmp_path / f"at{temperature}",
            OWN[0],
            generation={"sums": {"samples": 2, "temperature": temperature, "top_p": 1.0, "max_new_tokens": 9}},
        )
        for temperature in (0.6, 1.0)
    )
    runs = []
    for steps in (60, 120):
        agent = tmp_path / f"run{steps}" / "final" / "agent"
        agent.mkdir(parents=True)
        (agent.parent.parent / "config.yaml").write_text("batch:\n  prompts: 16\n  completions: 8\n")
        (agent.parent.parent / "summary.json").write_text(json.dumps({"steps": steps}))
        runs.append(evaluation(tmp_path / f"trained{steps}", OWN[0], model=str(agent)))
    for argv, says in (
        ((own, f"x={more},{third}"), "'own_0' has 2 responses per problem of sums and 'more' 3 of sums"),
        ((own, peer, "--votes", "3"), "--votes 3 cannot be put in"),
        ((own, f"{peer},{third}"), "'own' pools 2 models × 2 responses and 'peer' 3 × 2"),
        ((f"x={hot},{cold}",), "temperature of sums is 0.6 in 'at0.6' and 1.0 in 'at1.0'"),
        ((f"x={runs[0]},{runs[1]}",), "16 prompts × 8 completions per agent and 'trained120' for 120 steps"),
        ((own, f"own={third}"), "names the team 'own' twice"),
        (("x",), "write NAME=DIR,DIR"),
        ((own, "--aggregation", "maj@2"), "leave it out"),
        ((own, f"x={tmp_path / 'nothing'}"), "holds no evaluation"),
    ):  # fmt: skip
        code, out, err = run(capsys, "ensemble", "--table", *argv)
        assert (code, out) == (2, ""), argv
        assert says in err, (argv, err)
        assert len(err.splitlines()) == 1, argv
    both = run(capsys, "ensemble", third, "--table", own)
    assert (both[0], "give the folders of one pool, or teams" in both[2]) == (2, True)
    assert "is for --table" in run(capsys, "ensemble", third, more, "--votes", "1")[2]
    # The first two of three match.
    assert run(capsys, "ensemble", "--table", own, f"x={more},{third}", "--votes", "2")[0] == 0


def test_a_run_stands_for_its_agents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_checkpoints: Mapping[str, Path]
) -> None:
    """From checkpoints to the table in one command, which goes on where it stood."""
    problems = tmp_path / "math500.json"
    row = {"solution": "", "answer": "1", "subject": "Algebra", "level": 1}
    problems.write_text(json.dumps([row | {"problem": f"{n}?", "unique_id": f"t/{n}"} for n in range(4)]))
    for name in ("own", "peer"):
        for agent in ("qwen2", "llama"):
            shutil.copytree(tiny_checkpoints[agent], tmp_path / name / "final" / agent)
    asked = f"math500={problems} --samples 2 --temperature 1.0 --limit 3 --max-new-tokens 4 --style boxed --quiet"
    argv = ["ensemble", "--table", *(f"{name}={tmp_path / name}" for name in ("own", "peer")), "--json"]
    code, _, err = run(capsys, *argv)
    assert code == 2
    assert "is a checkpoint that has not been evaluated: say how and where" in err
    argv += ["--evaluate", asked, "--out", str(tmp_path / "evals")]
    code, out, _ = run(capsys, *argv)
    assert code == 0
    told = json.loads(out)
    assert [(row["team"], row["who"], row["score"]) for row in told["rows"]][4] == ("own", "pooled", "maj@4")
    # The same weights and noise: the pools are alike, and nothing is asked a second time.
    assert told["rows"][4]["benchmarks"] == told["rows"][9]["benchmarks"]
    shutil.rmtree(tmp_path / "own")
    shutil.rmtree(tmp_path / "peer")
    folders = [f"{name}={tmp_path / 'evals' / name}" for name in ("own", "peer")]
    assert json.loads(run(capsys, "ensemble", "--table", *folders, "--json")[1])["rows"] == told["rows"]

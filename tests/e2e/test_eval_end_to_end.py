"""The whole suite at once: a checkpoint, four benchmarks, a judge over HTTP, and kills at any moment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluations import write_rows
from mmcorl.cli.main import main
from openai_server import Call, OpenAIServer, Reply
from paths import FIXTURES

FOUR = ("mathvision", "mathverse", "mathvista", "wemath")
COMPARED = ("summary.json", "results.md", "results.csv", "results.tex", "responses.jsonl", "rule.jsonl", "judge.jsonl")


def opinion(call: Call) -> Reply:
    """A judge whose word depends on nothing but what it reads, and is off the menu now and then."""
    number = zlib.crc32(call.prompt.encode())
    return Reply(("correct", "incorrect", "incorrect.", "Correct", "well")[number % 5], delay=0.002)


def start(*argv: str | Path) -> subprocess.Popen[str]:
    command, pipe = [sys.executable, "-m", "mmcorl.cli", *map(str, argv)], subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def finish(*argv: str | Path) -> str:
    process = start(*argv)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out


def kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.is_file() else 0


@pytest.fixture
def judge() -> Iterator[OpenAIServer]:
    with OpenAIServer(opinion) as server:
        yield server


@pytest.mark.slow
def test_tiny_checkpoints_through_everything_killed_at_every_step(judge: OpenAIServer, tmp_path: Path) -> None:
    benchmarks = [f"{name}={FIXTURES / name}.parquet" for name in FOUR]
    options = ("--limit", "16", "--max-new-tokens", "8", "--quiet")

    def argv(out: Path) -> list[str | Path]:
        return ["eval", "zoo:internvl3.5", *benchmarks, "--out", out, *options, "--judge", judge.url]

    whole, part = tmp_path / "whole", tmp_path / "part"
    printed = json.loads(finish(*argv(whole), "--json"))["benchmarks"]
    assert list(printed) == list(FOUR)
    asked = 0
    for name, scores in printed.items():
        assert scores["responses"] == scores["total"] == scores["n"] > 0, name
        assert scores["missing"] == scores["judge_failed"] == scores["judge_pending"] == 0, name
        assert scores["correct"] == scores["rule_correct"] + scores["judge_recovered"], name
        asked += scores["judge_recovered"] + scores["judge_refused"] + scores["judge_unclear"]
    # These checkpoints know other problems, but some of their responses commit to an answer.
    assert asked > 0
    assert lines(whole / "judge.jsonl") == asked

    chance = random.Random(20)
    rows = lines(whole / "responses.jsonl")
    for reached in (
        lambda: lines(part / "items.jsonl") > 0,
        lambda: lines(part / "responses.jsonl") > chance.randrange(rows // 2),
        lambda: lines(part / "responses.jsonl") >= rows // 2,
        lambda: (part / "rule.json").is_file(),
        lambda: (part / "rule.jsonl").is_file(),
        lambda: lines(part / "judge.jsonl") > 0,
        lambda: (part / "summary.json").is_file(),
    ):
        # It may have ended before it is killed.
        process = start(*argv(part))
        while process.poll() is None and not reached():
            time.sleep(0.001)
        kill(process)
    finish(*argv(part))
    assert {name: (part / name).read_bytes() for name in COMPARED} == {
        name: (whole / name).read_bytes() for name in COMPARED
    }
    # A kill loses the questions under way (16 at once) and those being written, not those answered.
    assert len(judge.calls) <= 2 * asked + 2 * 16


def test_a_second_process_is_refused_and_an_interrupt_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": n, "response": f"<answer>about {n}</answer>", "gold": str(n)} for n in range(10)]
    file, out = write_rows(tmp_path / "r.jsonl", rows), tmp_path / "out"
    replies = iter(range(5))
    with OpenAIServer(lambda call: Reply("correct", delay=0 if next(replies, None) is not None else 30)) as slow:
        process = start("grade", file, "--judge", slow.url, "--out", out, "--quiet")
        while lines(out / "judge.jsonl") < 5 and process.poll() is None:
            time.sleep(0.01)
        for argv in (["grade", str(file), "--out", str(out)], ["grade", str(out)], ["report", str(out)]):
            assert main(argv) == 2
            assert "another process is working in" in capsys.readouterr().err
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "mmcorl: interrupted: re-run the same command to resume"
    assert lines(out / "judge.jsonl") == 5
    assert main(["grade", str(out), "--quiet"]) == 0

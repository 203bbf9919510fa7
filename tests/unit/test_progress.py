"""The live panel and the plain lines: what people see while a run goes."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from mmcorl.run.progress import Progress, sparkline, task


def plain_console(width: int = 100) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=False)


def terminal(width: int = 100, encoding: str = "utf-8") -> tuple[Console, Callable[[], str]]:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace")
    console = Console(
        file=file,
        width=width,
        height=40,
        force_terminal=True,
        legacy_windows=False,
        _environ={"TERM": "xterm"},
    )

    def written() -> str:
        file.flush()
        return raw.getvalue().decode(encoding)

    return console, written


def last_frame(written: str) -> list[str]:
    """The lines of the last picture, without colours and cursor movements."""
    frame = re.split(r"\x1b\[\d*A|\x1b\[2K", written)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", "\n".join(frame))
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    start = max(index for index, line in enumerate(lines) if re.search(r"\d:\d\d elap|\d:\d\d$", line))
    return lines[start:]


def metrics(step: int, agents: tuple[str, ...] = ("qwen", "intern"), **changed: Any) -> dict[str, Any]:
    told = {
        "reward_mean": 0.86,
        "sampled_accuracy": 0.885,
        "pseudo_label_accuracy": 0.97,
        "unparsed_share": 0.02,
        "completion_length": 8.2,
        **changed,
    }
    return {"step": step, "agents": dict.fromkeys(agents, told), "cohort": {"agreement": 0.94}}


def validation(step: int, accuracy: float | None, agreement: float | None, **more: Any) -> dict[str, Any]:
    agents = {"qwen": {"accuracy": accuracy, "n": 400}, "intern": {"accuracy": accuracy, "n": 400}}
    return {"step": step, "set": "held_out", "agents": agents, "cohort": {"agreement": agreement}, **more}


def timing(step: int) -> dict[str, Any]:
    return {"step": step, "seconds": {"rollout": 0.1, "total": 0.2}, "peak_rss_gb": 1.0}


def test_plain_lines_tell_validations_and_the_last_step() -> None:
    console = plain_console()
    with Progress("quickstart", ["qwen", "intern"], 2, console=console) as progress:
        progress.phase("evaluate")
        progress.validation(validation(0, 0.52, 0.2))
        progress.step(metrics(1), timing(1))
        progress.step(metrics(2), timing(2))
        progress.validation(validation(2, 0.9875, 0.98))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "step 0/2  validation held_out  qwen 0.520  intern 0.520  agreement 0.200"
    assert lines[1].startswith("step 1/2  ")
    assert "qwen: reward 0.86, sampled acc 0.89, label acc 0.97" in lines[2]
    assert lines[3] == (
        "step 2/2  validation held_out  qwen 0.520 -> 0.988  intern 0.520 -> 0.988  agreement 0.200 -> 0.980"
    )
    assert all(line.isascii() for line in lines)


def test_plain_lines_are_rare() -> None:
    """A log is not one line per step: 500 steps in well under a second give the first and the last."""
    console = plain_console()
    with Progress("long", ["qwen"], 500, console=console) as progress:
        for step in range(1, 501):
            progress.step(metrics(step, ("qwen",)), timing(step))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) <= 4
    assert lines[-1].startswith("step 500/500")


def test_terminal_shows_start_now_and_trend() -> None:
    console, written = terminal()
    with Progress("quickstart", ["qwen", "intern"], 60, console=console) as progress:
        progress.validation(validation(0, 0.52, 0.2))
        progress.message("2 rows skipped")
        progress.step(metrics(1), timing(1))
        progress.validation(validation(10, 0.95, 0.9))
    out = written()
    frame = last_frame(out)
    assert "2 rows skipped" in out
    assert out.rstrip().endswith("\x1b[?25h"), "the cursor must be visible again"
    assert "stopped" in frame[0]
    assert frame[1].endswith("1/60")
    qwen = next(line for line in frame if line.startswith("qwen"))
    # 0.52 and 0.95 of eight marks: int(4.16) = 4 and int(7.6) = 7
    assert "0.520 → 0.950" in qwen
    assert "▅█" in qwen
    assert qwen.split()[-5:] == ["0.89", "0.86", "0.97", "0.02", "8.2"]
    assert any("0.200 → 0.900" in line for line in frame if line.startswith("agreement"))


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
@pytest.mark.parametrize("count", [1, 8])
def test_no_line_is_wider_than_the_terminal(width: int, count: int) -> None:
    agents = tuple(f"agent-{index}-日本語-with-a-very-long-name-indeed" for index in range(count))
    console, written = terminal(width)
    with Progress("a run with quite a long name " * 3, list(agents), 60, console=console) as progress:
        progress.phase("update")
        progress.step(metrics(1, agents), timing(1))
        record = validation(10, 0.5, 0.5)
        progress.validation({**record, "agents": {agent: {"accuracy": 0.5} for agent in agents}})
    from rich.cells import cell_len

    frame = last_frame(written())
    assert max(cell_len(line) for line in frame) <= width
    assert sum(line.startswith("agent") for line in frame) == count


def test_terminal_without_utf8_gets_ascii() -> None:
    console, written = terminal(encoding="ascii")
    with Progress("quickstart", ["qwen"], 3, console=console) as progress:
        progress.validation(validation(0, 0.5, 0.2))
        progress.validation(validation(1, 0.75, 0.3))
        progress.step(metrics(1), timing(1))
    assert "\\u" not in written()
    assert any("0.500 > 0.750" in line for line in last_frame(written()))


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(
    "record",
    [
        {},
        {"step": None},
        {"step": 1, "agents": None, "cohort": None},
        {"step": 1, "agents": {"qwen": None}},
        {"step": 1, "agents": {"qwen": {"reward_mean": None, "sampled_accuracy": float("nan")}}},
        {"step": 1, "agents": {"qwen": {"reward_mean": float("inf"), "completion_length": "x"}}},
        {"step": 1, "agents": {"a stranger": {"reward_mean": 0.5}}, "cohort": {"agreement": None}},
    ],
)
def test_missing_metrics_never_raise(live: bool, record: dict[str, Any]) -> None:
    console = terminal()[0] if live else plain_console()
    with Progress("odd", ["qwen"], 1, console=console) as progress:
        progress.step(record, None)
        progress.step(record, {"seconds": None})
        progress.validation(record)
        progress.validation({**record, "set": "other"})


@pytest.mark.parametrize(("error", "said"), [(KeyboardInterrupt, "interrupted"), (RuntimeError, "failed")])
def test_an_exception_passes_and_the_terminal_is_restored(error: type[BaseException], said: str) -> None:
    console, written = terminal()

    def run() -> None:
        with Progress("quickstart", ["qwen"], 60, console=console) as progress:
            progress.step(metrics(1), timing(1))
            raise error

    with pytest.raises(error):
        run()
    assert written().rstrip().endswith("\x1b[?25h")
    assert said in last_frame(written())[0]


def test_a_resumed_run_shows_its_first_accuracy() -> None:
    console = plain_console()
    with Progress("resumed", ["qwen", "intern"], 60, start_step=20, console=console) as progress:
        progress.restore([metrics(20)], [validation(0, 0.52, 0.2), validation(20, 0.8, 0.6)])
        progress.validation(validation(30, 0.9, 0.9))
    line = console.file.getvalue()  # type: ignore[attr-defined]
    assert line.startswith("step 30/60  validation held_out  qwen 0.520 -> 0.900  intern 0.520 -> 0.900")


def test_quiet_prints_nothing() -> None:
    console, written = terminal()
    with Progress("quiet", ["qwen"], 1, console=console, quiet=True) as progress:
        progress.step(metrics(1), timing(1))
        progress.validation(validation(1, 0.5, 0.5))
        progress.message("hello")
    with task("quiet", 3, console=console, quiet=True) as work:
        work.advance()
        work.update("text")
    assert written() == ""


def test_sparkline_averages_long_series() -> None:
    assert sparkline([0.0, 0.5, 1.0], 10) == "▁▅█"
    # four values in two places: means 0.125 and 0.875, marks int(1.0) = 1 and int(7.0) = 7
    assert sparkline([0.0, 0.25, 0.75, 1.0], 2) == "▂█"
    assert sparkline([-3.0, 7.0], 2) == "▁█"
    assert sparkline([], 5) == ""


def test_task_counts_on_a_terminal_and_in_a_log() -> None:
    console = plain_console()
    with task("warm start [qwen]", 3, console=console) as work:
        work.advance(2)
        work.update("loss 0.5")
        work.advance()
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "warm start [qwen]  2/3"
    assert lines[-1] == "warm start [qwen]  3/3  loss 0.5"
    live, written = terminal()
    with task("warm start [qwen]", 3, console=live) as work:
        work.advance(3)
    assert "3/3" in written()
    assert "[qwen]" in written()


def test_results_on_stdout_stay_out_of_the_picture() -> None:
    """With stdout in a pipe, what a program prints while the panel is up arrives there, clean."""
    code = (
        "from rich.console import Console\n"
        "from mmcorl.run.progress import Progress\n"
        "with Progress('x', ['qwen'], 2, console=Console(stderr=True, force_terminal=True)):\n"
        "    print('result')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "result\n"
    assert "result" not in done.stderr


def test_importing_what_people_look_at_imports_no_torch() -> None:
    code = "import sys, mmcorl.run.progress, mmcorl.run.trackers, mmcorl.report; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

"""Placing agents and watching their processes, as far as it needs no cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mmcorl import config as settings
from mmcorl.errors import UserError
from mmcorl.launch import launcher
from mmcorl.launch.actor import Broke, Place
from mmcorl.launch.health import RankError, Seat, Watch, _death, _standing
from mmcorl.launch.local import require_one_sleeper
from mmcorl.launch.process_monitor import Nurse, Sign
from mmcorl.launch.ray_cluster import NOT_PASSED_ON, packed
from mmcorl.launch.remote_agent import RemoteAgent, split
from mmcorl.run import throughput
from mmcorl.system import scratch_dirs
from mmcorl.trainer.throughput import peak_flops, rates
from mmcorl.types import Completion, Group, Prompt
from model_adapters.tiny import build_tiny
from runs import changed, small_config
from worker_parts import worker

# -- sharing out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "parts", "expected"),
    [("abcd", 2, ["ab", "cd"]), ("abcde", 2, ["abc", "de"]), ("abc", 3, ["a", "b", "c"]), ("ab", 3, ["a", "b", ""])],
)
def test_items_are_shared_out_in_order(items: str, parts: int, expected: list[str]) -> None:
    assert split(items, parts) == expected


class Typed(RemoteAgent):
    """An agent whose ranks answer with what they were asked."""

    def __init__(self, size: int):
        super().__init__("a", size)
        self.calls: list[tuple[str, Any]] = []

    def call(self, method: str, arguments: Any, during: str) -> list[Any]:
        self.calls.append((method, arguments))
        assert len(arguments) == self.ranks
        if method == "rollout":
            return [
                [Group(one.uid, (Completion(f"rank {rank}", None, 1, "stop"),)) for one in prompts]
                for rank, (prompts, _) in enumerate(arguments)
            ]
        if method == "update":
            return [{"loss": 0.5}] * self.ranks
        if method == "take_rates":
            return [{"mfu": 0.1 * rank} for rank in range(self.ranks)]
        return [[Completion(one.uid, None, 1, "stop") for one in own[0]] for own in arguments]


def test_a_group_stays_with_its_rank_and_order_is_kept() -> None:
    agent = Typed(2)
    prompts = [Prompt(uid, uid, "?") for uid in "vwxyz"]
    groups = agent.rollout(prompts, 3)
    assert [group.uid for group in groups] == list("vwxyz")
    assert [group.completions[0].text for group in groups] == ["rank 0"] * 3 + ["rank 1"] * 2
    coming = {4: [Prompt(uid, uid, "?") for uid in "abc"]}
    agent.coming = coming.__getitem__
    assert agent.update(dict.fromkeys("zyxwv", (1.0,)), 3) == {"loss": 0.5}
    # Each rank is told what it will roll out next.
    assert agent.calls[1] == (
        "update",
        [
            ({"x": (1.0,), "w": (1.0,), "v": (1.0,)}, 3, coming[4][:2]),
            ({"z": (1.0,), "y": (1.0,)}, 3, coming[4][2:]),
        ],
    )
    assert agent.take_rates(3) == {"mfu": 0.0}
    assert [one.text for one in agent.evaluate(prompts)] == list("vwxyz")


def test_rates_of_a_step_and_of_a_run() -> None:
    """9 seconds for 5 prompts, 45 completions, 900 tokens; the update does in 2 s what two H100 could do in 0.5 s."""
    timings = {
        "rollout_seconds": 6.0,
        "update_seconds": 2.0,
        "sync_seconds": 1.0,
        "prompts": 5,
        "completions": 45,
        "completion_tokens": 900,
        "update_tokens": 300,
        "update_flops": 989e12,
    }
    first = rates(timings, 2 * 989e12)
    assert first["prompts_per_second"] == pytest.approx(5 / 9)
    assert first["completions_per_second"] == pytest.approx(5)
    assert first["tokens_per_second"] == pytest.approx(100)
    assert first["rollout_share"] == pytest.approx(6 / 9)
    assert first["mfu"] == pytest.approx(0.25)
    # A second step of 1 + 1 + 1 seconds at 400 tokens per second: (9 * 100 + 3 * 400) / 12 = 175 over both.
    second = {**first, "rollout_seconds": 1.0, "update_seconds": 1.0, "sync_seconds": 1.0, "tokens_per_second": 400}
    lines = [{"agents": {"a": one}, "seconds": {"total": 12.0}} for one in (first, second)]
    told = throughput.overall(lines, "a")
    assert told["tokens_per_second"] == pytest.approx(175)
    assert told["busy_share"] == pytest.approx(12 / 24)
    assert throughput.overall(lines, "b") == {}


@pytest.mark.parametrize(
    ("name", "tflops"),
    [("NVIDIA H100 PCIe", 756), ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H200", 989), ("NVIDIA L40S", 362)],
)
def test_peaks_by_name(name: str, tflops: float) -> None:
    assert peak_flops(name) == tflops * 1e12


def test_no_peak_where_none_is_known() -> None:
    assert peak_flops(None) is None
    assert peak_flops("Abacus 3000") is None


def test_a_group_takes_one_machine_where_it_fits() -> None:
    room = [8.0, 4.0]
    # 4 fill the smaller machine; 6 fit into the larger one, and 3 then lie across what is left of it and nothing.
    assert [packed(size, room) for size in (4, 6, 3)] == [True, True, False]
    assert room == [0.0, 0.0]


# -- settings --------------------------------------------------------------------------------------------------


def refusal(**changes: Any) -> str:
    with pytest.raises(UserError) as refused:
        settings.parse(changed(small_config({"a": "one", "b": "two"}, "text"), **changes))
    return str(refused.value)


def test_settings_of_ray_need_ray() -> None:
    said = refusal(ray__address="auto")
    assert said == "ray.address is 'auto' but launcher is 'local', which uses no Ray: use launcher=ray, or leave it out"
    assert "ray.collective_timeout is 30.0 but launcher is 'local'" in refusal(ray__collective_timeout=30)


def test_removed_settings_are_refused_unless_they_ask_for_nothing() -> None:
    """The resolved config of an older run writes out the default."""
    said = refusal(engine__separate=2)
    assert said.startswith("engine.separate is 2, but an engine has no GPUs of its own any more")
    assert "agents.NAME.ranks" in said
    old = changed(small_config({"a": "one", "b": "two"}, "text"), engine__separate=0)
    assert not hasattr(settings.parse(old).engine, "separate")


def test_of_several_engines_in_one_process_none_may_sleep_on_a_gpu() -> None:
    base = small_config({"a": "one", "b": "two"}, "text")
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    asked = settings.parse(changed(base, engine__kind="vllm"))
    with pytest.raises(UserError, match=r"2 agents have a vLLM engine each.*launcher=ray.*engine\.sleep=false"):
        require_one_sleeper(asked, gpu)
    require_one_sleeper(asked, cpu)
    require_one_sleeper(settings.parse(changed(base, engine={"kind": "vllm", "sleep": False})), gpu)
    require_one_sleeper(settings.parse(base), gpu)
    one = changed(base, engine__kind="vllm", agents__1=None, supervision={"kind": "self"})
    require_one_sleeper(settings.parse(one), gpu)


def test_ranks_need_ray_and_a_prompt_each() -> None:
    assert "agent 'a' has ranks: 2 but launcher 'local' runs one per agent" in refusal(agents__0__ranks=2)
    said = refusal(agents__1__ranks=5, launcher="ray")
    assert "agent 'b' has ranks: 5 but a batch has 4 prompts" in said
    assert "device is 'cuda:1' but with launcher 'ray'" in refusal(launcher="ray", device="cuda:1")
    uneven = changed(small_config({"a": "one", "b": "two"}, "text"), launcher="ray", agents__0__ranks=3)
    assert [agent.ranks for agent in settings.parse(uneven).agents] == [3, 1]


def test_time_slices_need_whole_weights() -> None:
    said = refusal(time_sliced=True, training__sharding="fsdp2")
    assert "time_sliced is true with training.sharding 'fsdp2'" in said


def test_a_missing_ray_is_told_before_anything_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    config = settings.parse(changed(small_config({"a": "one", "b": "two"}, "text"), launcher="ray"))
    with pytest.raises(UserError, match=r"the package ray is not installed: pip install -e '\.\[ray\]'"):
        launcher(config)


# -- looking at processes from outside ---------------------------------------------------------------------------

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    """A process with a child, both asleep; SIGUSR1 has it say where it stands."""
    program = (
        "import faulthandler, signal, subprocess, sys, time\n"
        "faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "def rest_forever():\n"
        "    print(child.pid, flush=True)\n"
        "    time.sleep(60)\n"
        "rest_forever()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        Nurse().end([process.pid])


def look(pid: int) -> Sign:
    sign = Nurse().look([pid])[pid]
    assert sign is not None
    return sign


@linux
def test_the_nurse_sees_suspension_work_and_ends_whole_families(sleeper: subprocess.Popen[str]) -> None:
    assert sleeper.stdout is not None
    child = int(sleeper.stdout.readline())
    first = look(sleeper.pid)
    assert not first.suspended
    os.kill(sleeper.pid, signal.SIGSTOP)
    time.sleep(0.1)
    assert look(sleeper.pid).suspended
    os.kill(child, signal.SIGKILL)
    os.kill(sleeper.pid, signal.SIGCONT)
    own = look(os.getpid())
    sum(range(3_000_000))
    assert own.at_work or look(os.getpid()).cpu > own.cpu
    Nurse().end([sleeper.pid])
    assert sleeper.wait(10) == -signal.SIGKILL
    assert Nurse().look([sleeper.pid, child]) == {sleeper.pid: None, child: None}
    Nurse().end([sleeper.pid])  # nothing left to do


@linux
def test_the_nurse_clears_up_after_those_it_ends(sleeper: subprocess.Popen[str], tmp_path: Path) -> None:
    folders = [Path(tempfile.mkdtemp(prefix=f"{scratch_dirs.prefix(pid)}a-")) for pid in (sleeper.pid, os.getpid())]
    (folders[0] / "adapter.bin").write_bytes(b"0")
    log = tmp_path / "log"
    log.touch()
    Nurse().end([sleeper.pid], [str(log), str(tmp_path / "gone already")])
    assert [folder.exists() for folder in folders] == [False, True]
    assert not log.exists()
    scratch_dirs.clear(os.getpid())
    assert not folders[1].exists()


@linux
def test_where_a_process_stands(sleeper: subprocess.Popen[str], tmp_path: Path) -> None:
    assert sleeper.stdout is not None
    assert sleeper.stderr is not None
    sleeper.stdout.readline()
    Nurse().dump([sleeper.pid])
    time.sleep(0.2)
    Nurse().end([sleeper.pid])
    log = tmp_path / "log"
    log.write_text("what it printed before\n" + sleeper.stderr.read())
    file, line, function = _standing(str(log))[0]
    assert (file, function) == ("<string>", "rest_forever")
    assert line in ("5", "6")  # of its loop
    assert _standing(str(tmp_path / "elsewhere")) == []


def seat(number: int = 0, of: int = 2, agent: str = "a") -> Seat:
    return Seat(agent, number, of, None, Place("10.0.0.7", "node", 1, (), ""), f"logs/{agent}-rank{number}.log")


def test_quiet_is_neither_working_nor_waiting_for_a_turn() -> None:
    one = seat()
    for cpu, io, at_work, quiet in [
        (1.0, 0, False, 0.0),  # nothing to compare with
        (1.0, 0, False, 1.0),
        (1.01, 2000, False, 2.0),  # staying connected costs this much
        (1.01, 2000, True, 0.0),
        (1.01, 2000, False, 1.0),
        (1.5, 2000, False, 0.0),
        (1.5, 10**6, False, 0.0),
    ]:
        one.look(Sign(False, cpu, io, at_work), 1.0)
        assert one.quiet == quiet
    for suspended, seconds in [(True, 0.0), (True, 1.0), (False, 0.0), (True, 0.0)]:
        one.look(Sign(suspended, 1.5, 10**6, False), 1.0)
        assert one.suspended == seconds


def failure(watch: Watch, patience: float = 3.0) -> Exception:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            watch.check()
        except Exception as error:
            return error
        time.sleep(0.05)
    raise AssertionError("nothing was raised")


def test_the_first_error_is_named_and_not_its_echo() -> None:
    watch = Watch(None, 4.0)
    watch.check()
    zero, one = seat(0), seat(1)
    zero.during = one.during = "the update of step 4"
    # A dead peer is first felt by those connected to it.
    watch.report(zero, "failed: RuntimeError: Connection closed by peer", echo=True)
    watch.check()  # others may still have to say something
    watch.report(one, "died without an error of its own: it was killed, or crashed in native code")
    error = failure(watch)
    assert isinstance(error, RankError)
    assert str(error) == (
        "agent 'a', rank 1 of 2 on 10.0.0.7 during the update of step 4 died without an error of its own: it was "
        "killed, or crashed in native code (its log: logs/a-rank1.log)"
    )


def test_a_lost_node_is_not_blamed_on_the_agent_alone() -> None:
    assert "Ray node of its machine was lost" in _death("The actor died unexpectedly before finishing this task.")
    assert _death("The actor died because its node has died. Node Id: 5f").startswith("was lost with the Ray node")
    assert "ran low on memory" in _death("Task was killed due to the node running low on memory.")


def test_an_echo_alone_is_told_after_a_while() -> None:
    watch = Watch(None, 4.0)
    watch.report(seat(0), "failed: RuntimeError: NCCL timeout", echo=True)
    assert "rank 0 of 2 on 10.0.0.7 failed: RuntimeError: NCCL timeout" in str(failure(watch))


def test_what_a_rank_refuses_or_finds_full_stays_what_it_is() -> None:
    watch = Watch(None, 4.0)
    watch.report(seat(0, 1), "", broke=Broke("a sentence", echo=False, refused=True))
    assert isinstance(failure(watch), UserError)
    watch = Watch(None, 4.0)
    watch.report(seat(0, 1), "", broke=Broke("OSError", echo=False, no_room="No space left on device"))
    error = failure(watch)
    assert isinstance(error, OSError)
    assert error.strerror == "No space left on device"


def test_an_error_is_not_covered_by_one_of_leaving_the_gpu(tmp_path: Path) -> None:
    agent = worker(build_tiny("llama", tmp_path / "llama", seed=0), time_sliced=True)
    assert agent._offload is not None
    agent._offload.device = torch.device("meta")  # One that cannot be left.
    with pytest.raises(RuntimeError, match="rewards and rollouts do not belong together"):
        agent.update({"x": [1.0]}, 1)


def test_workers_find_out_by_themselves_what_they_compute_on() -> None:
    # The run's process may be on a machine without a GPU, and so may its answer be.
    assert set(NOT_PASSED_ON) == {"CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR"}

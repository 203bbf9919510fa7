"""Separate engines, as far as it needs neither Ray nor vLLM: what is refused, memory, and weights in packets."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from mmcorl.config import Config
from mmcorl.engines.remote import packets, unpacked
from mmcorl.errors import UserError
from mmcorl.launch.actor import Broke, EngineBroke, Place, caught
from mmcorl.launch.engine_actor import Delivery
from mmcorl.launch.health import RankError, Seat, Watch
from mmcorl.trainer import memory
from mmcorl.trainer.memory import GIB, Shape
from worker_parts import settings

TWO = [{"name": "a", "model": "x", "ranks": 2}]
SEPARATE = {"kind": "vllm", "separate": 1}


def config(**sections: Any) -> Config:
    return settings(**{"agents": TWO, "launcher": "ray", "engine": SEPARATE, **sections})


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"engine": {"separate": 1}},
            "separate is 1 but kind is 'transformers', which samples from the trained weights",
        ),
        ({"launcher": "local", "agents": [{"name": "a", "model": "x"}]}, "engine.separate is 1 but launcher 'local'"),
        ({"time_sliced": True}, "engine.separate is 1 with time_sliced true"),
        ({"engine": {"kind": "vllm", "separate": 3}}, "engine.separate is 3 but agent 'a' has ranks: 2"),
    ],
)
def test_what_cannot_be_is_refused(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        config(**sections)


def test_a_gpu_of_its_own_is_used() -> None:
    assert config().engine.gpu_memory_utilization == 0.9
    assert config(engine={**SEPARATE, "gpu_memory_utilization": 0.5}).engine.gpu_memory_utilization == 0.5
    assert config(engine={"kind": "vllm"}).engine.gpu_memory_utilization == 0.4


def test_memory_of_both_kinds_of_gpu() -> None:
    shape = Shape(10**9, 0, 10, 2000, 8000, 2000, 500, 100_000)
    together, apart = (memory.budget(config(engine=one), 0, shape, 80 * GIB) for one in ({"kind": "vllm"}, SEPARATE))
    assert together.sampling == {"vLLM": 32 * GIB}  # 0.4 of 80
    assert (together.engine, apart.sampling) == (0, {})
    assert apart.engine == 72 * GIB + memory.RESERVE  # 0.9 of 80
    assert "and 73.5 GiB for each engine of its own" in apart.sentence()


def some_weights() -> list[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        ("matrix", torch.randn(3, 5, generator=generator)),
        ("bf16", torch.randn(7, generator=generator).bfloat16()),
        ("none", torch.empty(0, 4)),
        ("scalar", torch.tensor(3.5)),
        ("transposed", torch.randn(9, 2, generator=generator).T),
        ("ids", torch.arange(5)),
    ]


@pytest.mark.parametrize("size", [1, 7, 16, 64, 10_000])
def test_weights_arrive_as_they_were(size: int) -> None:
    """Tensors larger and smaller than a packet, of any type and shape."""
    made = list(packets(some_weights(), size))
    assert [len(one.data) for one in made[:-1]] == [size] * (len(made) - 1)
    # 60 + 14 + 0 + 4 + 72 + 40 bytes.
    assert sum(len(one.data) for one in made) == 190
    for (name, before), (told, after) in zip(some_weights(), unpacked(made), strict=True):
        assert (told, after.dtype, after.shape) == (name, before.dtype, before.shape)
        assert torch.equal(after, before)


class Taker:
    """Takes weights, and chokes on one of them."""

    def __init__(self, chokes_on: str | None = None):
        self.taken: list[str] = []
        self.syncs, self.chokes_on = 0, chokes_on

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        for name, _ in weights:
            if name == self.chokes_on:
                raise ValueError(f"cannot place {name}")
            self.taken.append(name)
            time.sleep(0.01)
        self.syncs += 1


def test_packets_of_many_calls_are_one_stream_of_weights() -> None:
    taker = Taker()
    delivery = Delivery(taker)
    for _ in range(2):
        for packet in packets(some_weights(), 16):
            delivery.take(packet)
        delivery.take(None)
    assert taker.taken == [name for name, _ in some_weights()] * 2
    assert taker.syncs == 2
    delivery.take(None)  # nothing is trained
    assert taker.syncs == 3


def test_a_weight_that_cannot_be_taken_is_told_to_who_brings_the_next_one() -> None:
    delivery = Delivery(Taker("bf16"))

    def deliver() -> None:
        for packet in [*packets(some_weights(), 16), None]:
            delivery.take(packet)

    with pytest.raises(ValueError, match="cannot place bf16"):
        deliver()


def test_an_engines_fault_is_told_as_its_own() -> None:
    """The rank that asked it only carries the news."""

    def ask() -> None:
        raise EngineBroke(0, Broke("ValueError: no", echo=False))

    broke = caught(ask)
    watch, place = Watch(None, 4.0), Place("10.0.0.7", "node", 1, (), "")
    rank = Seat("a", 0, 2, None, place, "logs/a-rank0.log", during="the rollout of step 3")
    watch.seats = [rank, Seat("a", 0, 1, None, place, "logs/a-engine0.log", "engine")]
    watch._report_broke(rank, broke)
    with pytest.raises(RankError) as told:
        watch.check()
    assert str(told.value) == (
        "agent 'a', engine 0 of 1 on 10.0.0.7 during the rollout of step 3 failed: ValueError: no "
        "(its log: logs/a-engine0.log)"
    )

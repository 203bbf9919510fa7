"""A checkpoint does not know how many ranks wrote it, or how they had divided the weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from adapter_passes import adapter_of
from mmcorl.sharding.ranks import ALONE, Ranks
from sharding_worlds import SHARES_OF_TWO, Done, Task, Worlds, done, train
from worker_parts import largest_difference

pytestmark = pytest.mark.stack

PAIRS = [
    *(("none:1", "zero3:2"), ("none:2", "zero2:2"), ("zero3:2", "none:1"), ("zero3:2", "fsdp2:2")),
    *(("fsdp2:2", "zero3:1"), ("zero2:2", "fsdp2:1"), ("zero3:2", "zero3:2:all"), ("fsdp2:1", "zero2:2:optimizer")),
]


def task(path: Path, way: str, lora: bool, **more: Any) -> Task:
    """A schedule that falls, so that it has to come along."""
    sharding, size, *offload = way.split(":")
    optimizer = {"lr": 1e-3, "eps": 1e-6, "betas": [0.9, 0.99], "schedule": "cosine"}
    training = {"sharding": sharding, "offload": offload[0] if offload else "none"}
    training |= {"lora": {"rank": 4, "alpha": 8}} if lora else {}
    sections = {"optimizer": optimizer, "training": training}
    return Task(path, sections, SHARES_OF_TWO[int(size)], {1: 1, 4: 2}, **more)


def do(worlds: Worlds, way: str, what: Task) -> Done:
    size = int(way.split(":")[1])
    return done([train(ALONE, what)]) if way == "none:1" else worlds[size].train(what)


@cache
def uninterrupted(path: Path, lora: bool) -> Done:
    return done([train(ALONE, task(path, "none:1", lora, steps=(1, 2, 3, 4)))])


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_run_goes_on_with_other_ranks(
    first: str, second: str, lora: bool, worlds: Worlds, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    """Two steps, a checkpoint, two steps: the weights of four steps at one go; the last files too."""
    family = "gemma3"  # its files name weights otherwise than its modules do
    path = tiny_checkpoints[family]
    expected = uninterrupted(path, lora)
    do(worlds, first, task(path, first, lora, steps=(1, 2), save=tmp_path / "saved"))
    files = {"save": tmp_path / "last", "export": tmp_path / "exported"}
    result = do(worlds, second, task(path, second, lora, steps=(3, 4), load=tmp_path / "saved", **files))
    assert largest_difference(result.weights, expected.weights) < 1e-5
    for metrics, reference in zip(result.metrics[0], expected.metrics[0][2:], strict=True):
        assert metrics["learning_rate"] == reference["learning_rate"]
    assert result.metrics[0][-1]["grad_norm"] == pytest.approx(expected.metrics[0][-1]["grad_norm"], rel=1e-4)
    for number, state in expected.optimizer["state"].items():
        assert largest_difference(result.optimizer["state"][number], state) < 1e-6
    exported = adapter_of(family).load_model(tmp_path / "exported").state_dict()
    merged = adapter_of(family).load_model(path).state_dict() | _own_names(family, path, result)
    assert largest_difference(exported, merged) < 1e-5
    if not lora:
        hub = load_file(path / "model.safetensors").keys()
        assert load_file(tmp_path / "last" / "model.safetensors").keys() == hub
        assert load_file(tmp_path / "exported" / "model.safetensors").keys() == hub
        assert set(result.synced) <= set(hub)


def _own_names(family: str, path: Path, result: Done) -> dict[str, Any]:
    """What an engine would get, by the names of the model in memory."""
    from mmcorl.policy.weights import hub_named

    model = adapter_of(family).load_model(path)
    place = {id(parameter): name for name, parameter in model.named_parameters()}
    names = {hub: place[id(tensor)] for hub, tensor in hub_named(model, model.named_parameters())}
    loaded = {names[hub]: tensor for hub, tensor in result.synced.items()}
    head, table = "lm_head.weight", "model.language_model.embed_tokens.weight"
    return loaded | ({head: loaded[table]} if table in loaded else {})


def test_two_ranks_write_one_folder(worlds: Worlds, tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    """The files of two divided ranks are those of one whole rank, by name, and as large."""
    path = tiny_checkpoints["internvl3_5"]
    for way in ("none:1", "zero3:2", "fsdp2:2", "zero2:2"):
        do(worlds, way, task(path, way, False, save=tmp_path / way, export=tmp_path / f"{way}.exported"))
    for kind in ("", ".exported"):
        expected = sizes(tmp_path / f"none:1{kind}")
        for way in ("zero3:2", "fsdp2:2", "zero2:2"):
            assert sizes(tmp_path / f"{way}{kind}") == expected


def sizes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in folder.iterdir()}


def test_ranks_are_told_apart_by_their_noise(worlds: Worlds, tiny_checkpoints: Mapping[str, Path]) -> None:
    """Both ranks sample the same prompt."""
    path = tiny_checkpoints["llama"]
    same_prompt = Task(path, {"training": {"sharding": "fsdp2"}}, ((0,), (0,)), steps=(), sample=True)
    first, second = (texts[:4] for texts in worlds[2].train(same_prompt).texts)
    assert sum(a == b for a, b in zip(first, second, strict=True)) <= 1
    assert Ranks() == ALONE

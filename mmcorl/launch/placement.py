"""Placement of agents on a Ray cluster: one placement group per agent, one bundle per rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmcorl.config import Config
from mmcorl.errors import RunError, UserError
from mmcorl.launch.health import ActorHandle

CPU_PER_RANK = 0.01
"""Share of a CPU that a rank without a GPU reserves: small, so that any number fits on a small machine."""


def choose_device(ray: Any, config: Config) -> str:
    """Return `cuda` or `cpu` for every rank. Raises UserError where the cluster has too few GPUs."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if config.device == "cpu" or (config.device == "auto" and not gpus):
        return "cpu"
    sizes = [agent.ranks for agent in config.agents]
    needed = max(sizes) if config.time_sliced else sum(sizes)
    if needed > gpus:
        how = "in turn" if config.time_sliced else f"({' + '.join(map(str, sizes))})"
        raise UserError(
            f"the agents need {needed} GPUs {how} but the Ray cluster has {gpus}: give agents fewer ranks, add "
            "machines with `ray start`, let agents share GPUs with time_sliced=true, or use device=cpu"
        )
    return "cuda"


def reserve(ray: Any, config: Config, device: str) -> list[Any]:
    """Return the placement groups once the cluster has reserved them: one per agent, or one shared with time slicing.

    Agents with time slicing live side by side on the GPUs of the largest. Raises RunError after `ray.startup` seconds.
    """
    from ray.util.placement_group import placement_group

    gpu = device == "cuda"
    sizes = [agent.ranks for agent in config.agents]
    if config.time_sliced:
        sizes = [max(sizes)]
    bundle = {"GPU": 1.0, "CPU": 1.0} if gpu else {"CPU": CPU_PER_RANK}
    free = [node["Resources"].get("GPU" if gpu else "CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    groups: dict[int, Any] = {}
    try:
        # The largest first: it has the fewest places to go.
        for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
            fits = fits_one_machine(sizes[index] * (1.0 if gpu else CPU_PER_RANK), free)
            groups[index] = placement_group([bundle] * sizes[index], strategy="STRICT_PACK" if fits else "PACK")
        waiting = [group.ready() for group in groups.values()]
        _, missing = ray.wait(waiting, num_returns=len(waiting), timeout=config.ray.startup)
        if missing:
            raise RunError(
                f"the Ray cluster did not reserve {sum(sizes)} places for the agents within {config.ray.startup:g} "
                "seconds (ray.startup): others use it, see `ray status`"
            )
    except BaseException:
        release(ray, list(groups.values()))
        raise
    return [groups[index] for index in range(len(sizes))]


def release(ray: Any, groups: Sequence[Any]) -> None:
    for group in groups:
        ray.util.remove_placement_group(group)


def actor_options(config: Config, device: str) -> dict[str, Any]:
    """Return Ray's options of a rank's actor: its share of a GPU, and no restarts."""
    # Ray counts GPUs in parts of 1/10000.
    share = 10_000 // len(config.agents) / 10_000 if config.time_sliced else 1.0
    return {
        "num_gpus": share if device == "cuda" else 0.0,
        "num_cpus": 0.0,
        "max_restarts": 0,
        "max_task_retries": 0,
    }


def fits_one_machine(size: float, free: list[float]) -> bool:
    """Whether a group fits on one machine; takes its share of `free`, the free places by machine.

    It goes to the machine that it fills best. A group that fits on none is spread, from the emptiest machine on.
    """
    fitting = [index for index, places in enumerate(free) if places >= size]
    if fitting:
        free[min(fitting, key=lambda index: free[index])] -= size
        return True
    for index in sorted(range(len(free)), key=lambda index: -free[index]):
        taken = min(size, free[index])
        free[index] -= taken
        size -= taken
    return False


def describe(name: str, handles: Sequence[ActorHandle]) -> str:
    """Return a line that says how many ranks of an agent run on which machines and GPUs."""
    by_node: dict[str, list[ActorHandle]] = {}
    for handle in handles:
        by_node.setdefault(handle.info.node, []).append(handle)
    places = []
    for node, here in by_node.items():
        gpus = ", ".join(gpu for handle in here for gpu in handle.info.gpus)
        places.append(f"{len(here)} on {node}" + (f" (GPU {gpus})" if gpus else ""))
    return f"{name}: {len(handles)} rank{'s' if len(handles) > 1 else ''}, {', '.join(places)}"

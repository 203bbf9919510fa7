"""Agents as Ray actors: one placement group per agent, one actor per GPU, on one machine or many.

The run's own process does data, votes, rewards, logs and checkpoints, and builds no model. Ray places, starts and ends
processes and carries prompts and completions; inside an agent, ranks speak torch.distributed with one another.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mmcorl.agent import Cohort, Parallel, in_turn
from mmcorl.config import Config
from mmcorl.config.install_hints import install
from mmcorl.errors import RunError, UserError
from mmcorl.launch.actor import Place, Rank
from mmcorl.launch.agent_threads import AgentThreads
from mmcorl.launch.health import Seat, Watch
from mmcorl.launch.process_monitor import Nurse
from mmcorl.launch.reaper import Guard
from mmcorl.launch.remote_agent import RemoteAgent
from mmcorl.policy.prompt_encoder import Reader

PASSED_ON = (
    *("MMCORL_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "TORCH", "PYTORCH_", "VLLM_", "DS_", "NCCL_", "GLOO_", "CUDA_"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
"""Environment variables that begin so go from the run's process to every worker, on every machine."""
NOT_PASSED_ON = ("CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR")
"""What Ray sets itself, and what follows from a worker's own device: the run's process may have no GPU."""
CPU_PER_RANK = 0.01
"""Without GPUs: what a rank books of the cluster's processors, so that any number fits on a small machine."""
OBJECT_STORE = 256 * 2**20
"""Bytes for objects under way in a cluster of our own: prompts with their images, and completions."""


def require_ray() -> Any:
    """The module; UserError where it is not installed or cannot work here."""
    if not sys.platform.startswith("linux"):
        raise UserError(f"launcher is 'ray', which runs on Linux and not on {sys.platform}: use launcher=local")
    # Before the import. Nothing is reported home, and a worker without a GPU does not see one.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    try:
        import ray
    except ImportError as error:
        raise UserError(
            f"launcher is 'ray' but the package ray is not installed: {install('ray')}, or use launcher=local"
        ) from error
    return ray


class RayLauncher:
    """Joins or starts a cluster for the length of a run. A context manager; on leaving, nothing of the run is left.

    Raises UserError where the cluster cannot be joined or has fewer GPUs than the agents need.
    """

    def __init__(self, config: Config):
        self.config, self.ray = config, require_ray()
        self._actors: list[Any] = []
        self._groups: list[Any] = []
        self._seats: list[Seat] = []
        self._nurses: dict[str, Any] = {}
        self._agent_threads: AgentThreads | None = None
        self._guard: Guard | None = None
        self._watch = Watch(self.ray, config.ray.hung_after)

    def __enter__(self) -> Self:
        self._ours = not self.ray.is_initialized()
        if self._ours:
            self._join()
        try:
            if self._ours and not self.config.ray.address:
                self._guard = Guard()
            self.device = self._device()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _undisturbed():
            self._watch.close()
            if self._agent_threads is not None:
                self._agent_threads.close()
            # A failure's sentence may name a log.
            self._end(keep_logs=isinstance(error, RunError))
            self._leave()

    def cohort(self, readers: Sequence[Reader], steps: int) -> Cohort:
        """Place the agents and load their models."""
        with _exit_on_sigterm():
            teams = self._place([reader.settings.ranks for reader in readers])
            for reader, team in zip(readers, teams, strict=True):
                self._seat(reader.name, team)
            self._start_watch()
            if self._guard is not None:
                self._guard.note()
            self._build(readers, steps)
            names = [reader.name for reader in readers]
            self._agent_threads = None if self.config.time_sliced else AgentThreads(names)
            parallel: Parallel = self._agent_threads or in_turn
            agents = [RayAgent(name, self._watch, self._team(name)) for name in names]
            places = [_told(name, self._team(name)) for name in names]
            return Cohort(agents, parallel, places=places, keep_logs=self._keep_logs)

    # -- the cluster -------------------------------------------------------------------------------------------

    def _join(self) -> None:
        address = self.config.ray.address
        workers = sum(agent.ranks for agent in self.config.agents)
        own = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
        try:
            if address:
                _reach(address)
            self.ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if address else own),
            )
        except (OSError, ValueError, RuntimeError, self.ray.exceptions.RayError) as error:
            reason = " ".join(str(error).split())
            if not address:
                raise RunError(f"a Ray cluster of this machine could not be started: {reason}") from error
            raise UserError(
                f"the Ray cluster {address!r} cannot be joined ({reason}): start one with `ray start --head`, set "
                "RAY_AUTH_MODE=token if it asks for tokens, or leave ray.address out"
            ) from error

    def _leave(self) -> None:
        if self._ours:
            self.ray.shutdown()
        if self._guard is not None:
            self._guard.close()

    def _device(self) -> str:
        """`cuda` or `cpu` for every rank; refuses more GPUs than there are."""
        has = int(self.ray.cluster_resources().get("GPU", 0))
        if self.config.device == "cpu" or (self.config.device == "auto" and not has):
            return "cpu"
        sizes = [agent.ranks for agent in self.config.agents]
        needed = max(sizes) if self.config.time_sliced else sum(sizes)
        if needed > has:
            shown = " + ".join(map(str, sizes))
            rule = f"{needed} GPUs in turn" if self.config.time_sliced else f"{needed} GPUs ({shown})"
            raise UserError(
                f"the agents need {rule} but the Ray cluster has {has}: give agents fewer ranks, add machines with "
                "`ray start`, let agents share GPUs with time_sliced=true, or use device=cpu"
            )
        return "cuda"

    def _place(self, sizes: Sequence[int]) -> list[list[tuple[Any, Place]]]:
        """The actors of every agent with their places, so that machines stay together."""
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        gpu, sliced = self.device == "cuda", self.config.time_sliced
        unit = {"GPU": 1.0, "CPU": 1.0} if gpu else {"CPU": CPU_PER_RANK}
        # Agents that take turns live in one group, side by side on the same GPUs.
        groups = [max(sizes)] if sliced else list(sizes)
        room = [node["Resources"].get("GPU" if gpu else "CPU", 0.0) for node in self.ray.nodes() if node["Alive"]]
        made = {}
        # The largest first: it has the fewest places to go.
        for index in sorted(range(len(groups)), key=lambda index: -groups[index]):
            fits = packed(groups[index] * (1.0 if gpu else CPU_PER_RANK), room)
            made[index] = placement_group([unit] * groups[index], strategy="STRICT_PACK" if fits else "PACK")
            self._groups.append(made[index])
        waiting = [group.ready() for group in made.values()]
        _, missing = self.ray.wait(waiting, num_returns=len(waiting), timeout=self.config.ray.startup)
        if missing:
            raise RunError(
                f"the Ray cluster did not give the agents their {sum(groups)} places within "
                f"{self.config.ray.startup:g} seconds (ray.startup): others use it, see `ray status`"
            )
        rank = self.ray.remote(Rank)
        options = {
            # GPUs are booked in parts of 1/10000.
            "num_gpus": (10_000 // len(sizes) / 10_000 if sliced else 1.0) if gpu else 0.0,
            "num_cpus": 0.0,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        environment = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(PASSED_ON) and name not in NOT_PASSED_ON
        }
        teams = []
        for index, (size, settings) in enumerate(zip(sizes, self.config.agents, strict=True)):
            own = []
            for bundle in range(size):
                where = PlacementGroupSchedulingStrategy(made[0 if sliced else index], bundle)
                own.append(rank.options(**options, scheduling_strategy=where).remote(settings.name, environment))
            self._actors += own
            teams.append(own)
        refs = [one.place.remote() for own in teams for one in own]
        places = iter(self._first(refs))
        pairs = [[(one, next(places)) for one in own] for own in teams]
        return [sorted(own, key=lambda pair: (pair[1].node, pair[1].gpus)) for own in pairs]

    def _first(self, refs: Sequence[Any]) -> list[Place]:
        """The first word of every actor."""
        try:
            return list(self.ray.get(list(refs), timeout=self.config.ray.startup))
        except self.ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise RunError(f"a worker could not be started on the Ray cluster: {reason}") from error

    def _seat(self, agent: str, team: Sequence[tuple[Any, Place]]) -> None:
        for number, (actor, place) in enumerate(team):
            self._seats.append(Seat(agent, number, len(team), actor, place, place.log))

    def _team(self, agent: str) -> list[Seat]:
        return [seat for seat in self._seats if seat.agent == agent]

    def _start_watch(self) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nurse = self.ray.remote(Nurse)
        for node in {seat.place.node_id for seat in self._seats}:
            here = NodeAffinitySchedulingStrategy(node, soft=False)
            self._nurses[node] = nurse.options(num_cpus=0.0, scheduling_strategy=here).remote()
        self.ray.wait([one.look.remote([]) for one in self._nurses.values()], num_returns=len(self._nurses))
        self._watch.start(self._seats, self._nurses)

    def _build(self, readers: Sequence[Reader], steps: int) -> None:
        """Load all models at the same time; one agent after the other where they share GPUs."""
        seats: list[Seat] = []
        refs: list[Any] = []
        for reader in readers:
            team = self._team(reader.name)
            (port,) = self._watch.gather(team[:1], [team[0].actor.free_port.remote()], "its start")
            meeting = f"{team[0].place.node}:{port}"
            for seat in team:
                workers = sum(one.place.node_id == seat.place.node_id for one in self._seats)
                threads = os.environ.get("OMP_NUM_THREADS") or str(self._threads(seat, workers))
                seats.append(seat)
                arguments = (self.config, reader.settings, reader.path, steps, self.device, threads)
                refs.append(seat.actor.build.remote(*arguments, seat.number, seat.of, meeting))
            if self.config.time_sliced:
                self._watch.gather(seats, refs, "its start", self.config.ray.startup)
        self._watch.gather(seats, refs, "its start", self.config.ray.startup)

    def _threads(self, seat: Seat, workers: int) -> int:
        """An even share of its machine's processors."""
        if self.config.threads:
            return self.config.threads
        node = next(node for node in self.ray.nodes() if node["NodeID"] == seat.place.node_id)
        cpus = node["Resources"].get("CPU", 1) if self.config.ray.address else os.cpu_count() or 1
        return max(1, int(cpus) // workers)

    def _keep_logs(self, folder: Path) -> None:
        folder = folder.absolute()
        refs = []
        for seat in self._seats:
            seat.log = str(folder / f"{seat.agent}-rank{seat.number}.log")
            refs.append(seat.actor.keep_log.remote(Path(seat.log)))
        self._watch.gather(self._seats, refs, "its start")

    def _end(self, keep_logs: bool) -> None:
        """Kill every rank with all it has started, suspended ones too, and give their places back.

        Without `keep_logs` what a rank printed is removed, unless the run has taken it into its folder.
        """
        ends = []
        for node, nurse in self._nurses.items():
            own = [seat.place for seat in self._seats if seat.place.node_id == node]
            ends.append(nurse.end.remote([one.pid for one in own], () if keep_logs else [one.log for one in own]))
        if ends:
            self.ray.wait(ends, num_returns=len(ends), timeout=2.0)
        for actor in (*self._actors, *self._nurses.values()):
            self.ray.kill(actor, no_restart=True)
        for group in self._groups:
            self.ray.util.remove_placement_group(group)


class RayAgent(RemoteAgent):
    """One agent whose ranks are actors."""

    def __init__(self, name: str, watch: Watch, seats: Sequence[Seat]):
        super().__init__(name, ranks=len(seats))
        self._watch, self._seats = watch, seats

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]], during: str) -> list[Any]:
        """On all ranks at once; raises as soon as any rank of the run fails."""
        self._watch.check()
        refs = [seat.actor.call.remote(method, *own) for seat, own in zip(self._seats, arguments, strict=True)]
        return self._watch.gather(self._seats, refs, during)


def packed(size: float, room: list[float]) -> bool:
    """Whether a group fits on one machine; takes its place in `room`, the free places by machine.

    On the machine that it fills best; a group that fits on none takes what it finds, from the fullest room on.
    """
    fitting = [index for index, free in enumerate(room) if free >= size]
    if fitting:
        room[min(fitting, key=lambda index: room[index])] -= size
        return True
    for index in sorted(range(len(room)), key=lambda index: -room[index]):
        taken = min(size, room[index])
        room[index] -= taken
        size -= taken
    return False


def _reach(address: str) -> None:
    """Raise OSError where nothing listens at HOST:PORT, which Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


def _told(name: str, team: Sequence[Seat]) -> str:
    by_node: dict[str, list[Seat]] = {}
    for seat in team:
        by_node.setdefault(seat.place.node, []).append(seat)
    where = []
    for node, seats in by_node.items():
        gpus = ", ".join(gpu for seat in seats for gpu in seat.place.gpus)
        where.append(f"{len(seats)} on {node}" + (f" (GPU {gpus})" if gpus else ""))
    return f"{name}: {len(team)} rank{'s' if len(team) > 1 else ''}, {', '.join(where)}"


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """A scheduler's SIGTERM while models load ends the run as Ctrl-C does (Ray would end the process with a 15)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(*_: Any) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Another Ctrl-C does not stop the clearing up, which takes a few seconds."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

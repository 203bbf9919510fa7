"""The Ray cluster of a run: one that already runs, or one of this machine alone for the length of the run."""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import Any

from mmcorl.config import Config
from mmcorl.errors import RunError, UserError
from mmcorl.launch.process_monitor import Reaper
from mmcorl.system.install_hints import install

FORWARDED = (
    *("MMCORL_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "TORCH", "PYTORCH_", "VLLM_", "DS_", "NCCL_", "GLOO_", "CUDA_"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
"""Prefixes of the environment variables that the driver passes on to every worker, on every machine."""
NOT_FORWARDED = ("CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR")
"""What Ray sets itself, and what follows from a worker's own device: the driver may have no GPU."""
OBJECT_STORE = 256 * 2**20
"""Bytes of the object store of a cluster of our own: prompts with their images, and completions in transit."""


def require_ray() -> Any:
    """Return the module ray. Raises UserError where it is not installed or cannot work here."""
    if not sys.platform.startswith("linux"):
        raise UserError(f"launcher is 'ray', which runs on Linux and not on {sys.platform}: use launcher=local")
    # Before the import. No usage statistics, and a worker without a GPU sees none.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    try:
        import ray
    except ImportError as error:
        raise UserError(
            f"launcher is 'ray' but the package ray is not installed: {install('ray')}, or use launcher=local"
        ) from error
    return ray


def forwarded_environment() -> dict[str, str]:
    """Return the environment variables of this process that every worker gets."""
    return {
        name: value for name, value in os.environ.items() if name.startswith(FORWARDED) and name not in NOT_FORWARDED
    }


class RayCluster:
    """Joins or starts the cluster; leaves it, or ends it, on `close`. Does neither where Ray is initialized already.

    Raises UserError where the cluster cannot be joined.
    """

    def __init__(self, ray: Any, config: Config):
        self.ray = ray
        self._ours = not ray.is_initialized()
        self._reaper: Reaper | None = None
        if not self._ours:
            return
        address = config.ray.address
        try:
            if address:
                # Where nothing listens at HOST:PORT, Ray would try for minutes.
                host, colon, port = address.rpartition(":")
                if colon and port.isdigit() and "/" not in host:
                    socket.create_connection((host, int(port)), timeout=10).close()
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            else:
                ray.init(
                    address="local",
                    num_cpus=sum(agent.ranks for agent in config.agents),
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            reason = " ".join(str(error).split())
            if not address:
                raise RunError(f"a Ray cluster of this machine could not be started: {reason}") from error
            raise UserError(
                f"the Ray cluster {address!r} cannot be joined ({reason}): start one with `ray start --head`, set "
                "RAY_AUTH_MODE=token if it asks for tokens, or leave ray.address out"
            ) from error
        if not address:
            self._reaper = Reaper()

    def workers_started(self) -> None:
        """Have the processes started since then ended, too, if this process is killed."""
        if self._reaper is not None:
            self._reaper.update()

    def close(self) -> None:
        """Leave the cluster; end it if it was started for this run."""
        if self._ours:
            self.ray.shutdown()
        if self._reaper is not None:
            self._reaper.close()

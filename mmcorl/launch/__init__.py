"""Where agents live: in this process, or as Ray actors on the GPUs of one machine or many.

A launcher turns a config and its readers into a `mmcorl.agent.Cohort`: the agents that `cotrain` calls, and the
`parallel` it starts their calls with. The method does not know which one it runs under.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmcorl.config import Config
    from mmcorl.launch.local import LocalLauncher
    from mmcorl.launch.ray_launcher import RayLauncher


def launcher(config: Config) -> LocalLauncher | RayLauncher:
    """The launcher that a config names: a context manager whose `cohort` places agents and loads their models.

    Raises UserError where machine or cluster lack what the config asks for.
    """
    if config.launcher == "ray":
        from mmcorl.launch.ray_launcher import RayLauncher

        return RayLauncher(config)
    from mmcorl.launch.local import LocalLauncher

    return LocalLauncher(config)

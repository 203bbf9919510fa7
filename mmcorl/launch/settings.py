"""Settings of Ray."""

from __future__ import annotations

from pydantic import Field

from mmcorl.section import Section


class RaySettings(Section):
    address: str | None = None
    """A Ray cluster that runs already (`ray start`): `auto` for the one on this machine, or HOST:PORT. By default a
    cluster of this machine alone is started for the run, and ended with it."""
    without_token: bool = False
    """Join a cluster that asks for no token, where nobody else reaches its ports: whoever does runs code there."""
    call_timeout: float = Field(default=7200.0, ge=1)
    """Seconds that one call of a worker (a rollout, an update, an evaluation, a checkpoint) may take: a worker that
    hangs stops the run then, and its log shows where. One that dies, raises or is suspended does within seconds."""
    startup: float = Field(default=900.0, gt=0)
    """Most seconds until the cluster has given every agent its place and every worker has loaded its model."""
    collective_timeout: float = Field(default=600.0, ge=1)
    """Seconds that a worker waits for others of its agent in a collective (NCCL, gloo) before the run stops. Longer
    than the first worker needs to write a checkpoint, for which the others wait."""

"""Where the time of a step goes: seconds by phase."""

from __future__ import annotations

import time


class PhaseClock:
    """Adds up the seconds of each phase until they are taken."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._running: tuple[str, float] | None = None

    def start(self, phase: str) -> None:
        """End the running phase and begin another; its first word is its name."""
        self.stop()
        self._running = (phase.split()[0], time.perf_counter())

    def stop(self) -> None:
        """End the running phase."""
        if self._running is not None:
            phase, since = self._running
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - since
            self._running = None

    def move_to_update(self, slowest: float) -> None:
        """Count as `update` what of the slowest update ran while this process already waited for the next rollouts."""
        waited, counted = self.seconds.get("rollout", 0.0), self.seconds.get("update", 0.0)
        moved = min(waited, max(0.0, slowest - counted))
        self.seconds |= {"rollout": waited - moved, "update": counted + moved}

    def take(self) -> dict[str, float]:
        """Return seconds by phase and their `total` since the last call."""
        self.stop()
        seconds = {phase: round(value, 4) for phase, value in self.seconds.items()}
        seconds["total"] = round(sum(self.seconds.values()), 4)
        self.seconds = {}
        return seconds

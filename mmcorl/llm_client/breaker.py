"""When to stop asking an endpoint that is of no use."""

from __future__ import annotations

from mmcorl.llm_client.client import Unanswered


class Stop(Exception):
    """The endpoint does not answer; ask no more."""


class Breaker:
    """Counts what became of questions, and stops the run where the next would meet the same.

    Until one was answered, what would befall every question (nobody listens, the key is refused, the model is
    unknown) stops it at once; so does `stop_after` failures in a row, at any time.
    """

    def __init__(self, stop_after: int) -> None:
        self.stop_after = stop_after
        self.answered = False
        """Some question was."""
        self.stopped: str | None = None
        """Why no more is asked, in a sentence."""
        self._failures = 0

    def success(self) -> None:
        """A reply came."""
        self.answered, self._failures = True, 0

    def failure(self, trouble: Unanswered) -> None:
        """No reply came; raises `Stop` where no more should be asked."""
        self._failures += 1
        if trouble.hopeless and not self.answered:
            self.stopped = str(trouble)
        elif self._failures >= self.stop_after:
            self.stopped = f"{self._failures} questions in a row failed, the last because {trouble}"
        if self.stopped:
            raise Stop from trouble

"""How a run stops early: on a signal, on a full disk, with a dead worker; and what the user is told."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from mmcorl.errors import RunError
from mmcorl.launch.health import RankError
from mmcorl.run.checkpoints import committed, no_room
from mmcorl.run.recorder import Recorder
from mmcorl.run.run_folder import RunFolder


@contextmanager
def stop_on_signals(recorder: Recorder) -> Iterator[None]:
    """On Ctrl-C or a scheduler's SIGTERM finish the step, checkpoint and leave; on a second one leave at once."""

    def stop(*_: object) -> None:
        if recorder.stop_requested:
            raise KeyboardInterrupt
        recorder.stop_requested = True
        recorder.progress.message("stopping after this step (Ctrl-C again to stop at once)")

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def resumable_errors(folder: RunFolder) -> Iterator[None]:
    """Raise RunError for a full disk or a dead worker: what was kept, and what the same command will do."""
    try:
        yield
    except Exception as error:
        reason = no_room(error)
        if reason is None and not isinstance(error, RankError):
            raise
        safe = committed(folder.checkpoints)
        kept = f"the run is safe up to step {safe[-1].step}" if safe else "nothing was committed yet"
        onward = "the same command goes on from there" if safe else "the same command starts over"
        if reason is None:
            raise RunError(f"the run stopped, {kept}, {onward}: {error}") from error
        raise RunError(
            f"no room is left to write into {str(folder.path)!r} ({reason}): {kept}, make room and {onward}"
        ) from error

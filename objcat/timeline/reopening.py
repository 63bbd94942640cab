"""Work over a view that is done again from another checkpoint, when the one that it stands on was collected or is damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from objcat.errors import CheckpointCollected
from objcat.timeline.log_view import R, Timeline

REOPENINGS_MAX = 8
"""How often an operation moves to another checkpoint because its own was collected, which takes a collection each time, or is damaged."""


def reopening(timeline: Timeline[Any], work: Callable[[], R], reopen: Callable[[], None] = lambda: None) -> R:
    """What `work` returns; done again when objects of the checkpoint that it stands on were collected meanwhile, or are damaged.

    reopen: what makes `work` stand on another one, or in the end on the log itself; nothing where it opens the log by itself.
    """
    for _ in range(REOPENINGS_MAX):
        try:
            return work()
        except CheckpointCollected as error:
            timeline.pass_over(error)
            reopen()
    # One checkpoint after another is gone or damaged: the log itself needs none.
    timeline.pass_over_all()
    reopen()
    return work()

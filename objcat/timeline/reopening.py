"""`reopening`: repeat work from another checkpoint when the one of its view was deleted or is damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from objcat.errors import CheckpointCollected
from objcat.timeline.log_view import R, Timeline

REOPENINGS_MAX = 8
"""How often an operation moves to another checkpoint, because its own was deleted or is damaged."""


def reopening(timeline: Timeline[Any], work: Callable[[], R], reopen: Callable[[], None] = lambda: None) -> R:
    """The result of `work`, repeated when objects of its checkpoint were deleted meanwhile or are damaged.

    Args:
        reopen: Makes `work` use another checkpoint, or in the end the log itself. Nothing if `work` opens the log itself.
    """
    for _ in range(REOPENINGS_MAX):
        try:
            return work()
        except CheckpointCollected as error:
            timeline.pass_over(error)
            reopen()
    # One checkpoint after another is gone or damaged. The log itself needs none.
    timeline.pass_over_all()
    reopen()
    return work()

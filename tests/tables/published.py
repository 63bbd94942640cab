"""Waits for what a process publishes beside its commits."""

from __future__ import annotations

import time

import objcat


def until_published(table: objcat.Table) -> None:
    """Return when the checkpoint and the hint after the last commit are there. They send requests of their own."""
    timeline = table._context.timeline
    while timeline._is_hinting or timeline._publishing.until_s is not None:
        time.sleep(0.001)

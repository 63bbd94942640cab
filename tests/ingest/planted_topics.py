"""Bugs of those who read topics, planted into an ingest. A run of kills has to find each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from objcat.ingest.sink import LakeSink


def _rows_first(patch: pytest.MonkeyPatch) -> None:
    """The rows are committed first, and the position after them: what was written comes again."""
    commit = LakeSink.commit

    def apart(self: Any, writes: Any, state: Any, bad: Any, metadata: Any) -> Any:
        if writes:
            kept = self.load()
            if kept is not None:
                commit(self, writes, kept, bad, metadata)
                return commit(self, [], state, [], metadata)
        return commit(self, writes, state, bad, metadata)

    patch.setattr(LakeSink, "commit", apart)


def _shifted(by: int) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        commit = LakeSink.commit

        def shifted(self: Any, writes: Any, state: Any, bad: Any, metadata: Any) -> Any:
            stored = copy.deepcopy(state)
            for topic in stored.position["topics"].values():
                if topic.get("next", {}).get("1"):
                    topic["next"]["1"] = max(0, topic["next"]["1"] + by)
            return commit(self, writes, stored, bad, metadata)

        patch.setattr(LakeSink, "commit", shifted)

    return plant


def _batch_again(patch: pytest.MonkeyPatch) -> None:
    """The first batch of a process is sent again, as after an answer that was lost."""
    commit = LakeSink.commit

    def again(self: Any, writes: Any, state: Any, bad: Any, metadata: Any) -> Any:
        done = commit(self, writes, state, bad, metadata)
        if writes and not getattr(self, "was_sent_again", False):
            self.was_sent_again = True
            done = commit(self, writes, state, bad, metadata)
        return done

    patch.setattr(LakeSink, "commit", again)


PLANTS: Mapping[str, Callable[[pytest.MonkeyPatch], None]] = {
    "rows before the position": _rows_first,
    "an offset too far": _shifted(1),
    "an offset too near": _shifted(-1),
    "a batch again": _batch_again,
}
"""By name: what plants it."""

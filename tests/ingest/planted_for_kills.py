"""Bugs that an ingest which nobody ends hides. They are planted into every process of a run of kills, which has to find each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from objcat.ingest import runner
from objcat.ingest.change_batch import WriteAction
from objcat.ingest.handover import Handover
from objcat.ingest.postgres import source
from objcat.ingest.sink import LakeSink

KILL_BUGS: Mapping[str, str] = {
    "position first": r"differ|at the source|only in the lake",
    "told too early": r"ended by itself.*(was moved|PositionGone)",
    "tables apart": r"the sum at slot",
    "chunk noted first": r"only at the source",
    "chunk has seen all": r"at the source|only in the lake|the sum at slot",
    "handed over too early": r"the sum at slot|at the source|only in the lake",
}
"""By name: how a run of kills tells of it."""


def plant_for_kills(bug: str, patch: pytest.MonkeyPatch) -> None:
    """Plant one of `KILL_BUGS`."""
    {
        "position first": _position_first,
        "told too early": _told_too_early,
        "tables apart": _tables_apart,
        "chunk noted first": _chunk_noted_first,
        "chunk has seen all": _chunk_has_seen_all,
        "handed over too early": _handed_over_too_early,
    }[bug](patch)


def _position_first(patch: pytest.MonkeyPatch) -> None:
    """The position of a batch of changes is committed before its rows."""
    commit = LakeSink.commit

    def apart(self: Any, writes: Any, state: Any, bad: Any, metadata: Any) -> Any:
        done = commit(self, [], state, bad, metadata)
        return commit(self, writes, state, [], metadata) if writes else done

    patch.setattr(LakeSink, "commit", apart)


def _told_too_early(patch: pytest.MonkeyPatch) -> None:
    """The source is told to forget what is not committed yet."""
    commit = runner.IngestSession._commit

    def told(self: Any, *arguments: Any) -> None:
        self._source.confirm(self._tables.state.position)
        commit(self, *arguments)

    patch.setattr(runner.IngestSession, "_commit", told)


def _tables_apart(patch: pytest.MonkeyPatch) -> None:
    """Each table of a batch is a commit of its own."""
    commit = LakeSink.commit

    def apart(self: Any, writes: Any, state: Any, bad: Any, metadata: Any) -> Any:
        names = list(dict.fromkeys(write.routed.name for write in writes))
        done = None
        for name in names or [""]:
            done = commit(self, [write for write in writes if write.routed.name == name], state, bad, metadata)
        return done

    patch.setattr(LakeSink, "commit", apart)


def _chunk_noted_first(patch: pytest.MonkeyPatch) -> None:
    """That a chunk was read is committed before its rows."""
    commit = LakeSink.commit

    def apart(self: Any, writes: Any, state: Any, bad: Any, metadata: Any) -> Any:
        is_chunk = any(table.unread is not None for table in state.tables.values())
        if is_chunk and any(write.action in (WriteAction.UPSERT, WriteAction.REPLACE_RANGE) for write in writes):
            commit(self, [], state, bad, metadata)
        return commit(self, writes, state, bad, metadata)

    patch.setattr(LakeSink, "commit", apart)


def _chunk_has_seen_all(patch: pytest.MonkeyPatch) -> None:
    """A chunk is taken to have seen whatever comes before its end in the log."""
    patch.setattr(source.PostgresSource, "is_covered", lambda *_: True)


def _handed_over_too_early(patch: pytest.MonkeyPatch) -> None:
    """A table counts as handed over with its last chunk, and not when the stream has passed what the chunks have seen."""
    note = Handover.note_chunk

    def noted(self: Any, chunk: Any) -> None:
        note(self, chunk)
        progress = self.state.tables[chunk.table.name]
        if progress.unread is None:
            progress.chunks = []

    patch.setattr(Handover, "note_chunk", noted)

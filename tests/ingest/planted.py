"""Bugs that others had, planted into an ingest from PostgreSQL. The tests have to find each."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from objcat.ingest import change_batch, snapshots
from objcat.ingest.change_batch import WriteAction
from objcat.ingest.postgres import decoder, source
from objcat.ingest.postgres.pgoutput import RowMessage
from objcat.ingest.postgres.visibility import lsn_number
from objcat.ingest.sink import LakeSink
from tests.ingest import planted_topics
from tests.ingest.planted_for_kills import KILL_BUGS, plant_for_kills

BUGS = ("position apart", "key as row", "last schema wins", "no replaced range", "positions in the log")


def plant(bug: str | None, patch: pytest.MonkeyPatch | None = None) -> None:
    """Plant a bug into this process, as long as `patch` lasts."""
    if bug is not None and bug in KILL_BUGS:
        plant_for_kills(bug, patch or pytest.MonkeyPatch())
    elif bug is not None and bug in planted_topics.PLANTS:
        planted_topics.PLANTS[bug](patch or pytest.MonkeyPatch())
    elif bug is not None:
        {
            "position apart": _position_apart,
            "key as row": _key_as_row,
            "last schema wins": _last_schema,
            "no replaced range": _no_range,
            "positions in the log": _log_positions,
        }[bug](patch or pytest.MonkeyPatch())


def _position_apart(patch: pytest.MonkeyPatch) -> None:
    """The position is committed first, and the rows after it."""
    commit = LakeSink.commit

    def apart(self: Any, writes: Any, state: Any, bad: Any, metadata: Any) -> Any:
        done = commit(self, [], state, bad, metadata)
        return commit(self, writes, state, [], metadata) if writes else done

    patch.setattr(LakeSink, "commit", apart)


def _key_as_row(patch: pytest.MonkeyPatch) -> None:
    """The row of an old key is taken for an old row: its nulls are values."""
    changed = decoder.TransactionDecoder._changed

    def as_row(self: Any, relation: Any, message: Any) -> Any:
        return changed(self, relation, RowMessage(message.kind, message.oid, message.old, is_key=False, new=message.new))

    patch.setattr(decoder.TransactionDecoder, "_changed", as_row)


def _last_schema(patch: pytest.MonkeyPatch) -> None:
    """All rows of a batch are written with the columns of the one that came first."""
    groups = change_batch._groups

    def first(changes: Any) -> Any:
        first_table: dict[str, Any] = {}
        for key, last in changes.last.items():
            table = first_table.setdefault(last.table.name, last.table)
            changes.last[key] = change_batch._LastRow(table, last.kind, last.row, last.unsent, last.stamp, last.sequence)
        return groups(changes)

    patch.setattr(change_batch, "_groups", first)


def _no_range(patch: pytest.MonkeyPatch) -> None:
    """A chunk of a second snapshot is written over what is there, and replaces nothing."""
    steps = snapshots._steps

    def over(*arguments: Any) -> Any:
        return [
            change_batch.TableWrite(routed=step.routed, action=WriteAction.UPSERT, rows=step.rows)
            for step in steps(*arguments)
            if step.rows is not None and step.rows.num_rows
        ]

    patch.setattr(snapshots, "_steps", over)


def _log_positions(patch: pytest.MonkeyPatch) -> None:
    """A chunk covers what comes before it in the log, whether its snapshot has seen it or not."""
    read, made = source.PostgresSource.read_chunk, decoder.DecodedTransaction.transaction

    def read_chunk(self: Any, *arguments: Any, **options: Any) -> Any:
        chunk = read(self, *arguments, **options)
        return None if chunk is None else dataclasses.replace(chunk, covers=chunk.until["lsn"])

    def transaction(self: Any, position: Any) -> Any:
        found = made(self, position)
        return found if found.mark is None else dataclasses.replace(found, mark=self.end_lsn)

    patch.setattr(source.PostgresSource, "read_chunk", read_chunk)
    patch.setattr(decoder.DecodedTransaction, "transaction", transaction)
    patch.setattr(source.PostgresSource, "is_covered", lambda _, covers, mark: mark <= lsn_number(covers))
    patch.setattr(source.PostgresSource, "unsettled", lambda _, marks: [])

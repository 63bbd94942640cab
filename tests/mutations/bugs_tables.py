"""Bugs of what stands on the commit loop: conflict rules, services, checkpoints, archives, applications, catalogs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import objcat.catalog.table_lifecycle
import objcat.engine.local
import objcat.lake.create
import objcat.table.scan
import objcat.table.table
import objcat.tasks.external_sort
import objcat.tasks.partition_moves
import objcat.timeline.archive
import objcat.timeline.checkpoint
import objcat.timeline.checkpoint_expiry
import objcat.timeline.commit
import objcat.timeline.conflicts
import objcat.timeline.dead_writers
import objcat.timeline.log_state
import objcat.timeline.log_view
import objcat.write.index_lookup
import objcat.write.table_writer
import objcat.write.transaction
import tests.explorer.roles_services
from fileio.contract import PutOutcome, Version, Written
from fileio.store import FileIO
from objcat.errors import CorruptTable
from objcat.metadata.files import FileGroup
from objcat.metadata.replay import TablesReducer
from objcat.metadata.snapshot import Snapshot
from objcat.tasks.model import WriteResult
from objcat.tasks.partition_moves import MoveResult
from objcat.tasks.scan import scan_groups
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.checkpoint import Hint, Root, root_key
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Entry, HistoryRow, Keys, Txn, log_key
from objcat.timeline.hints import FoundHint, hint_of
from objcat.timeline.intents import remove_files
from objcat.timeline.log_state import TableLogState
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.txn_outcomes import TxnOutcomes
from tests.explorer.roles import BUCKETS
from tests.mutations.bugs import bug

cleaning: Any = import_module("objcat.maintenance.clean")
compaction: Any = import_module("objcat.maintenance.compact")
overwriting: Any = import_module("objcat.table.overwrite")
replacing: Any = import_module("objcat.dml.overwrite")

# ---- rules of conflicts, one or two left out ---------------------------------------------------------------------


def _without(patch: pytest.MonkeyPatch, *names: str) -> None:
    rules = {sentence: rule for sentence, rule in objcat.timeline.conflicts.RULES.items() if rule.__name__ not in names}
    assert len(rules) == len(objcat.timeline.conflicts.RULES) - len(names), f"there is no rule of one of the names {names}"
    patch.setattr(objcat.timeline.conflicts, "RULES", rules)


@bug("two first writes to one bucket", "P9", "insert, insert")
def _both_created(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "both_created")


@bug("compaction conflicts ignored", "P9", "write and compaction, compaction")
def _both_compacted(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "both_rewrote")


@bug("two rewrites of one bucket", "P9", "rewrite, rewrite")
def _both_rewrote(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "both_rewrote")


@bug("insert-insert digest skipped", "P9", "place, place")
def _digests_skipped(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "placed_one_key")


@bug("an index that is not written with the rows", "P9", "place, place: record")
def _index_unwritten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(objcat.tasks.external_sort, "put_index", lambda *_: WriteResult())


@bug("a move that does not place its key", "P5", "move, move")
def _move_unplaced(patch: pytest.MonkeyPatch) -> None:
    keys_of = objcat.write.index_lookup.keys_of

    def updated(fileio: FileIO, txn: Txn, written: Sequence[WriteResult], *, kept: bytes) -> Keys:
        return keys_of(fileio, txn, [WriteResult(updated=result.placed + result.updated) for result in written], kept=kept)

    patch.setattr(objcat.write.table_writer, "keys_of", updated)


@bug("a move that leaves the row where it was", "P5", "move, update in place")
def _move_leaves(patch: pytest.MonkeyPatch) -> None:
    moves_of = objcat.tasks.partition_moves.moves_of

    def staying(*args: Any) -> MoveResult:
        moves = moves_of(*args)
        return replace(moves, left=np.full_like(moves.left, -1))

    patch.setattr(objcat.engine.local, "moves_of", staying)


@bug("a replacement that looks for its keys in no partition that stays", "P5", "replacement, move")
def _replaced_blindly(patch: pytest.MonkeyPatch) -> None:
    part = replacing.TableWriter
    patch.setattr(replacing, "TableWriter", lambda *rest, ends, whole: part(*rest, ends=None, whole=whole))


@bug("a replacement that ends what was there when it was planned", "P9", "replacement of all, replacement of all")
def _ended_as_planned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(overwriting, "renewed", lambda _fileio, proposal, *_: proposal)


@bug("restore racing a writer", "P5", "restore, rewrite")
def _restore_race(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "wrote_before_restore")


@bug("base files written for a stale bucket count", "P9", "split, rewrite")
def _stale_count(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "wrote_for_a_stale_count")


@bug("a drop that a writer does not mind", "P9", "drop, write")
def _drop_ignored(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "wrote_to_the_dropped")


@bug("a create in a namespace that is being dropped", "P9", "create, drop its namespace")
def _lost_namespace(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "needed_the_emptied", "emptied_the_needed")


@bug("two tables get one name", "P9", "two tables of one name")
def _one_name(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "both_named")


@bug("a savepoint or a restore onto files that a clean is about to delete", "P7", "save, clean", "restore, clean")
def _saved_too_late(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "kept_what_was_cleaned")


@bug("a clean that does not see what was saved meanwhile", "P8", "save, clean")
def _cleaned_too_late(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "cleaned_what_was_kept")


@bug("two changes of properties of which one is lost", "P5", "property, property")
def _property_lost(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "both_changed_the_schema")


# ---- redo, plans, applications -----------------------------------------------------------------------------------


@bug("a rewrite that is not done again", "P5", "rewrite, rewrite")
def _no_rewrite(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(objcat.write.table_writer.TableWriter, "rewrite", lambda self, *_: True)


@bug("a merge that is not computed again", "P5", "merge, merge")
def _merge_not_again(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "computed_from_changed")


@bug("a merge that says nothing of what it was computed from", "P5", "merge, write")
def _merge_unsaid(patch: pytest.MonkeyPatch) -> None:
    footprint = objcat.write.table_writer.TableWriter.footprint

    def blind(self: Any, snapshot: Snapshot, **_: Any) -> Any:
        return footprint(self, snapshot)

    patch.setattr(objcat.write.table_writer.TableWriter, "footprint", blind)


@bug("two executors of one plan do not see each other", "P2", "two executors of one plan")
def _plan_twice(patch: pytest.MonkeyPatch) -> None:
    judge = objcat.timeline.commit._settled_by
    _without(patch, "both_rewrote")
    patch.setattr(objcat.timeline.commit, "_settled_by", lambda mine, found: judge(replace(mine, plan=None), found))


@bug("a rolled-back plan whose executor commits", "P2", "executor, rollback of its plan")
def _fenced_plan(patch: pytest.MonkeyPatch) -> None:
    judge = objcat.timeline.commit._settled_by

    def blind(candidate: CommitAttempt, found: Entry) -> Entry | None:
        return None if candidate.plan is not None and found.rollback_of == candidate.plan else judge(candidate, found)

    patch.setattr(objcat.timeline.commit, "_settled_by", blind)


@bug("the same batch from a zombie and a restarted driver", "P5", "one batch, twice")
def _batch_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(objcat.timeline.commit, "check_app_version", lambda *_: None)
    patch.setattr(objcat.write.transaction, "check_app_version", lambda *_: None)


@bug("a transaction that says nothing of its second table", "P9", "transaction, write")
def _second_unsaid(patch: pytest.MonkeyPatch) -> None:
    _plan_for_the_first(patch, "footprint")


@bug("a transaction that commits one of its tables", "P9", "transaction, write")
def _second_left_out(patch: pytest.MonkeyPatch) -> None:
    _plan_for_the_first(patch, "footprint", "changes")


def _plan_for_the_first(patch: pytest.MonkeyPatch, *names: str) -> None:
    """What these fields of a candidate say of its first table is all that they say."""
    candidate = objcat.write.transaction._WriteTransaction._candidate

    def less(self: Any) -> CommitAttempt:
        whole = candidate(self)
        first: dict[str, Any] = {name: dict([min(getattr(whole, name).items())]) for name in names}
        return replace(whole, **first)

    patch.setattr(objcat.write.transaction._WriteTransaction, "_candidate", less)


# ---- compaction, splits ------------------------------------------------------------------------------------------


@bug("compaction drops later blocks", "P5", "write, compaction, write")
def _drops_blocks(patch: pytest.MonkeyPatch) -> None:
    proposal = compaction._proposal
    patch.setattr(compaction, "_proposal", lambda *files, as_of, **rest: proposal(*files, as_of=as_of + 9, **rest))


@bug("compaction drops deletes that older rows are measured by", "P5", "lone ordered delete, compaction")
def _drops_deletes(patch: pytest.MonkeyPatch) -> None:
    compact_group = compaction._compact_group

    def whole(*arguments: Any) -> Any:
        base, deletes = compact_group(*arguments)
        return base, deletes.slice(0, 0)

    patch.setattr(compaction, "_compact_group", whole)


@bug("compaction drops deletes that came later", "P5", "lone ordered delete, compaction")
def _drops_later_deletes(patch: pytest.MonkeyPatch) -> None:
    proposal = compaction._proposal
    patch.setattr(compaction, "_proposal", lambda *files, as_of, **rest: proposal(*files, as_of=as_of + 1, **rest))


@bug("a round of maintenance drops later blocks", "P5", "maintenance, write")
def _maintenance_drops_blocks(patch: pytest.MonkeyPatch) -> None:
    _drops_blocks(patch)


@bug("two workers do not see that the other has executed the plan", "P2", "worker, worker")
def _executed_twice(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "both_rewrote")
    settled_by = objcat.timeline.commit._settled_by
    patch.setattr(objcat.timeline.commit, "_settled_by", lambda candidate, found: settled_by(replace(candidate, plan=None), found))


@bug("split loses blocks", "P9", "split, write, read")
def _split_loses(patch: pytest.MonkeyPatch) -> None:
    file_groups = Snapshot.file_groups

    def few(self: Snapshot, *arguments: Any, **named: Any) -> list[FileGroup]:
        found = file_groups(self, *arguments, **named)
        return [replace(group, logs=()) if group.group_id.bucket_count > BUCKETS else group for group in found]

    patch.setattr(Snapshot, "file_groups", few)


# ---- cleaning, savepoints ----------------------------------------------------------------------------------------


@bug("cleaner deletes in-flight files", "P8", "write, write, clean")
def _cleans_in_flight(patch: pytest.MonkeyPatch) -> None:
    unneeded = cleaning._unneeded

    def more(timeline: Any, view: Any, *rest: Any) -> tuple[str, ...]:
        known = {outcome.txn for outcome in view.outcomes.recent}
        unknown = [key for key in timeline.fileio.list_keys("data/") if key.split("/")[1] not in known]
        return (*unneeded(timeline, view, *rest), *unknown)

    patch.setattr(cleaning, "_unneeded", more)


@bug("a clean deletes before it claims", "P8", "write, write, clean")
def _cleans_first(patch: pytest.MonkeyPatch) -> None:
    run = cleaning._run

    def early(timeline: Any, plan: Any) -> Any:
        remove_files(timeline.fileio, list(plan.removes), why="early")
        return run(timeline, plan)

    patch.setattr(cleaning, "_run", early)


@bug("a rewrite that takes a cleaned file for a lost one", "P0", "rewrite, rewrite, clean")
def _cleaned_is_lost(patch: pytest.MonkeyPatch) -> None:
    def lost(self: Any, error: CorruptTable) -> Any:
        raise error

    patch.setattr(objcat.write.transaction._WriteTransaction, "cleaned", lost)


@bug("savepoint ignored by cleaner", "P8", "savepoint, write, clean")
def _savepoint_ignored(patch: pytest.MonkeyPatch) -> None:
    unneeded = cleaning._unneeded

    def forgetful(timeline: Any, view: LogView[Any], table: str, *rest: Any) -> tuple[str, ...]:
        marks = replace(view.log.marks(table), saved=frozenset())
        return unneeded(timeline, replace(view, log=replace(view.log, tables={**view.log.tables, table: marks})), table, *rest)

    patch.setattr(cleaning, "_unneeded", forgetful)


@bug("a restore that forgets savepoints", "P8", "savepoint, restore, clean")
def _restore_forgets(patch: pytest.MonkeyPatch) -> None:
    replay = objcat.timeline.log_state._replay

    def forgetful(marks: TableLogState, table: str, entry: Entry) -> TableLogState:
        replayed = replay(marks, table, entry)
        return replace(replayed, saved=frozenset()) if entry.action is Action.RESTORE else replayed

    patch.setattr(objcat.timeline.log_state, "_replay", forgetful)


@bug("a smaller clean bound after a larger one", "P7", "clean, clean, save")
def _bound_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(objcat.timeline.log_state, "max", lambda _, bound: bound, raising=False)


@bug("reader ignores retention", "P0", "compaction, clean, scan")
def _retention_ignored(patch: pytest.MonkeyPatch) -> None:
    def to_arrow(self: Any) -> Any:
        return pa.concat_tables([self.schema.empty_table(), *scan_groups(self._fileio, self.plan.task(self.plan.groups))])

    patch.setattr(objcat.table.scan.Scan, "to_arrow", to_arrow)


# ---- checkpoints, archives, sweeps -------------------------------------------------------------------------------


@bug("reader trusts the hint", "P10", "checkpoint, write and read")
def _hint_trusted(patch: pytest.MonkeyPatch) -> None:
    whole = Timeline.open

    def trusting(self: Timeline[Any], found: FoundHint | None = None) -> LogView[Any]:
        hint, version = found or self.read_hint()
        root = None if hint is None else objcat.timeline.checkpoint.read_root(self.fileio, hint.checkpoint)
        if hint is None or root is None or not isinstance(root.root, Root):
            return whole(self, (hint, version))
        return self.advance(self._standing_on(root.root), self.log.read_after(root.root.slot, until=hint.slot))

    patch.setattr(Timeline, "open", trusting)


@bug("reader trusts what the hint carries", "P10", "checkpoint, write and read")
def _carried_trusted(patch: pytest.MonkeyPatch) -> None:
    whole = Timeline.open

    def trusting(self: Timeline[Any], found: FoundHint | None = None) -> LogView[Any]:
        found = found or self.read_hint()
        return self.foresee(found) or whole(self, found)

    patch.setattr(Timeline, "open", trusting)


def hint_ahead(root: Root | None, entries: Sequence[Entry] | None, *, slot: int, checkpoint: int) -> Hint | None:
    """A hint that is one slot ahead of its log, as in a copy of a bucket whose hint was copied last."""
    if entries:
        last = entries[-1]
        txn = Txn(f"{last.txn[:-16]}{slot:016x}")
        lost = msgspec.structs.replace(last, slot=slot + 1, txn=txn, committed_at_ms=last.committed_at_ms + 1, changes={}, footprint={})
        entries, slot = (*entries, lost), slot + 1
    return hint_of(root, entries, slot=slot, checkpoint=checkpoint)


@bug("a hint is ahead of its log, and its last slot is not asked for", "P10", "checkpoint, write and read")
def _slot_unconfirmed(patch: pytest.MonkeyPatch) -> None:
    """Readers as they are do not mind such a hint: `test_a_hint_that_is_ahead_of_its_log_is_no_bug`."""
    whole = Timeline.open
    patch.setattr(objcat.timeline.log_view, "hint_of", hint_ahead)

    def trusting(self: Timeline[Any], found: FoundHint | None = None) -> LogView[Any]:
        found = found or self.read_hint()
        view = self.foresee(found)
        return whole(self, found) if view is None else self.refresh(view)

    patch.setattr(Timeline, "open", trusting)


@bug("a slot deleted after a checkpoint", "P8", "write, checkpoint, read")
def _slot_deleted(patch: pytest.MonkeyPatch) -> None:
    publish = Timeline.publish

    def tidy(self: Timeline[Any], view: LogView[Any]) -> LogView[Any]:
        published = publish(self, view)
        self.fileio.delete([log_key(published.checkpoint)])
        return published

    patch.setattr(Timeline, "publish", tidy)


class _Later:
    """Puts nothing yet."""

    def __init__(self, fileio: Any, pending: list[tuple[Any, ...]]) -> None:
        self._fileio = fileio
        self._pending = pending

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fileio, name)

    def put(self, *arguments: Any) -> PutOutcome:
        self._pending.append(arguments)
        return Written(Version("later"), None)


@bug("checkpoint published before its shards", "P7", "checkpoint, late read")
def _root_first(patch: pytest.MonkeyPatch) -> None:
    pending: list[tuple[Any, ...]] = []
    save = TablesReducer.save
    put_root = objcat.timeline.checkpoint.put_root

    def later(self: Any, fileio: Any, state: Any, folder: str) -> Any:
        pending.clear()
        return save(self, _Later(fileio, pending), state, folder)  # type: ignore[arg-type]

    def first(fileio: Any, root: Any, mode: Any) -> PutOutcome:
        outcome = put_root(fileio, root, mode)
        for arguments in pending:
            fileio.put(*arguments)
        return outcome

    patch.setattr(TablesReducer, "save", later)
    patch.setattr(objcat.timeline.checkpoint, "put_root", first)


@bug("a collection that fences no publisher", "P7", "checkpoint, collection: 1 crash")
def _unfenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(objcat.timeline.checkpoint_expiry, "_put_void", lambda *_, **__: None)


@bug("a collection that deletes its intent although it does not know", "P8", "collection 7 alone, history of 5, small: 2 faults, 1 crash")
def _collects_unknown(patch: pytest.MonkeyPatch) -> None:
    commit = Committer.try_commit

    def tidy(self: Committer, candidate: CommitAttempt, **named: Any) -> Any:
        try:
            return commit(self, candidate, **named)
        finally:
            self.delete_intent(candidate.txn)

    patch.setattr(Committer, "try_commit", tidy)


@bug("a collection that deletes before its roots are void", "P7", "checkpoint, collection: 1 crash")
def _collects_first(patch: pytest.MonkeyPatch) -> None:
    fence = objcat.timeline.checkpoint_expiry.fence

    def early(fileio: Any, log: Any, keeps: Any) -> Any:
        garbage = [key for key in fileio.list_keys("checkpoints/") if key < root_key(2)]
        remove_files(fileio, garbage, why="early")
        return fence(fileio, log, keeps)

    patch.setattr(objcat.timeline.checkpoint_expiry, "fence", early)


@bug("own txn not searched in history", "P2", "stalled rollback, archive")
def _history_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Root, "all_outcomes", lambda self: TxnOutcomes())


@bug("tombstone without identity", "P1", "archive, write, scan")
def _anonymous(patch: pytest.MonkeyPatch) -> None:
    tombstone = objcat.timeline.archive.tombstone_of

    def anonymous(entry: Entry, row: HistoryRow) -> Entry:
        return msgspec.structs.replace(tombstone(entry, row), txn=Txn("20270115T080000000Z-0000000000000000"))

    patch.setattr(objcat.timeline.archive, "tombstone_of", anonymous)


@bug("a tombstone that keeps the rollbacker's txn only", "P1", "stalled write, archive")
def _fence_lost(patch: pytest.MonkeyPatch) -> None:
    tombstone = objcat.timeline.archive.tombstone_of

    def forgetful(entry: Entry, row: HistoryRow) -> Entry:
        return msgspec.structs.replace(tombstone(entry, row), rollback_of=None)

    patch.setattr(objcat.timeline.archive, "tombstone_of", forgetful)


@bug("a sweep deletes before it settles", "P8", "write, sweep")
def _sweeps_first(patch: pytest.MonkeyPatch) -> None:
    settle = objcat.timeline.dead_writers._settle

    def early(timeline: Any, view: Any, txn: Any, found: Any, names_of: Any) -> Any:
        remove_files(timeline.fileio, found.files, why=txn)
        return settle(timeline, view, txn, found, names_of)

    patch.setattr(objcat.timeline.dead_writers, "_settle", early)


@bug("a sweep deletes what a commit names", "P8", "write, sweep")
def _sweeps_named(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tests.explorer.roles_services, "files_named_by", lambda _: ())


@bug("a new table has its name before its rows", "P0", "table with a row, read")
def _name_before_rows(patch: pytest.MonkeyPatch) -> None:
    def wrong(lake: Any, name: str, spec: Any, shared_log: str | None, write: Any) -> Any:
        table = objcat.lake.create.create_named_table(lake, name, spec, shared_log)
        return table, write(table)

    patch.setattr(objcat.lake.create, "create_with_rows", wrong)


@bug("a table is taken back whatever others have written to it", "P3", "take back, write")
def _taken_from_writers(patch: pytest.MonkeyPatch) -> None:
    def regardless(timeline: Any, view: Any, table: str) -> int | None:
        return objcat.catalog.table_lifecycle.close(timeline, view, table).log.marks(table).closed_at

    patch.setattr(objcat.lake.create, "close_unchanged", regardless)


@bug("a table is taken back over what others have written meanwhile", "P3", "take back, write")
def _taken_over_writers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(objcat.catalog.table_lifecycle, "AT_HEAD", objcat.timeline.attempt.CommitRetryPolicy())

"""Bugs of services, each a plausible mistake of whoever changes them next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import msgspec
import pytest

from objcat.errors import CommitUnknown
from objcat.metadata.erased_values import Redaction
from objcat.metadata.files import TableDelta, decode_delta
from objcat.tasks.model import WriteResult
from objcat.tasks.row_order import in_order
from objcat.timeline.entry import Footprint, HistoryRow
from objcat.timeline.log_view import Timeline
from tests.mutations.bugs import bug

clustering: Any = import_module("objcat.maintenance.cluster")
relocating: Any = import_module("objcat.maintenance.cluster_rows")
reordering: Any = import_module("objcat.maintenance.cluster_order")
compaction: Any = import_module("objcat.maintenance.compact")
redacting: Any = import_module("objcat.timeline.redaction")
cleaning: Any = import_module("objcat.maintenance.clean")
performing: Any = import_module("objcat.write.service_commit")
sessions: Any = import_module("objcat.timeline.commit_session")
saved_rows: Any = import_module("objcat.table.erasure_saved")

# ---- clustering --------------------------------------------------------------------------------------------------


@bug("a clustering that does not say which groups it ends", "P5", "append, clustering", "delete, clustering")
def _silent_clustering(patch: pytest.MonkeyPatch) -> None:
    proposal = clustering._proposal

    def silent(*files: Any, **rest: Any) -> Any:
        whole = proposal(*files, **rest)
        return replace(whole, footprint=msgspec.structs.replace(whole.footprint, retires=()))

    patch.setattr(clustering, "_proposal", silent)


@bug(
    "a clustering that leaves groups to others, and not the files that it made of them", "P5", "append to one of two partitions, clustering"
)
def _clustered_twice(patch: pytest.MonkeyPatch) -> None:
    narrow = clustering._narrow

    def half(proposal: Any, taken: Any) -> Any:
        less = narrow(proposal, taken)
        bases = decode_delta(proposal.changes).bases
        return less and clustering._proposal(WriteResult(bases), less.footprint.retires, as_of=decode_delta(less.changes).as_of)

    patch.setattr(clustering, "_narrow", half)


@bug("a clustering that does not yield, but goes on as it was", "P5", "delete, clustering")
def _stubborn_clustering(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clustering, "_narrow", lambda proposal, taken: proposal)


@bug("a clustering that forgets log rows", "P5", "clustering, clustering")
def _clustered_bases(patch: pytest.MonkeyPatch) -> None:
    current_cuts = clustering.current_cuts
    patch.setattr(clustering, "current_cuts", lambda fileio, spec, group, logs: current_cuts(fileio, spec, replace(group, logs=()), logs))


@bug("a clustering within file groups that takes what came after its plan for its own", "P5", "write, sort, write")
def _sorted_above_its_plan(patch: pytest.MonkeyPatch) -> None:
    run = compaction.run_compaction

    def later(workers: Any, work: Any, txn: Any) -> Any:
        return run(workers, replace(work, plan=replace(work.plan, slot=work.plan.slot + 9)), txn)

    patch.setattr(reordering, "run_compaction", later)


@bug("a clustering within file groups that does not yield, but goes on as it was", "P9", "write and compaction, sort")
def _stubborn_sort(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reordering, "narrowed", lambda proposal, taken: proposal)


@bug("a sort of a file that loses its last rows", "P5", "write, sort, write")
def _sorted_in_part(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compaction, "in_order", lambda pieces, order, schema: (rows.slice(1) for rows in in_order(pieces, order, schema)))


@bug("a clustering that does not tell the index where keys have gone", "P9", "update: record, clustering")
def _untold_index(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(relocating, "put_index", lambda *_: WriteResult())


@bug("a clustering of keys that does not say which groups it ends", "P5", "update: record, clustering")
def _silent_relocation(patch: pytest.MonkeyPatch) -> None:
    _silent_clustering(patch)


@bug("a clustering of keys that forgets log rows", "P5", "update: bloom, clustering")
def _relocated_bases(patch: pytest.MonkeyPatch) -> None:
    current_cuts = relocating.current_cuts
    patch.setattr(relocating, "current_cuts", lambda fileio, spec, group, logs: current_cuts(fileio, spec, replace(group, logs=()), logs))


# ---- compaction --------------------------------------------------------------------------------------------------


@bug("an executor that reads the newest slot, and claims the one of its plan", "P5", "append, executor of a plan from before it")
def _planned_and_newest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Timeline, "at", lambda self, slot: self.open())


@bug("a compaction that does not yield, but goes on as it was", "P9", "write and compaction, compaction")
def _stubborn_compaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compaction, "narrowed", lambda proposal, taken: proposal)


@bug("a plan put away although only its executor was taken for dead", "P8", "worker, sweep")
def _plan_put_away(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compaction, "resolve", lambda *_: None)


@bug("an index that is merged without the keys of new file groups", "P9", "place elsewhere, compaction: record")
def _index_of_former_groups(patch: pytest.MonkeyPatch) -> None:
    of_live_groups = compaction.of_live_groups
    patch.setattr(compaction, "of_live_groups", lambda rows, live: of_live_groups(rows, sorted(live)[1:]))


@bug(
    "a round of maintenance that drops entries of an index which came meanwhile",
    "P9",
    "place elsewhere, round of maintenance: record, copy on write",
)
def _index_entries_dropped(patch: pytest.MonkeyPatch) -> None:
    proposal = compaction._proposal
    patch.setattr(compaction, "_proposal", lambda *files, as_of, **rest: proposal(*files, as_of=as_of + 1, **rest))


# ---- cleaning ----------------------------------------------------------------------------------------------------


@bug("a clean that forgets what a RESTORE has restored", "P8", "write, clean after a restore")
def _restored_is_cleaned(patch: pytest.MonkeyPatch) -> None:
    unneeded = cleaning._unneeded

    def forgetful(*given: Any) -> Any:
        *rest, since = given
        return unneeded(*rest, [msgspec.structs.replace(entry, footprint=blinded(entry.footprint)) for entry in since])

    def blinded(footprint: Mapping[str, Footprint]) -> dict[str, Footprint]:
        return {table: msgspec.structs.replace(own, restores=None) for table, own in footprint.items()}

    patch.setattr(cleaning, "_unneeded", forgetful)


@bug("a clean that looks at one file group of a log object", "P8", "write, clean after a compaction of one file group")
def _one_group(patch: pytest.MonkeyPatch) -> None:
    added = cleaning._added
    patch.setattr(
        cleaning, "_added", lambda entry, table: {path: frozenset(sorted(group_ids)[:1]) for path, group_ids in added(entry, table).items()}
    )


# ---- what all services share -------------------------------------------------------------------------------------


@bug("a service that tidies up although nobody knows whether it has its slot", "P8", "split 5 alone, history of 2: 2 faults, 1 crash")
def _unknown_tidied(patch: pytest.MonkeyPatch) -> None:
    class Never(Exception):
        pass

    assert sessions.CommitUnknown is CommitUnknown
    patch.setattr(sessions, "CommitUnknown", Never)


@bug("a delete that takes a cleaned file for a lost one", "P0", "delete of what is found, compaction and clean")
def _cleaned_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(performing, "_expired", lambda *_: None)


# ---- erasure -----------------------------------------------------------------------------------------------------


@bug("an erasure whose cleans find no file to delete", "P12", "erasure alone: 1 fault, 1 crash at the data")
def _erases_too_little(patch: pytest.MonkeyPatch) -> None:
    plan = cleaning._plan
    patch.setattr(cleaning, "_plan", lambda *given, **rest: replace(plan(*given, **rest), removes=()))


@bug("an erasure that asks readers what a savepoint holds", "P12", "erasure, save")
def _erases_what_is_seen(patch: pytest.MonkeyPatch) -> None:
    def seen(table: Any, snapshot: Any, where: Any) -> bool:
        return bool(saved_rows.open_scan(table, where="k = 2", as_of=snapshot.slot).count())

    patch.setattr(saved_rows, "_holds", seen)


@bug("an erasure that takes the files of its entries away", "P1", "forgetting, scan")
def _redacts_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Redaction, "_delta", lambda _self, delta: TableDelta(spec=delta.spec))


@bug("an erasure whose tombstones name the row of another slot", "P1", "forgetting, scan")
def _names_another_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(redacting, "HistoryRow", lambda file, _row: HistoryRow(file, 0))

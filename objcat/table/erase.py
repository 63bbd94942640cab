"""Erasure: delete rows and every file that ever held them, and certify which files these were.

It consists of ordinary steps: a commit deletes the rows, compactions merge log rows, the files of dead writers are removed, and a clean
expires every older slot. Each may stop halfway and is finished by the next call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from fileio.contract import ObjectMeta
from fileio.errors import Unavailable
from objcat.common.progress import shown_progress
from objcat.datafile.batch_checks import key_values
from objcat.datafile.casting import logical
from objcat.datafile.merge import OP_COLUMN, OP_DELETE, has_order
from objcat.datafile.parquet import as_of_schema, every_piece, txn_of_path
from objcat.dml.computed_write import Work, run
from objcat.engine.local import to_arrow_batch
from objcat.errors import Contention, InvalidInput, NotErased
from objcat.maintenance.clean import clean, plan_clean
from objcat.maintenance.compact import compact
from objcat.maintenance.forget_erased import STEPS as FORGET_STEPS
from objcat.maintenance.forget_erased import commit_empty_slot, forget, own_files
from objcat.metadata.derived import check_not_derived
from objcat.metadata.files import BaseFile, TableDelta, encode_delta
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables
from objcat.mirror.formats import folder_of
from objcat.mirror.model import MirrorHeld, MirrorNotRestarted
from objcat.planning.scan import parse_filter
from objcat.table.context import TableContext
from objcat.table.delete import delete_scanned
from objcat.table.erasure_adopted import adopted_before, check_gone, named_now, not_promised, pieces_of, remedy_of, still_there
from objcat.table.erasure_positions import StateSearch, held_by_positions, sources_with
from objcat.table.erasure_saved import check_saved, saved_with
from objcat.table.erasure_search import (
    Examined,
    Finder,
    Search,
    is_data_file,
    literals_of,
    physical,
    sought_of,
    vocabulary_of,
)
from objcat.table.erasure_traces import Traces, trace
from objcat.table.key_filters import Keyed, keys_text
from objcat.table.maintenance import TableMaintenance
from objcat.table.open_scan import open_scan
from objcat.table.write_batch import write_batch
from objcat.tasks.model import Operation
from objcat.tasks.scan import scan_groups
from objcat.timeline.checkpoint import Root, read_root
from objcat.timeline.checkpoint_expiry import valid_roots
from objcat.timeline.commit_group import delete_requests
from objcat.timeline.dead_writers import RolledBackWriter
from objcat.timeline.entry import Action, Footprint
from objcat.timeline.log_view import LogView
from objcat.timeline.rollback import RolledBackAt
from objcat.write.service_commit import ServiceResult

KEYS_MAX = 1000
"""Keys that one erasure takes by value."""
ATTEMPTS_MAX = 10
"""Attempts at a compaction when others commit first."""
STEPS = 5
"""Steps of an erasure, not counting those of forgetting."""


R = TypeVar("R")
MIRRORED_AGAIN_MAX = 20
"""How often an erasure commits an empty slot because another process was first to mirror the newest one."""


class Reliably(Protocol):
    """Runs work, and again from a newer checkpoint when the handle's one was deleted."""

    def __call__(self, work: Callable[[], R]) -> R:
        """The result of the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasurePlan:
    """What `Table.erase` would do.

    Attributes:
        rows: that pass now.
        slots: readable slots that would expire.
        files: that would be deleted at once; those that the merge replaces come later.
        saved: slots of savepoints that hold such rows; release them first.
    """

    rows: int
    slots: int
    files: tuple[str, ...]
    saved: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureCertificate:
    """What `Table.erase` did and checked.

    Attributes:
        deleted: rows; None where nobody counted them.
        delete_slot: of their delete; None when no row passed any more.
        clean_slot: after which files were deleted; None when there was nothing to delete.
        readable_from: slots from here on are readable.
        files: deleted, and gone from the store when this was made.
        checked_slot: the slot at which the table was read again.
        found: rows that passed then: 0, unless others wrote such rows meanwhile.
        examined: every object below the table's URL by class, searched byte by byte and decoded, with `found` 0; otherwise there is no
            certificate.
        sought: values of the erased rows, in all their versions, that were looked for.
        held_by_others: values that readable rows hold too, and that were not looked for.
        too_short: of the values looked for, how many only in columns and bounds, because among bytes they would be found by chance.
        under_way: objects that were left out, because their writes have no outcome yet.
        not_promised: what a view of this store alone cannot show.
    """

    table: str
    url: str
    where: str
    deleted: int | None
    delete_slot: int | None
    clean_slot: int | None
    readable_from: int
    files: tuple[str, ...]
    checked_slot: int
    found: int
    made_at_ms: int
    examined: tuple[Examined, ...]
    sought: int
    held_by_others: int
    too_short: int
    under_way: int
    not_promised: tuple[str, ...]


def plan_erasure(table: TableContext, keys: str | Any) -> ErasurePlan:
    """See `Table.plan_erasure`."""
    table.spec.check_own_files("erase rows")
    check_not_derived(table.spec, "erase rows")
    where, _ = _meant(table, keys)
    rows = open_scan(table, where=where).count()
    view = table.timeline.open()
    plan = plan_clean(table.timeline, view, table.id, before=view.slot)
    return ErasurePlan(
        rows=rows,
        slots=view.slot - view.log.marks(table.id).bound,
        files=() if plan is None else tuple(sorted({*plan.removes, *plan.leftovers})),
        saved=saved_with(table, where),
    )


def erase(table: TableContext, keys: str | Any, *, older_than_s: float, reliably: Reliably) -> ErasureCertificate:
    """See `Table.erase`. `reliably`: of the handle."""
    table.spec.check_own_files("erase rows")
    check_not_derived(table.spec, "erase rows")
    where, given = _meant(table, keys)
    check_saved(table, where, left="Nothing was erased.")
    with shown_progress(table.fileio.env, "objcat: erase", STEPS + FORGET_STEPS, unit="steps") as advance:
        adopted = reliably(lambda: adopted_before(table))
        traces = reliably(lambda: _traces(table, where, given, adopted))
        advance(1)
        # Rows of a filter that no scan can apply could be deleted, but not certified.
        deleted = delete_scanned(table, where, outright=True)
        # Before any file goes: the next call learns from them which values these are.
        reliably(lambda: _check_positions(table, traces, literals_of(where)))
        reliably(lambda: _end_tombstones(table, traces))
        advance(1)
        reliably(lambda: _merge_all(table))
        _end_empty_partitions(table)
        advance(1)
        dead = [one for one in TableMaintenance(table).rollback_failed_writes(older_than_s=older_than_s) if one.files]
        files, cleaned = reliably(lambda: _clean(table, dead))
        delete_requests(table.fileio)  # They hold bounds. Their writers do without.
        advance(1)
        forgotten = forget(table.timeline, table.id, advance=advance)
        reliably(lambda: _begin_mirrors_again(table))
        # Expired slots cannot be saved any more.
        check_saved(table, where, left="Everything that no savepoint retains is erased.")
        again = open_scan(table, where=where)
        named = reliably(lambda: named_now(table))
        check_gone(table, adopted, named)
        search, under_way = reliably(lambda: _searched(table, traces, literals_of(where), named, older_than_s=older_than_s))
        advance(1)
    if search.found:
        raise NotErased(
            f"{len(search.found)} objects of {table.name} still hold values of the erased rows, {min(search.found)} among "
            f"them. {remedy_of(search.found)}",
            tuple(sorted(search.found)),
        )
    return ErasureCertificate(
        table=table.name,
        url=table.fileio.url,
        where=where,
        deleted=None if deleted is None else deleted.deleted,
        delete_slot=None if deleted is None else deleted.slot,
        clean_slot=cleaned if cleaned is not None else forgotten.clean_slot,
        readable_from=forgotten.bound,
        files=files,
        checked_slot=again.plan.snapshot.slot,
        found=again.count(),
        made_at_ms=table.fileio.env.now_ms(),
        examined=tuple(search.classes[kind] for kind in sorted(search.classes)),
        sought=search.sought.count,
        held_by_others=search.sought.held,
        too_short=search.sought.short,
        under_way=under_way,
        not_promised=not_promised(table),
    )


def _check_positions(table: TableContext, traces: Traces, literals: Collection[str]) -> None:
    """Raises NotErased where the newest state of a source holds values of the deleted rows, which no erasure may take from its reader."""
    spec, positions = table.refresh().spec, table.view.log.sources

    def found(readable: Iterable[pa.Table]) -> list[str]:
        vocabulary = vocabulary_of(spec, name=table.name, url=table.fileio.url)
        sought = sought_of(traces, spec, readable, literals=literals, vocabulary=vocabulary)
        finder, states = Finder(sought.texts, sought.blobs), StateSearch(sought.typed.values())
        return sources_with(table.fileio, positions, lambda data: finder.is_in(data) or states.is_in(json.loads(data)))

    # All readable rows are read only where a state holds something.
    if positions and found(()) and (sources := found(chain(_readable(table, table.view), _deletes_of_others(table, traces)))):
        raise held_by_positions(table.name, sources)


def _searched(
    table: TableContext, traces: Traces, literals: Collection[str], adopted: Collection[ObjectMeta], *, older_than_s: float
) -> tuple[Search, int]:
    """Search every object of the table for values that only erased rows held. Also returns how many objects of transactions under way were
    left out."""
    timeline, fileio = table.timeline, table.fileio
    listed = [meta for page in fileio.list() for meta in page.objects]
    view = timeline.open()
    spec = table.refresh().spec
    files = set(own_files(timeline, table.id, view))
    others, of_index = _manifests(table, view)
    foreign = {meta.key for meta in listed if is_data_file(meta.key) and meta.key not in files} | others
    vocabulary = vocabulary_of(spec, name=table.name, url=fileio.url)
    held = chain(_readable(table, view), _deletes_of_others(table, traces))
    sought = sought_of(traces, spec, held, literals=literals, vocabulary=vocabulary)
    folder = folder_of(timeline, table.id, table.name).folder
    search = Search(fileio, table.id, spec, sought, frozenset(foreign), len(view.state) > 1, frozenset(of_index), folder)
    txns = {txn_of_path(meta.key) for meta in listed if meta.key.startswith("data/")}
    decided = view.outcomes.find_all(fileio, txns)
    examined = [meta for meta in listed if not meta.key.startswith("data/") or txn_of_path(meta.key) in decided]
    for meta in (*examined, *adopted):
        search.examine(meta)
    search.examine_temporaries(older_than_s=older_than_s)
    return search, len(listed) - len(examined)


def _manifests(table: TableContext, view: LogView[Tables]) -> tuple[set[str], set[str]]:
    """Manifests of other tables that share the log, and those of the table's own index."""
    others: set[str] = set()
    of_index: set[str] = set()
    if len(view.state) <= 1 and view.state[table.id].index is None:
        return others, of_index
    for slot in valid_roots(table.fileio, view.slot):
        found = read_root(table.fileio, slot)
        if found is None or not isinstance(found.root, Root):
            continue
        for name, state in table.timeline.reducer.load(found.root.payload).items():
            index = () if state.index is None else state.index.manifest
            if name == table.id:
                of_index |= {ref.path for ref in index}
            else:
                others |= {ref.path for ref in (*state.manifest, *index)}
    return others, of_index


def _readable(table: TableContext, view: LogView[Tables]) -> Iterator[pa.Table]:
    """All readable rows: of the newest slot, and of savepoints."""
    slots: list[int | None] = [None, *sorted(slot for slot in view.log.marks(table.id).saved)]
    for slot in slots:
        planned = open_scan(table, as_of=slot).plan
        snapshot = planned.snapshot
        for rows in scan_groups(table.fileio, planned.task(planned.groups)):
            yield physical(rows, snapshot.spec)


def _traces(table: TableContext, where: str, given: pa.Table | None, adopted: Sequence[BaseFile]) -> Traces:
    """What the store holds of the rows, before anything is deleted."""
    spec = table.refresh().spec
    predicate = parse_filter(where, spec.table_schema)
    assert predicate is not None, "an erasure has a filter"
    own = own_files(table.timeline, table.id, table.timeline.open())
    pieces = [partial(pieces_of, table.fileio, base, spec) for base in adopted]
    return trace(table.fileio, spec, predicate, own, keys=given, adopted=pieces)


def _end_tombstones(table: TableContext, traces: Traces) -> None:
    """End deletes of these keys that compactions retain against late older rows. A delete without an ordering value leaves nothing."""
    spec = table.refresh().spec
    if traces.keys is None:
        return
    keyed, wanted = Keyed(traces.keys), _key_and_partition(spec)
    left = []
    for deletes in _retained_deletes(table):
        known = as_of_schema(deletes, wanted, spec.table_schema).select(wanted)
        left.append(known.filter(keyed.mask(known)))
    found = pa.concat_tables(left) if left else None
    if found is not None and found.num_rows:
        # The ordering column may be of the key, and a delete that ends everything must not have it.
        write_batch(table, logical(found.group_by(wanted).aggregate([]), spec.table_schema), Operation.DELETE)


def _retained_deletes(table: TableContext) -> Iterator[pa.Table]:
    """Deletes that log files of the newest slot retain against late older rows."""
    snapshot = table.refresh()
    spec = snapshot.spec
    if spec.ordering is None:
        return
    for path in sorted({rows.object.path for group in snapshot.file_groups(table.manifests) for rows in group.logs}):
        for rows in every_piece(table.fileio, path, spec):
            yield rows.filter(pc.and_(pc.equal(rows.column(OP_COLUMN), OP_DELETE), has_order(rows, spec.ordering_physical)))


def _key_and_partition(spec: TableSpec) -> list[str]:
    by_key = [column.physical for column in spec.key_columns]
    return list(dict.fromkeys([*by_key, *(() if spec.is_global else (column.physical for column in spec.partition_columns))]))


def _deletes_of_others(table: TableContext, traces: Traces) -> Iterator[pa.Table]:
    """Retained deletes of other keys. Their keys and ordering values are not of the erased rows alone."""
    if traces.keys is None:
        return
    spec = table.refresh().spec
    keyed, wanted = Keyed(traces.keys), _key_and_partition(spec)
    for deletes in _retained_deletes(table):
        known = as_of_schema(deletes, list(dict.fromkeys([*wanted, *spec.ordering_physical])), spec.table_schema)
        yield known.filter(pc.invert(keyed.mask(known)))


def _end_empty_partitions(table: TableContext) -> None:
    """End the file groups of partitions without rows, because partition texts are values of rows.

    A partition that was split gets the bucket count of new ones again, so that nothing has to record it.
    """

    def prepare(snapshot: Snapshot) -> Work | None:
        held: dict[str, bool] = {}
        for group in snapshot.file_groups(table.manifests):
            name = group.group_id.partition
            held[name] = held.get(name, False) or bool(group.logs) or group.base is None or group.base.rows > 0
        empty = sorted(name for name, is_held in held.items() if name and not is_held)
        first = snapshot.spec.index.count
        splits = {name: first for name, count in snapshot.table.bucket_counts.items() if name and count != first and not held.get(name)}
        if not empty and not splits:
            return None
        ended = tuple(sorted(snapshot.live_group_ids(table.manifests, partitions=empty)))
        return lambda _txn: ServiceResult(
            footprint=Footprint(overwrites=tuple(empty), retires=ended, splits=splits),
            changes=encode_delta(TableDelta(retires=ended, splits=splits)),
        )

    run(table, prepare, metadata=None, action=Action.REPLACE)


def _begin_mirrors_again(table: TableContext) -> None:
    """Make the mirrors again. Another process may have mirrored the newest slot upon earlier metadata, so that a later one is needed.

    Raises NotErased for a mirror that cannot begin again: what it has names erased rows.
    """
    for attempt in range(1, MIRRORED_AGAIN_MAX + 1):
        try:
            table.mirrors_start_over()
        except MirrorNotRestarted:
            if attempt == MIRRORED_AGAIN_MAX:
                raise
            commit_empty_slot(table.timeline, table.id, table.view)
        except MirrorHeld as held:
            raise NotErased(
                f"No reader of {table.name} finds the rows, but a mirror of it still has values of them: it cannot begin again. {held} "
                "Then erase again."
            ) from held
        else:
            return


def _clean(table: TableContext, dead: Sequence[RolledBackWriter]) -> tuple[tuple[str, ...], int | None]:
    """Delete the files that only older slots name.

    Returns what is gone, with what dead writers left, and the slot of the clean. Raises Unavailable for files that still exist.
    """
    timeline = table.timeline
    view = timeline.open()
    plan = plan_clean(timeline, view, table.id, before=view.slot)
    # Mirrors are made again after the erasure, so nothing waits for them.
    cleaned = table.after_service(clean(timeline, table.id, before=view.slot, view=view, waits_for_mirrors=False))
    files = () if plan is None else tuple(sorted({*plan.removes, *plan.leftovers}))
    files = (*files, *sorted({path for one in dead for path in one.paths}.difference(files)))
    rolled_back = {one.txn for one in dead if isinstance(one.outcome, RolledBackAt)}
    there = table.fileio.list_keys("data/") if files else ()
    gone = frozenset(files)
    left = {path for path in there if path in gone or txn_of_path(path) in rolled_back} | still_there(table.fileio, files)
    if left:
        said = f"{len(left)} files of {table.name} that were to be deleted still exist, {min(left)} among them. The store retained them"
        raise Unavailable(f"{said}, or a savepoint, a RESTORE or another clean came in between. Erase again.")
    return files, cleaned.slot


def _merge_all(table: TableContext) -> None:
    """Merge all current log rows, because a delete is only above the rows that it ends until then.

    A compaction yields to another one, which may have been planned before the delete, so it is checked whether any are left. Raises
    Contention.
    """
    until = table.refresh().slot
    for _ in range(ATTEMPTS_MAX):
        # A record index holds keys too, so all of it is merged, and a clean deletes its previous files.
        compact(table.timeline, table.id, whole_index=True)
        snapshot = table.refresh()
        parts = (snapshot,) if snapshot.index is None else (snapshot, snapshot.index)
        groups = [group for part in parts for group in part.file_groups(table.manifests, unmerged=True)]
        shared = any(group.base is not None and group.is_shared(group.base.group_id) for group in groups)
        if not shared and not any(group.as_of < part.slot <= until for group in groups for part in group.logs):
            return
    said = f"Others compact {table.name} as fast as it is erased. Erase again; it goes on from here."
    raise Contention(said, winner_slot=table.snapshot.slot)


def _meant(table: TableContext, keys: str | Any) -> tuple[str, pa.Table | None]:
    """SQL text that is true for the rows to erase, by a filter or by keys; and the keys, by physical names.

    Raises InvalidInput, InvalidBatch, NullKey.
    """
    if isinstance(keys, str):
        return keys, None
    spec = table.spec
    if not spec.has_key:
        raise InvalidInput(f"{table.name} has no key. Give a filter of the rows to erase, such as \"visitor = 'ana'\".")
    given = to_arrow_batch(keys, spec.table_schema)
    batch = None if given is None else given if isinstance(given, pa.Table) else pa.Table.from_batches(given.to_batches(), given.schema)
    if batch is None or not 0 < batch.num_rows <= KEYS_MAX:
        found = "a Spark DataFrame" if batch is None else f"{batch.num_rows:,} keys"
        raise InvalidInput(f"erase() got {found}. Give 1 to {KEYS_MAX:,} keys of this process, or a filter.")
    known = key_values(batch, spec)
    return keys_text(spec, known), known

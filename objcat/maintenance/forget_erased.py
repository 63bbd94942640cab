"""Removes from the log and its checkpoints what they say of erased rows and of empty partitions.

The rows themselves are gone before: files that held them are deleted, and live rows are merged. Then, in this order:

1. If there are checkpoints or partitions to forget, empty slots bring the log to the next slot that may have a checkpoint, above everything
   to forget.
2. A checkpoint that depends on no previous one is written there.
3. A CLEAN says that slots below it are not readable any more, and that checkpoints below it may be gone.
4. The older checkpoints become void, and their objects are deleted. So does what the hint carries.
5. Entries below the bound are redacted.

A writer below the bound finds that its commit cannot be judged, or finds file groups as before. A reader below it opens the checkpoint of
step 2. Each step may stop halfway: a second call does all of them again above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from fileio.env import map_io
from objcat.errors import CheckpointCollected, Contention
from objcat.maintenance.clean import CleanPlan, plan_clean
from objcat.metadata.erased_values import Redaction
from objcat.metadata.files import ADOPTED_FEATURE, BaseFile, LogObject, TableDelta, decode_delta, encode_delta
from objcat.metadata.key_index_table import is_of_index
from objcat.metadata.manifest import Manifests
from objcat.metadata.manifest_levels import save_table_afresh
from objcat.metadata.snapshot import Snapshot, snapshot_of
from objcat.metadata.table_state import Tables
from objcat.timeline import checkpoint
from objcat.timeline.archive import read_back
from objcat.timeline.checkpoint_expiry import fence, sweep_objects, valid_roots
from objcat.timeline.entry import Action, Entry, Footprint, Summary, Txn
from objcat.timeline.hints import forget_carried
from objcat.timeline.intents import remove_files
from objcat.timeline.log import WINDOW_SLOTS_MAX, with_changes
from objcat.timeline.log_state import LogState
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.redaction import Erasing, Redacted, leave, pending, redact, settle
from objcat.write.index_plugin import forget_files
from objcat.write.service_commit import Service, ServiceResult, run_service

ATTEMPTS_MAX = 5
"""Checkpoints to write before giving up, when others keep invalidating them."""
CHUNK_SLOTS = 1024
"""Entries held in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What was forgotten.

    Attributes:
        bound: slots below it say nothing any more of what had to go.
        clean_slot: the CLEAN that said so.
        checkpoint: slot of the new checkpoint; None where none was needed.
        voided: slots of the checkpoints that are gone.
    """

    bound: int
    clean_slot: int
    checkpoint: int | None
    voided: tuple[int, ...]
    redacted: Redacted


@dataclass(slots=True)
class _Known:
    """What entries say of a table. `files`: those with bounds, by path. `partitions`: all that are named."""

    files: dict[str, BaseFile | LogObject] = field(default_factory=dict)
    partitions: set[str] = field(default_factory=set)


def forget(
    timeline: Timeline[Tables], table: str, view: LogView[Tables] | None = None, *, advance: Callable[[int], None] = lambda _steps: None
) -> Forgotten:
    """Forget what no readable slot of a table holds any more. What savepoints hold is not forgotten.

    Slots below the newest one expire. What other tables have in the log stays, with their older slots. Safe next to writers, readers,
    services and other calls.

    Args:
        view: where to begin; a new one when None.
        advance: called after each step.

    Raises:
        Contention, CommitConflict, CommitUnknown, storage errors: call it again to go on.
    """
    view = timeline.open() if view is None else timeline.refresh(view)
    for plan in pending(timeline.fileio, table):
        _carry_out(timeline, view, plan)
    for _ in range(ATTEMPTS_MAX):
        try:
            done = _forget(timeline, table, timeline.refresh(view), advance)
        except CheckpointCollected:
            done = None  # Another erasure, or an expiry, has deleted the checkpoint that the view depends on.
        if done is not None:
            return done
        view = timeline.open()
    said = (
        f"Other writers write checkpoints of {timeline.fileio.url} as fast as they are replaced. The rows are erased, but "
        "the log may still name their values. Run erase again; it goes on from here."
    )
    raise Contention(said, winner_slot=view.slot)


def _forget(timeline: Timeline[Tables], table: str, view: LogView[Tables], advance: Callable[[int], None]) -> Forgotten | None:
    """One attempt at `forget`; None when others came in between."""
    known = _read(timeline, view, table)
    forgets = not known.partitions <= _live_partitions(timeline, view, table, view.slot) | {""}
    rooted = bool(valid_roots(timeline.fileio, view.slot)) or forgets
    view = _push(timeline, table, view, rooted=rooted)
    bound = checkpoint.floor_slot(view.slot) if rooted else view.slot
    advance(1)
    if rooted and not _save(timeline, table, bound, known):
        return None
    advance(1)
    at_bound = timeline.at(bound) if rooted or view.slot != bound else view
    log = _claim(timeline, view, table, bound, rooted=rooted)
    if log is None:
        return None
    advance(1)
    voided = fence(timeline.fileio, log, partial(_from, bound))
    if any(slot > bound for slot in valid_roots(timeline.fileio, log.slot - 1)):
        return None  # Written without knowing of this, it depends on previous ones. From here on nobody can put another.
    view = timeline.refresh(view)
    if not _is_settled(view.log, log, bound):
        return None
    sweep_objects(timeline, log)
    forget_carried(timeline.fileio, slot=log.slot, checkpoint=bound if rooted else -1)
    advance(1)
    at_bound = replace(at_bound, log=view.log)
    live = _live_partitions(timeline, at_bound, table, bound)
    erasing = Erasing(id=timeline.fileio.env.new_id(), table=table, end=bound, live=tuple(sorted(live)))
    if forgets:
        leave(timeline.fileio, erasing)
    redacted = _carry_out(timeline, at_bound, erasing)
    advance(1)
    return Forgotten(bound=bound, clean_slot=log.slot, checkpoint=bound if rooted else None, voided=voided, redacted=redacted)


STEPS = 5
"""Steps of `forget` that `advance` reports."""


def _entries(timeline: Timeline[Tables], view: LogView[Tables]) -> Iterator[Entry]:
    """All entries of a log up to a view, with their changes."""
    for slot in range(-1, view.slot, CHUNK_SLOTS):
        until = min(view.slot, slot + CHUNK_SLOTS)
        yield from with_changes(timeline.fileio, timeline.log.read_after(slot, until=until, window=WINDOW_SLOTS_MAX))


def own_files(timeline: Timeline[Tables], table: str, view: LogView[Tables]) -> list[str]:
    """The data files of a table that exist, with those of its index and those that nobody committed.

    Lists `data/`, and reads the log where other tables share it.
    """
    there = [key for key in timeline.fileio.list_keys("data/") if key.endswith(".parquet")]
    if len(view.state) <= 1:
        return there
    entries = _entries(timeline, view)
    others = {path for entry in entries for own, raw in entry.changes.items() if own != table for path in decode_delta(raw).named_paths}
    return [key for key in there if key not in others]


def adopted_files(timeline: Timeline[Tables], table: str, view: LogView[Tables]) -> list[BaseFile]:
    """The files of other tools that an entry of a table names, and that exist. Reads the log of a table that was adopted."""
    if not ADOPTED_FEATURE.keys() & view.log.features.keys():
        return []
    deltas = (decode_delta(raw) for entry in _entries(timeline, view) if (raw := entry.changes.get(table)) is not None)
    named = {base.path: base for delta in deltas for base in delta.bases if base.adopted is not None}
    there = map_io(timeline.fileio.env, timeline.fileio.exists, list(named))
    return [base for base, exists in zip(named.values(), there, strict=True) if exists]


def _read(timeline: Timeline[Tables], view: LogView[Tables], table: str) -> _Known:
    known = _Known()
    for entry in _entries(timeline, view):
        footprint, raw = entry.footprint.get(table), entry.changes.get(table)
        if footprint is not None:
            group_ids = (*footprint.creates, *footprint.appends, *footprint.replaces, *footprint.retires)
            known.partitions |= {group_id.partition for group_id in group_ids if not is_of_index(group_id)}
        if raw is not None:
            delta = decode_delta(raw)
            known.partitions |= {group_id.partition for group_id in delta.retires}
            known.files |= {file.path: file for file in delta.files if file.bounds}
    return known


def _states(timeline: Timeline[Tables], view: LogView[Tables], table: str, bound: int) -> Iterator[Snapshot]:
    """The table at a slot and at the saved slots below it. `view`: the state at that slot."""
    if table in view.state:
        yield Snapshot(view.log, view.state[table])
    for slot in sorted(saved for saved in view.log.marks(table).saved if saved < bound):
        then = timeline.at(slot)
        if table in then.state:
            yield Snapshot(then.log, then.state[table])


def _live_partitions(timeline: Timeline[Tables], view: LogView[Tables], table: str, bound: int) -> frozenset[str]:
    manifests = Manifests(timeline.fileio)
    found = [snapshot.live_partitions(manifests) for snapshot in _states(timeline, view, table, bound)]
    return frozenset(name for some in found for name in some)


def _carry_out(timeline: Timeline[Tables], view: LogView[Tables], plan: Erasing) -> Redacted:
    """Redact the entries below the end of a plan. Bounds of files that the table has at that slot, or at a saved one, stay.

    `view`: the state at the slot where the plan ends, or a later one; a later one knows fewer files.
    """
    manifests = Manifests(timeline.fileio)
    files: set[str] = set()
    try:
        for snapshot in _states(timeline, view, plan.table, plan.end):
            files |= snapshot.paths(manifests)
    except CheckpointCollected:
        pass  # Another call began to forget partitions and stopped: saved slots are readable again once this is done.
    # An adopted file is found by its path in the log alone. So the path stays until the file is gone.
    files |= {base.path for base in adopted_files(timeline, plan.table, view)}
    redaction = Redaction(
        table=plan.table,
        id=plan.id,
        kept_files=frozenset(files),
        live=frozenset(plan.live),
        positions={source: progress.version for source, progress in view.log.sources.items()},
    )
    redacted = redact(timeline.fileio, plan.table, redaction.of, end=plan.end)
    settle(timeline.fileio, plan)
    return redacted


def _push(timeline: Timeline[Tables], table: str, view: LogView[Tables], *, rooted: bool) -> LogView[Tables]:
    """Bring the log above a view with empty slots: to the next one that may have a checkpoint, or by one."""
    target = (view.slot // checkpoint.SPACING_SLOTS + 1) * checkpoint.SPACING_SLOTS if rooted else view.slot + 1
    while view.slot < target:
        run = partial(_says_nothing, view.log.marks(table).bound)
        run_service(timeline, Service(action=Action.CLEAN, table=table, plan=lambda now: now.slot < target or None, run=run), view)
        view = timeline.refresh(view)
    return view


def commit_empty_slot(timeline: Timeline[Tables], table: str, view: LogView[Tables]) -> None:
    """Commit a slot that changes nothing, unless the log is above the view. Raises CommitConflict, CommitUnknown, storage errors."""
    _push(timeline, table, view, rooted=False)


def _says_nothing(bound: int, _plan: object, _txn: Txn) -> ServiceResult:
    return ServiceResult(footprint=Footprint(bound=bound))


def _save(timeline: Timeline[Tables], table: str, slot: int, known: _Known) -> bool:
    """Write a checkpoint that takes nothing of this table from previous ones; False when somebody else's is there."""
    fileio = timeline.fileio

    def renew(state: Tables, folder: str) -> Tables:
        own = save_table_afresh(fileio, state[table], folder, known.files)
        index = None if own.index is None else save_table_afresh(fileio, own.index, folder, known.files)
        return {**state, table: replace(own, index=index)}

    root = timeline.publish_afresh(slot, renew)
    if root is None:
        return False
    read_back(timeline, root)
    return True


def _from(bound: int, roots: list[int]) -> set[int]:
    return {slot for slot in roots if slot >= bound}


def _claim(timeline: Timeline[Tables], view: LogView[Tables], table: str, bound: int, *, rooted: bool) -> LogState | None:
    """Commit the CLEAN that makes everything below the bound unreadable, checkpoints too. Returns the log as of its slot."""

    def run(plan: CleanPlan) -> ServiceResult:
        for result in timeline.fileio.delete(plan.leftovers) if plan.leftovers else ():
            if result.error is not None:
                raise result.error
        changes = encode_delta(TableDelta(removes=plan.removes)) if plan.removes else None
        footprint = Footprint(bound=plan.bound, root_bound=bound)
        return ServiceResult(footprint=footprint, changes=changes, summary=Summary(files=len(plan.removes)))

    def plan(view: LogView[Tables]) -> CleanPlan:
        snapshot_of(view, table, where=timeline.fileio.url)
        return plan_clean(timeline, view, table, before=bound) or CleanPlan(max(bound, view.log.marks(table).bound), (), ())

    service = Service(action=Action.CLEAN, table=table, plan=plan, run=lambda plan, _txn: run(plan))
    done = run_service(timeline, service, view)
    assert done is not None, "a CLEAN of an erasure is never empty"
    remove_files(timeline.fileio, done.plan.removes, why=f"the CLEAN at slot {done.entry.slot}")
    forget_files(view.state[table].spec, sorted({*done.plan.removes, *done.plan.leftovers}))
    return done.log if not rooted or bound in valid_roots(timeline.fileio, bound) else None


def _is_settled(now: LogState, claimed: LogState, bound: int) -> bool:
    """Whether no RESTORE above the bound restored a state that may depend on void checkpoints."""
    return not any(slot > bound for slot, _ in now.restores) and now.root_bound == claimed.root_bound

"""Expiry of checkpoints: old roots become void, and objects that no root names any more are deleted.

It first claims a CLEAN at slot n, which says the root bound c. A publisher of a root at n or above has read n, so it depends on roots from
c on only. A publisher below n that has not read n is fenced: every slot below n that may have a root gets one, a void root where there is
none. Only then are objects deleted, namely those below n that no root below n names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fileio.contract import Create, OutcomeUnknown, PreconditionFailed, Update, Written
from fileio.env import map_io
from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.common.validation import whole_number
from objcat.errors import CommitUnknown, CorruptTable, ObjcatError
from objcat.timeline import checkpoint
from objcat.timeline.attempt import CommitAttempt, Committed, Conflicted
from objcat.timeline.checkpoint import BrokenRoot, FoundRoot, Root, VoidRoot, floor_slot, read_root, root_key, void_root
from objcat.timeline.commit import Committer
from objcat.timeline.entry import Action, Footprint, new_txn
from objcat.timeline.error_location import says_where
from objcat.timeline.json_objects import RESTORE
from objcat.timeline.log_state import LogState
from objcat.timeline.log_view import LogView, Timeline

ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class CollectedCheckpoints:
    """The result of `table.maintenance.collect_checkpoints`.

    Args:
        slot: The slot of its CLEAN; None when there was nothing to do.
        bound: Checkpoints from this slot on are retained.
        voided: Slots whose roots are gone now.
        objects: How many objects were deleted.
    """

    slot: int | None
    bound: int
    voided: tuple[int, ...] = ()
    objects: int = 0


@says_where
def collect_checkpoints(timeline: Timeline[Any], committer: Committer, *, keep: int) -> CollectedCheckpoints:
    """Retain the newest `keep` checkpoints and those that savepoints need. Delete the others, and what dead publishers left.

    A view of a deleted checkpoint raises CheckpointCollected when it needs an object of it; then it is opened again. Every slot stays
    readable, the older ones from the log itself. Safe while writers, readers, publishers and other expiries run. If it is interrupted, the
    next one that has something to delete finishes it. Lists `checkpoints/`.

    Raises InvalidInput, CommitConflict, CommitUnknown, and storage errors.
    """
    whole_number(keep, what="keep", least=1)
    attempt = 0
    while True:
        attempt += 1
        view = timeline.open()
        roots = valid_roots(timeline.fileio, view.slot)
        bound = max(roots[-keep:][0] if roots else 0, view.log.root_bound)
        kept = _kept(replace(view.log, root_bound=bound), roots)
        if kept.issuperset(roots):
            return CollectedCheckpoints(None, view.log.root_bound)
        outcome = _claim(timeline.fileio, committer, view, bound)
        if isinstance(outcome, Committed):
            log = view.log.advance([*outcome.read, outcome.entry])
            voided = fence(timeline.fileio, log, partial(_kept, log))
            objects = sweep_objects(timeline, log)
            # The hint may carry a root that is void now.
            timeline.publish_hint(timeline.advance(view, [*outcome.read, outcome.entry]))
            return CollectedCheckpoints(log.slot, log.root_bound, voided, objects)
        if attempt == ATTEMPTS_MAX:
            raise outcome.error(attempts=attempt)


@says_where
def plan_collection(timeline: Timeline[Any], *, keep: int) -> CollectedCheckpoints:
    """A dry run of `collect_checkpoints`: its result, with no slot. Sends reads and listings only.

    `objects` is a lower bound. Objects of dead publishers are not counted: they are known only when nobody can publish below the bound.
    Raises as `collect_checkpoints`.
    """
    whole_number(keep, what="keep", least=1)
    fileio = timeline.fileio
    view = timeline.open()
    survey = {slot: found.root for slot, found in _survey(fileio, view.slot) if found is not None and isinstance(found.root, Root)}
    bound = max(list(survey)[-keep:][0] if survey else 0, view.log.root_bound)
    kept = _kept(replace(view.log, root_bound=bound), list(survey))
    named = {slot: {*timeline.reducer.objects(root.payload), *(one.path for one in root.segments)} for slot, root in survey.items()}
    # A slot that is saved may be older than every checkpoint.
    needed = {path for slot in kept for path in named.get(slot, ())}
    gone = {path for slot in survey.keys() - kept for path in named[slot]} - needed
    return CollectedCheckpoints(None, bound, tuple(sorted(survey.keys() - kept)), len(gone))


def valid_roots(fileio: FileIO, slot: int) -> list[int]:
    """The slots up to `slot` that have a checkpoint, ascending."""
    return [at for at, found in _survey(fileio, slot) if _is_valid(found)]


def _is_valid(found: FoundRoot | None) -> bool:
    return found is not None and isinstance(found.root, Root)


def _survey(fileio: FileIO, slot: int) -> list[tuple[int, FoundRoot | None]]:
    """The slots up to `slot` that may have a root, ascending, with what is there. Slots that void roots skip are left out: all are void."""
    found: list[tuple[int, FoundRoot | None]] = []
    below = floor_slot(slot)
    window = 2
    while below >= checkpoint.SPACING_SLOTS:
        slots = range(below, max(0, below - window * checkpoint.SPACING_SLOTS), -checkpoint.SPACING_SLOTS)
        for probed, root in zip(slots, map_io(fileio.env, lambda at: read_root(fileio, at), slots), strict=True):
            found.append((probed, root))
            below = probed - checkpoint.SPACING_SLOTS
            if root is not None and isinstance(root.root, VoidRoot):
                below = floor_slot(root.root.older)
                break
        window = min(checkpoint.PROBE_WINDOW_MAX, window * 2)
    return found[::-1]


def _claim(fileio: FileIO, committer: Committer, view: LogView[Any], bound: int) -> Committed | Conflicted:
    """The CLEAN which says that checkpoints below `bound` are going."""
    own = new_txn(fileio.env)
    skew_ms = committer.announce(own, Action.CLEAN, view.log, engine="collect").result()
    candidate = CommitAttempt(
        txn=own,
        action=Action.CLEAN,
        base=view.log,
        changes={},
        footprint={table: Footprint(root_bound=bound) for table in view.log.tables or ("",)},
    )
    try:
        outcome = committer.try_commit(candidate, skew_ms=skew_ms)
    except CommitUnknown:
        raise  # It may still be committed. Until then its intent shows that it is under way.
    except (ObjcatError, FileIOError):
        committer.delete_intent(own)
        raise
    committer.delete_intent(own)
    return outcome


def fence(fileio: FileIO, log: LogState, keeps: Callable[[list[int]], set[int]]) -> tuple[int, ...]:
    """Give every slot below the CLEAN at `log.slot` a root, and make void those that are not retained. Returns the slots of these.

    It goes upwards twice. So a void root proves that all slots below it are done, and its pointer leads to the roots that remain.

    Args:
        keeps: From slots with a root, selects those that keep it.
    """
    older = -1
    for slot, found in _survey(fileio, log.slot - 1):
        if _is_valid(
            found if found is not None and not isinstance(found.root, BrokenRoot) else _put_void(fileio, slot, found, older=older)
        ):
            older = slot
    valid = {slot: found for slot, found in _survey(fileio, log.slot - 1) if found is not None and isinstance(found.root, Root)}
    kept = keeps(list(valid))
    older = -1
    voided = []
    for slot, found in valid.items():
        if slot in kept:
            older = slot
            continue
        if _make_void(fileio, slot, found, older=older):
            voided.append(slot)
    return tuple(voided)


def _put_void(fileio: FileIO, slot: int, found: FoundRoot | None, *, older: int) -> FoundRoot | None:
    """Put a void root where there is none, or an unreadable one. Returns the root of a publisher or expiry that was faster."""
    for _ in range(ATTEMPTS_MAX):
        match checkpoint.put_root(fileio, void_root(slot, older=older), Create() if found is None else Update(found.version)):
            case Written():
                return None
            case PreconditionFailed():
                found = read_root(fileio, slot)
            case OutcomeUnknown(cause):
                raise cause
        if found is not None and not isinstance(found.root, BrokenRoot):
            return found
    raise CorruptTable(
        f"Something else than a publisher changes {root_key(slot)} again and again. Nothing was deleted. Find out what it is."
    )


def _make_void(fileio: FileIO, slot: int, found: FoundRoot, *, older: int) -> bool:
    """Make a root void, so that nobody uses it. Returns whether this call did it; another expiry may do it as well.

    A publisher may replace a root whose objects are damaged meanwhile. Raises CorruptTable.
    """
    now: FoundRoot | None = found
    for _ in range(ATTEMPTS_MAX):
        if now is None:
            break
        if isinstance(now.root, VoidRoot):
            return False
        match checkpoint.put_root(fileio, void_root(slot, older=older), Update(now.version)):
            case Written():
                return True
            case OutcomeUnknown(cause):
                raise cause
            case PreconditionFailed():
                now = read_root(fileio, slot)
    raise CorruptTable(f"{root_key(slot)} was changed by something else than an expiry of checkpoints. {RESTORE}")


def _kept(log: LogState, roots: list[int]) -> set[int]:
    """The roots that stay: from the bound on, the newest one up to each pinned slot, and those that a restored state depends on."""
    restored_max = max((slot for _, slot in log.restores), default=-1)
    kept = {slot for slot in roots if slot >= log.root_bound or slot <= restored_max}
    for pin in log.pins:
        kept |= {max((slot for slot in roots if slot <= pin), default=-1)}
    return kept


def sweep_objects(timeline: Timeline[Any], log: LogState) -> int:
    """Delete the objects of checkpoints below `log.slot` that no root names. Returns how many.

    Roots from the CLEAN on need no check: what they share with older ones, the roots from the bound on name too. That holds while these are
    not expired themselves. So if a later expiry has begun, it does the deleting.
    """
    fileio = timeline.fileio
    named: set[str] = set()
    for _, found in _survey(fileio, log.slot - 1):
        if found is not None and isinstance(found.root, Root):
            named |= {*timeline.reducer.objects(found.root.payload), *(segment.path for segment in found.root.segments)}
    later = timeline.log.read_after(log.slot)
    if any(footprint.root_bound is not None for entry in later for footprint in entry.footprint.values()):
        return 0
    end = checkpoint.folder_of(log.slot)
    garbage = [key for key in fileio.list_keys("checkpoints/") if key < end and key not in named and not key.endswith("/root.json")]
    return sum(result.error is None for result in fileio.delete(garbage))

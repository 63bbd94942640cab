"""Rollback of dead writers: settle transactions that look dead, then delete files that nothing needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fileio.store import FileIO
from objcat.common.validation import seconds
from objcat.errors import CorruptTable, InvalidInput
from objcat.timeline.commit import Committer
from objcat.timeline.commit_group import delete_requests
from objcat.timeline.entry import Action, Entry, Txn, intent_key, log_key, new_txn, parse_txn, requested_key, txn_time
from objcat.timeline.error_location import says_where
from objcat.timeline.intents import REQUESTED_SUFFIX, remove_files
from objcat.timeline.json_objects import RESTORE
from objcat.timeline.log import with_changes
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.reopening import reopening
from objcat.timeline.rollback import CommittedAt, Resolution, RolledBackAt, resolve
from objcat.timeline.side_objects import sides_of


@dataclass(frozen=True, slots=True)
class RolledBackWriter:
    """What became of one transaction.

    A failed delete is logged, and the next rollback of dead writers repeats it.

    Args:
        outcome: `CommittedAt` or `RolledBackAt`.
        files: How many of its objects were to be deleted, intents not counted.
        paths: The objects that were listed.
    """

    txn: Txn
    outcome: Resolution
    files: int
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OrphanedTransaction:
    """What `rollback_dead_writers` would do about one transaction.

    Args:
        slot: The slot that decided it. None: it would be rolled back.
        committed: Whether that slot commits it.
        files: These would be deleted.
    """

    txn: Txn
    slot: int | None
    committed: bool
    files: tuple[str, ...]


@dataclass(slots=True)
class _WriterTraces:
    """What a transaction left in the store. touched_ms: when it last wrote, by the store's clock."""

    touched_ms: int = 0
    files: list[str] = field(default_factory=list)
    has_intent: bool = False


@says_where
def rollback_dead_writers(
    timeline: Timeline[Any], view: LogView[Any], *, older_than_s: float, names_of: Callable[[Entry], Iterable[str]]
) -> list[RolledBackWriter]:
    """Settle every transaction that stopped writing, and delete what it left.

    That is one that left an intent or files, and has not written for `older_than_s`.

    A transaction without a slot is rolled back. If its writer still lives, it gets WriterFenced, so every age is safe; 0 takes all. All
    files of a rolled back transaction go. Of a committed one, only files that its entry does not name go (left by failed tasks or by
    repeated work). Plans that wait for an executor stay until they are settled.

    Costs a LIST for every 1,000 intents and data files, and one GET for every committed transaction that has files. Run it in quiet hours.
    Safe at any time.

    Args:
        view: Of this log, at any slot.
        older_than_s: Seconds since its last write.
        names_of: All files that the changes of an entry name.

    Returns:
        What was settled or deleted, by txn.

    Raises:
        InvalidInput: The age is no time span.
        CommitUnknown, FileIOError: Call it again.
    """
    seconds(older_than_s, what="older_than_s")
    fileio = timeline.fileio
    committer = Committer(fileio)
    own = new_txn(fileio.env)
    # Ages are by the store's clock; the put of the own intent tells the time there.
    intent = committer.announce(own, Action.ROLLBACK, view.log, engine="sweep")
    try:
        cutoff_ms = fileio.env.now_ms() + intent.result() - int(older_than_s * 1000)
        if older_than_s == 0:
            # Most stores tell whole seconds, so a fresh object may look younger than the clock allows.
            cutoff_ms = sys.maxsize
        traces, plans = _find(fileio)
        view = timeline.refresh(view)
        old = {txn: found for txn, found in traces.items() if txn != own and found.touched_ms <= cutoff_ms}

        def reopen() -> None:
            nonlocal view
            view = timeline.open()

        swept = [
            reopening(timeline, partial(lambda txn: _settle(timeline, view, txn, old[txn], names_of), txn), reopen) for txn in sorted(old)
        ]
        reopening(timeline, lambda: _remove_settled_plans(timeline, view, plans), reopen)
        delete_requests(fileio, until=view.slot)
        return [one for one in swept if one is not None]
    finally:
        committer.delete_intent(own).result()


@says_where
def find_leftovers(
    timeline: Timeline[Any], view: LogView[Any], *, older_than_s: float, names_of: Callable[[Entry], Iterable[str]]
) -> list[OrphanedTransaction]:
    """A dry run of `rollback_dead_writers`, by txn. Sends reads and listings only.

    Only a write tells the store's time, so ages are by the local clock. Raises as `rollback_dead_writers`.
    """
    seconds(older_than_s, what="older_than_s")
    fileio = timeline.fileio
    cutoff_ms = sys.maxsize if older_than_s == 0 else fileio.env.now_ms() - int(older_than_s * 1000)
    traces, _ = _find(fileio)
    view = timeline.refresh(view)

    def reopen() -> None:
        nonlocal view
        view = timeline.open()

    left = []
    for txn in sorted(txn for txn, found in traces.items() if found.touched_ms <= cutoff_ms):
        found, outcome = traces[txn], reopening(timeline, partial(lambda txn: view.outcomes.find(fileio, txn), txn), reopen)
        if outcome is None or not outcome.committed:
            left.append(OrphanedTransaction(txn, None if outcome is None else outcome.slot, False, tuple(found.files)))
            continue
        _, garbage = _unnamed(timeline, outcome.slot, txn, found, names_of)
        if garbage or found.has_intent:
            left.append(OrphanedTransaction(txn, outcome.slot, True, tuple(garbage)))
    return left


def has_dead(timeline: Timeline[Any], view: LogView[Any], *, older_than_s: float, begun_within_s: float) -> bool:
    """Whether a writer looks dead.

    That is a transaction that has not written for `older_than_s`, and left an intent, or files that no slot up to `view` commits.

    Ages are by the local clock. Costs a LIST for every 1,000 intents, and for every 1,000 files written in the time looked at; and a GET
    for some of their outcomes.

    Args:
        begun_within_s: Of transactions without an intent, only look at ids drawn in the last so many seconds.
    """
    fileio = timeline.fileio
    now_ms = fileio.env.now_ms()
    traces, _ = _find(fileio, begun_after_ms=now_ms - int(begun_within_s * 1000))
    silent = {txn: found for txn, found in traces.items() if found.touched_ms <= now_ms - int(older_than_s * 1000)}
    if any(found.has_intent for found in silent.values()):
        return True
    committed = [txn for txn, outcome in view.outcomes.find_all(fileio, silent.keys()).items() if outcome.committed]
    return len(committed) < len(silent)


def _find(fileio: FileIO, *, begun_after_ms: int | None = None) -> tuple[Mapping[Txn, _WriterTraces], Sequence[Txn]]:
    """What every transaction left, and the plans. begun_after_ms: files of transactions that began before are left out.

    Files are listed flat, not by prefix. A page of keys costs as much as a page of prefixes, and holds ages and names.
    """
    traces: dict[Txn, _WriterTraces] = {}
    plans: list[Txn] = []
    for folder in ("intents/", "data/"):
        begin = None if begun_after_ms is None or folder == "intents/" else folder + txn_time(begun_after_ms)
        for page in fileio.list(folder, start_after=begin):
            for meta in page.objects:
                name = meta.key.split("/")[1]
                try:
                    txn = parse_txn(name.partition(".")[0] if folder == "intents/" else name)
                except InvalidInput:
                    continue
                if name.endswith(REQUESTED_SUFFIX):
                    plans.append(txn)
                    continue
                found = traces.setdefault(txn, _WriterTraces())
                found.touched_ms = max(found.touched_ms, meta.modified_ms)
                if folder == "data/":
                    found.files.append(meta.key)
                else:
                    found.has_intent = True
    return traces, plans


def _settle(
    timeline: Timeline[Any], view: LogView[Any], txn: Txn, found: _WriterTraces, names_of: Callable[[Entry], Iterable[str]]
) -> RolledBackWriter | None:
    """Settle one transaction. None when there is nothing to settle or delete.

    Raises CorruptTable when the files of an entry are unknown.
    """
    fileio = timeline.fileio
    outcome = view.outcomes.find(fileio, txn)
    if outcome is None or not outcome.committed:
        resolution = resolve(fileio, txn, view=view)
        if isinstance(resolution, RolledBackAt):
            return RolledBackWriter(txn, resolution, resolution.files, tuple(found.files))
        slot = resolution.slot
    else:
        slot = outcome.slot
    entry, garbage = _unnamed(timeline, slot, txn, found, names_of)
    intents = [intent_key(txn)] if found.has_intent else []
    if intents and entry.plan is not None:
        # Its writer died before it removed the plan that it had executed.
        intents.append(requested_key(entry.plan))
    if garbage or intents:
        remove_files(fileio, [*garbage, *intents], why=txn)
    return RolledBackWriter(txn, CommittedAt(slot), len(garbage), tuple(garbage)) if garbage or intents else None


def _unnamed(
    timeline: Timeline[Any], slot: int, txn: Txn, found: _WriterTraces, names_of: Callable[[Entry], Iterable[str]]
) -> tuple[Entry, list[str]]:
    """The entry of a committed transaction, and the files that it left and does not name. Raises CorruptTable."""
    fileio = timeline.fileio
    entry = timeline.log.read_known(slot)
    if txn not in entry.txns:
        raise CorruptTable(f"{log_key(slot)} in {fileio.url} does not hold the commit of {txn}. {RESTORE}")
    (entry,) = with_changes(fileio, [entry])
    named = {*names_of(entry), *(side.path for side in sides_of(entry))}
    return entry, [path for path in found.files if path not in named]


def _remove_settled_plans(timeline: Timeline[Any], view: LogView[Any], plans: Sequence[Txn]) -> None:
    """Remove plans that were rolled back. An executor removes its own plan; `_settle` removes that of a dead executor."""
    fileio = timeline.fileio
    fenced = [plan for plan in plans if view.outcomes.find(fileio, plan) is not None]
    if fenced:
        remove_files(fileio, [requested_key(plan) for plan in fenced], why="plans that were rolled back")

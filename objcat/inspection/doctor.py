"""Examines a log and its files, read-only: do the invariants hold, and what is left over?

`examine` checks one log: entries, conflicts, checkpoints, and every file that a readable snapshot needs. With `deep` it reads every byte.
`examine_names` checks the names of a lake, `examine_lake` the names and all logs.
Each finding says what is wrong and what to do about it. The invariants have the numbers of `docs/contributing/verification.md`.
Nothing here writes or deletes, so an examination is safe while others write. `objcat doctor` calls it. Begin with `examine`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec

from fileio.contract import ObjectMeta
from fileio.store import FileIO
from objcat.catalog.catalog import Catalog
from objcat.catalog.names import CatalogNames
from objcat.catalog.plugin_catalog import PluginCatalog
from objcat.errors import CheckpointCollected, CheckpointUnreadable, CorruptTable, ObjcatError, UnsupportedFormat
from objcat.inspection.file_checks import F, check_digests, check_files, check_located, check_row_places, head_of_file, named_files
from objcat.inspection.findings import CACHE, Coverage, DoctorReport, Examination
from objcat.inspection.mirror_checks import check_mirrors
from objcat.inspection.position_checks import check_checkpoint_positions, check_position_versions, check_positions
from objcat.metadata.files import FileGroup, decode_delta
from objcat.metadata.manifest import Manifests
from objcat.metadata.shared_commits import commits_of
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_log import log_of_lake
from objcat.metadata.table_state import Tables
from objcat.timeline.archive import unnamed_history
from objcat.timeline.checkpoint import BrokenRoot, Root, VoidRoot, read_root, root_key
from objcat.timeline.conflicts import find_conflicts
from objcat.timeline.entry import Entry, Txn, intent_key, is_txn, log_key
from objcat.timeline.log import with_changes
from objcat.timeline.log_state import LogState
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.shared_slots import parse_request_key
from objcat.timeline.side_objects import get_digests, sides_of
from objcat.timeline.txn_outcomes import outcomes_of


def examine(
    timeline: Timeline[Tables], *, deep: bool = False, tables: Iterable[str] = (), on_step: Callable[[str], None] | None = None
) -> DoctorReport:
    """Examine a log and the files that it names. Sends only reads and lists, and is safe while others write.

    Args:
        deep: also read every byte: files are as committed, keys in the right bucket, each once, as many as the log says.
        tables: the names of the tables of the log, for the report.
        on_step: called with the name of each step.

    Returns:
        The findings, with counts and coverage.

    Raises:
        UnsupportedFormat: a newer client wrote the log.
        FileIOError: the store failed.
    """
    fileio = timeline.fileio
    report = DoctorReport(fileio.url, tuple(tables))
    tell = on_step or (lambda _: None)
    own = Examination(timeline, report, *_check_log(timeline, report, tell, lambda raw: decode_delta(raw).named_paths), Manifests(fileio))
    tell("the state of the tables")
    # Without a readable log there is nothing to compare with.
    view = _replay(own) if own.entries or report.healthy else None
    if view is not None and own.entries:
        tell("the checkpoints")
        _check_checkpoints(own, deep=deep)
        tell("the files of every readable snapshot")
        files = check_files(own, view)
        report.cover(Coverage.CHECKED, "P7")
        report.cover(Coverage.IN_PART, "P9")
        check_positions(own, view)
        tell("the mirrors")
        check_mirrors(own, view, deep=deep)
        if deep:
            check_digests(own, files, tell)
            for snapshot in _snapshots(view):
                tell(f"the rows of table {snapshot.spec.table}")
                check_row_places(own, snapshot)
                if snapshot.spec.is_located:
                    check_located(own, snapshot)
            report.cover(Coverage.CHECKED, "P9")
    return report


def examine_names(lake: FileIO, *, on_step: Callable[[str], None] | None = None) -> DoctorReport:
    """Examine the names of a lake: their log, and whether names and open tables match.

    Sends only reads and lists. lake: the store of the lake. Raises as `examine`.
    """
    catalog = Catalog(lake)
    report = DoctorReport(catalog.fileio.url)
    tell = on_step or (lambda _: None)
    _check_log(catalog.timeline, report, tell, lambda _: ())
    if not report.healthy:
        return report
    tell("the logs below the names")
    placed = {prefix for page in lake.list("tables/", delimiter="/") for prefix in page.prefixes}
    names = catalog.refresh()
    known = {bound.binding.prefix for bound in names.tables.values()} | {dropped.binding.prefix for dropped in names.dropped.values()}
    known |= set(names.shared_logs.values())
    report.counts["names"] = len(names.tables)
    for prefix in sorted(placed - {f"{place}/" for place in known}):
        report.leftover(
            prefix,
            "is a log that no name means. Its creator died before it had a name, or is still at work.",
            "Delete the objects below it, once you know that nobody is creating a table.",
        )
    for bound in names.tables.values():
        try:
            view = log_of_lake(lake, bound.binding.prefix).open()
        except CorruptTable:
            continue  # The examination of that log reports what is wrong with it.
        name, table = bound.binding.name, bound.binding.table
        moved_to = view.log.marks(table).moved_to
        if table not in view.state:
            report.broken("P7", name, f"means table {table} below {bound.binding.prefix}, but the log there does not have it")
        elif moved_to is not msgspec.UNSET:
            says = f"means a table that moved to the shared log {moved_to!r}. The move died before it moved the name."
            report.leftover(name, says, f"lake.table({name!r}) opens it there, and moves the name.")
        elif view.log.marks(table).closed_at is not None:
            report.leftover(
                name,
                "means a closed table. A drop died before it removed the name.",
                f"lake.drop_table({name!r}) finishes that. lake.undrop_table({name!r}) restores the table.",
            )
    _check_unnamed(lake, names, report)
    return report


def _check_unnamed(lake: FileIO, names: CatalogNames, report: DoctorReport) -> None:
    """Open tables of shared logs that no name means: their creator or mover died, or is still at work."""
    named = {bound.binding.table for bound in names.tables.values()} | names.dropped.keys()
    for shared_log, prefix in sorted(names.shared_logs.items()):
        try:
            view = log_of_lake(lake, prefix).open()
        except CorruptTable:
            continue  # The examination of that log reports what is wrong with it.
        for table in sorted(view.state.keys() - named):
            if view.log.marks(table).closed_at is None:
                report.leftover(
                    f"table {table} of the shared log {shared_log!r}",
                    "has no name, so nobody can reach it. A create or a move died, or is still at work.",
                    "The next move of the same table into that log removes a copy that a move left.",
                )


def examine_lake(
    lake: FileIO, *, deep: bool = False, catalog: Catalog | None = None, on_step: Callable[[str], None] | None = None
) -> Iterator[DoctorReport]:
    """Examine the names of a lake, then the log of each table, dropped ones too, one report each. Otherwise as `examine`.

    catalog: of the lake; its log of names when None. Names in the catalog of another package are not examined.
    """
    names = (catalog or Catalog(lake)).refresh()
    if not isinstance(catalog, PluginCatalog):
        yield examine_names(lake, on_step=on_step)
    held: dict[str, list[str]] = {}
    for bound in names.tables.values():
        held.setdefault(bound.binding.prefix, []).append(bound.binding.name)
    for dropped in names.dropped.values():
        held.setdefault(dropped.binding.prefix, []).append(f"{dropped.name} (dropped)")
    for prefix, tables in sorted(held.items()):
        yield examine(log_of_lake(lake, prefix), deep=deep, tables=sorted(tables), on_step=on_step)


def _check_log(
    timeline: Timeline[Any], report: DoctorReport, tell: Callable[[str], None], paths_of: Callable[[msgspec.Raw], Iterable[str]]
) -> tuple[Mapping[str, ObjectMeta], Sequence[Entry]]:
    """The checks of every log, whatever its changes mean. Returns the listing and the entries.

    paths_of: the files that a change names.
    """
    tell("the objects of the store")
    # The listing comes before the log. Files that only the log names were written since, so they are not lost.
    listed = {meta.key: meta for page in timeline.fileio.list() for meta in page.objects}
    tell("the log")
    entries = _read_log(timeline, report, listed)
    if not entries:
        return listed, entries  # Without a readable log nothing can be concluded from what it lacks.
    tell("transactions, times and conflicts")
    _check_outcomes(report, entries)
    _check_conflicts(timeline.fileio, report, entries)
    check_position_versions(report, entries)
    tell("what lies about")
    _check_leftovers(timeline.fileio, report, listed, entries, paths_of)
    report.cover(Coverage.CHECKED, "P2", "P5", "P6", "P8")
    return listed, entries


def _read_log(timeline: Timeline[Any], report: DoctorReport, listed: Mapping[str, ObjectMeta]) -> Sequence[Entry]:
    """Every entry up to the head, or up to an unreadable one (P1)."""
    slots = sorted(int(key[4:-5]) for key in listed if key.startswith("log/") and key[4:-5].isdigit())
    for key in listed:
        if key.startswith("log/") and not (key[4:-5].isdigit() and key == log_key(int(key[4:-5]))):
            report.leftover(key, "is not a slot of the log, and nobody reads it", "Delete it if you know where it came from.")
    for before, after in pairwise([-1, *slots]):
        if after != before + 1:
            report.broken("P1", log_key(before + 1), f"is missing although slot {after} exists. Nobody can read past it.")
            return []
    try:
        entries = with_changes(timeline.fileio, timeline.log.read_after(-1, window=32))
    except UnsupportedFormat:
        raise
    except CorruptTable as error:
        if report.healthy:
            report.broken("P1", "log/", str(error))
        return []
    report.counts["slots"] = len(entries)
    report.cover(Coverage.CHECKED, "P1")
    return entries


def _check_outcomes(report: DoctorReport, entries: Sequence[Entry]) -> None:
    """P2 and P6: a transaction has one outcome, and commit times strictly increase."""
    committed: dict[str, int] = {}
    fenced: dict[str, int] = {}
    for before, entry in zip([None, *entries], entries, strict=False):
        if before is not None and entry.committed_at_ms <= before.committed_at_ms:
            report.broken("P6", f"slot {entry.slot}", f"is not later than slot {before.slot}, so time travel may miss one of them")
        outcomes: list[tuple[dict[str, int], str]] = [(committed, txn) for txn in entry.txns]
        if entry.rollback_of is not None:
            outcomes.append((fenced, entry.rollback_of))
        for where, txn in outcomes:
            if txn in where:
                report.broken("P2", f"transaction {txn}", f"has two slots, {where[txn]} and {entry.slot}. Its rows may count twice.")
            where[txn] = entry.slot
    for txn in committed.keys() & fenced.keys():
        report.broken("P2", f"transaction {txn}", f"is committed at slot {committed[txn]} and rolled back at slot {fenced[txn]}")


def _check_conflicts(fileio: FileIO, report: DoctorReport, entries: Sequence[Entry]) -> None:
    """P5 and P9: no entry follows another one that it did not read and that it conflicts with."""
    digests_of = partial(get_digests, fileio)
    first = entries[0].slot if entries else 0
    for entry in (commit for shared in entries for commit in commits_of(shared)):
        for other in entries[max(0, entry.base + 1 - first) : entry.slot - first]:
            # An erasure may have removed keys from one of the two entries, so they can no longer be compared.
            judged = {table: own for table, own in entry.footprint.items() if table not in entry.erased and table not in other.erased}
            for overlap in find_conflicts(entry.action, judged, other, digests_of):
                conflicting = ", ".join(str(group_id) for group_id in overlap.group_ids[:3])
                report.broken(
                    "P5",
                    f"slot {entry.slot}",
                    f"({entry.action} {entry.txn}) was planned at slot {entry.base} and follows slot {other.slot}, which it conflicts "
                    f"with ({overlap.rule}{f', {conflicting}' if conflicting else ''}). What slot {other.slot} wrote there may be lost.",
                    f"Compare the rows with those as of slot {other.slot}, and write missing ones again. Report this as a bug.",
                )
        report.counts["entries judged"] += 1


def _replay(own: Examination) -> LogView[Tables] | None:
    """P9: the log can be replayed, and a handle that opens by the shortest way gets the same state."""
    try:
        replayed = own.timeline.advance(LogView(LogState(), {}), own.entries)
        groups = {snapshot.spec.table: snapshot.all_groups(own.manifests) for snapshot in _snapshots(replayed)}
    except ObjcatError as error:
        own.report.broken("P9", "the replay of the log", str(error))
        return None
    try:
        opened, found = _opened(own)
        differing = [table for table, said in found.items() if not _agree(said, groups.get(table))]
        if opened.slot == replayed.slot:
            differing += [table for table in found if opened.state[table].spec != replayed.state[table].spec]
            check_checkpoint_positions(own, opened, replayed)
    except UnsupportedFormat:
        raise
    except ObjcatError as error:
        own.report.broken("P9", "checkpoints/", f"cannot be read: {error}", CACHE)
        return replayed
    # A log that advanced during the examination is compared the next time.
    if opened.slot == replayed.slot:
        for table in differing:
            says = f"gives other file groups, or another schema, for table {table} than the log. Readers that open it see wrong rows."
            own.report.broken("P9", f"checkpoint {opened.checkpoint}", says, f"{CACHE} Report this as a bug.")
    return replayed


def _agree(one: Sequence[FileGroup], other: Sequence[FileGroup] | None) -> bool:
    """Whether two lists of live files are equal. A checkpoint of an older client has no digests."""
    if other is None or one == other:
        return other is not None
    ours, theirs = named_files(one), named_files(other)
    for path, file in ours.items():
        known = theirs.get(path, file)
        if any(None not in pair and pair[0] != pair[1] for pair in ((file.digest, known.digest), (file.footer, known.footer))):
            return False
    return _bare(one) == _bare(other)


def _bare(groups: Sequence[FileGroup]) -> list[FileGroup]:
    """The file groups without digests."""

    def bare(file: F) -> F:
        """The file without digests."""
        return msgspec.structs.replace(file, digest=None, footer=None)

    return [
        replace(
            group,
            base=None if group.base is None else bare(group.base),
            logs=tuple(msgspec.structs.replace(part, object=bare(part.object)) for part in group.logs),
        )
        for group in groups
    ]


def _opened(own: Examination) -> tuple[LogView[Tables], Mapping[str, Sequence[FileGroup]]]:
    """The view that a handle opens, and its file groups, past unusable checkpoints.

    Damaged checkpoints are reported here. Those that lack objects are reported where checkpoints are checked.
    """
    while True:
        opened = own.timeline.open()
        try:
            return opened, {snapshot.spec.table: snapshot.all_groups(own.manifests) for snapshot in _snapshots(opened)}
        except CheckpointCollected as error:
            if not error.path:
                raise
            own.timeline.pass_over(error)
            if isinstance(error, CheckpointUnreadable):
                own.report.broken("P9", error.path, str(error), CACHE)


def _check_checkpoints(own: Examination, *, deep: bool) -> None:
    """P7 and P9: each root can be read, and what it names exists. deep: read that too."""
    roots = [key for key in own.listed if key.endswith("/root.json") and key.startswith("checkpoints/")]
    for key in sorted(roots):
        slot = int(key.split("/")[1]) if key.split("/")[1].isdigit() else -1
        found = read_root(own.fileio, slot) if key == root_key(slot) else None
        if found is None or isinstance(found.root, VoidRoot):
            continue
        own.report.counts["checkpoints"] += 1
        if isinstance(found.root, BrokenRoot):
            own.report.broken("P9", key, f"cannot be read: {found.root.why}", CACHE)
            continue
        try:
            state = own.timeline.reducer.load(found.root.payload)
            objects = own.timeline.reducer.objects(found.root.payload) | {segment.path for segment in found.root.segments}
        except CorruptTable as error:
            own.report.broken("P9", key, f"cannot be read: {error}", CACHE)
            continue
        for path in sorted(objects):
            if path not in own.listed and head_of_file(own.fileio, path) is None and _is_root(own, slot):
                own.report.broken("P7", path, f"is missing although the checkpoint at slot {slot} names it", CACHE)
        if deep and objects <= own.listed.keys():
            _check_checkpoint(own, found.root, state)


def _is_root(own: Examination, slot: int) -> bool:
    """Whether a root still exists. A collector deletes its objects after it."""
    found = read_root(own.fileio, slot)
    return found is not None and isinstance(found.root, Root)


def _check_checkpoint(own: Examination, root: Root, state: Tables) -> None:
    """Read everything that a root names."""
    tables = [table for known in state.values() for table in (known, known.index) if table is not None]
    try:
        for table in tables:
            own.manifests.load(table.manifest)
        known = root.all_outcomes().between(own.fileio, -1, root.slot)
    except CheckpointCollected as error:
        if _is_root(own, root.slot):
            own.report.broken("P9", error.path or root_key(root.slot), str(error), CACHE)
        return
    said = {outcome for entry in own.entries if entry.slot <= root.slot for outcome in outcomes_of(entry)}
    if set(known) != said:
        own.report.broken("P9", root_key(root.slot), "names other outcomes of transactions than the log", CACHE)


def _snapshots(view: LogView[Tables]) -> Iterator[Snapshot]:
    """The snapshots of all open tables."""
    for table, state in view.state.items():
        if view.log.marks(table).closed_at is None:
            yield Snapshot(view.log, state)


def _check_leftovers(
    fileio: FileIO,
    report: DoctorReport,
    listed: Mapping[str, ObjectMeta],
    entries: Sequence[Entry],
    paths_of: Callable[[msgspec.Raw], Iterable[str]],
) -> None:
    """P8: objects that no committed entry names. Readers see none of them."""
    txns: dict[str, Entry] = {txn: entry for entry in entries for txn in entry.txns}
    fenced = {str(entry.rollback_of) for entry in entries if entry.rollback_of}
    under_way = {key.split("/")[1].split(".")[0] for key in listed if key.startswith("intents/")}
    strays: Counter[str] = Counter()
    for key in listed:
        if key.startswith("data/"):
            txn = key.split("/")[1]
            entry = txns.get(txn)
            if entry is None or key not in _named_by(entry, paths_of):
                strays[txn] += 1
    for txn, count in strays.items():
        if txn in txns or txn in fenced:
            report.leftover(
                f"data/{txn}/", f"holds {count} objects that its commit does not name", "Run objcat rollback, which removes them."
            )
        elif not is_txn(txn):
            report.leftover(f"data/{txn}", "is of no transaction, and nobody reads it", "Delete it if you know where it came from.")
        else:
            report.leftover(
                f"data/{txn}/",
                f"holds {count} objects of a transaction that is not in the log, and "
                f"{'its intent is there, so ' if txn in under_way else ''}its writer may still be at work",
                "Run objcat rollback once you know that its writer is dead. It settles the transaction for good.",
            )
    for key in listed:
        named = parse_request_key(key)
        if named is not None and (named[0] < len(entries) or named[1] in txns):
            report.leftover(key, "is a request of a settled transaction", "Run objcat rollback, which removes it.")
    for path in unnamed_history(fileio, listed):
        report.leftover(path, "is a history file that no slot names. Its writer died.", "The next objcat archive removes it.")
    for txn in under_way & (txns.keys() | fenced):
        if fileio.exists(intent_key(Txn(txn))):
            report.leftover(f"intents/{txn}", "is the intent of a settled transaction", "Run objcat rollback, which removes it.")


def _named_by(entry: Entry, paths_of: Callable[[msgspec.Raw], Iterable[str]]) -> frozenset[str]:
    """Every object below `data/` that an entry names."""
    paths = [path for raw in entry.changes.values() for path in paths_of(raw)]
    return frozenset([*paths, *(side.path for side in sides_of(entry))])

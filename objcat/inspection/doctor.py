"""A read-only examination of the log that tables share: do the invariants of the protocol hold, is every file there, what is left over.

Each finding says in words what is wrong, and what mends it. The invariants have the numbers of `docs/protocol.md`.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fileio.contract import ObjectMeta
from fileio.errors import NotFound
from fileio.store import FileIO
from objcat.catalog.catalog import Catalog
from objcat.common.memory_errors import is_full
from objcat.datafile.bucket_hash import bucket_of, key_digests
from objcat.datafile.parquet import constant, read_base, read_log
from objcat.datafile.verification import DataFile
from objcat.errors import CheckpointCollected, CheckpointUnreadable, CorruptTable, ObjcatError, UnsupportedFormat
from objcat.inspection.verify_files import verify_all
from objcat.metadata.file_digest import is_verifiable
from objcat.metadata.files import BaseFile, FileGroup, LogObject, decode_delta
from objcat.metadata.manifest import Manifests
from objcat.metadata.partitioning import partitions_of, shape_of
from objcat.metadata.replay import TablesReducer
from objcat.metadata.snapshot import Snapshot
from objcat.metadata.table_spec import TableSpec
from objcat.metadata.table_state import Tables
from objcat.tasks.key_index import all_entries
from objcat.tasks.key_lookup import LocateTask
from objcat.tasks.partition_moves import living_keys
from objcat.tasks.row_order import lies_otherwise
from objcat.timeline.archive import unnamed_history
from objcat.timeline.checkpoint import BrokenRoot, Root, VoidRoot, read_root, root_key
from objcat.timeline.conflicts import find_conflicts
from objcat.timeline.entry import Entry, FileGroupId, Txn, intent_key, is_txn, log_key
from objcat.timeline.log import with_changes
from objcat.timeline.log_state import LogState
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.side_objects import get_digests
from objcat.timeline.txn_outcomes import outcomes_of

F = TypeVar("F", BaseFile, LogObject)

BACKUP = "restore that object from a backup of the bucket, or its former version where the bucket keeps versions"


CACHE = (
    "nothing is lost, since a checkpoint is a cache: readers pass over it, and the next one stands for it; "
    "where that does not come, delete the objects below checkpoints/, and head.json"
)


class Severity(enum.StrEnum):
    """How bad a finding is."""

    BROKEN = "broken"
    """A promise of the protocol does not hold: rows may be lost or wrong."""
    LEFTOVER = "leftover"
    """Nothing is wrong; something that nobody needs lies about."""


@dataclass(frozen=True, slots=True)
class Finding:
    """invariant: P1 to P9. subject: the object, slot or transaction. says: what was found. remedy: what mends it."""

    invariant: str
    severity: Severity
    subject: str
    says: str
    remedy: str


class Coverage(enum.StrEnum):
    """How far an invariant was examined."""

    CHECKED = "checked"
    """As far as the store can show it."""
    IN_PART = "in part"
    """By what metadata say; what only rows can show was not looked at."""
    NOT_LOOKED_AT = "not looked at"
    """Not in this examination, or it is nothing that a store can show."""


INVARIANTS = {
    "P1": "the log has no gaps, and its entries are what was written",
    "P2": "a transaction has one outcome",
    "P3": "what was acknowledged is durable; only who was told could say",
    "P4": "what was reported as failed is not there; only who was told could say",
    "P5": "no entry stands above one that it conflicts with",
    "P6": "commit times increase",
    "P7": "every file of every readable snapshot is there, and every object of every checkpoint",
    "P8": "nothing that nobody needs lies about",
    "P9": "the log folds, checkpoints say the same, each row lies where its key belongs, each key once",
    "P10": "reads are prefixes of the log; only readers could say",
    "P11": "writers progress; only writers could say",
}
"""What is promised, in the numbers of `docs/protocol.md`, as far as an examination goes into it."""


@dataclass(slots=True)
class Report:
    """What an examination found. counts: what was looked at, by name. coverage: of each invariant, how far it was examined."""

    url: str
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    coverage: dict[str, Coverage] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, Coverage.NOT_LOOKED_AT))

    @property
    def healthy(self) -> bool:
        """Whether every invariant holds, as far as it was examined, see `coverage`. Leftovers are no illness."""
        return not any(finding.severity is Severity.BROKEN for finding in self.findings)

    def cover(self, coverage: Coverage, *invariants: str) -> None:
        """Note how far invariants were examined."""
        self.coverage |= dict.fromkeys(invariants, coverage)

    def broken(self, invariant: str, subject: str, says: str, remedy: str = BACKUP) -> None:
        self.findings.append(Finding(invariant, Severity.BROKEN, subject, says, remedy))

    def leftover(self, subject: str, says: str, remedy: str) -> None:
        self.findings.append(Finding("P8", Severity.LEFTOVER, subject, says, remedy))


@dataclass(frozen=True, slots=True)
class Examination:
    """What the steps share. listed: every object under the log's prefix, as it was when the examination began."""

    timeline: Timeline[Tables]
    report: Report
    listed: Mapping[str, ObjectMeta]
    entries: Sequence[Entry]
    manifests: Manifests

    @property
    def fileio(self) -> FileIO:
        return self.timeline.fileio


def examine(timeline: Timeline[Tables], *, deep: bool = False, on_step: Callable[[str], None] | None = None) -> Report:
    """Examine a log and the files that it names. Sends reads and listings only, and is safe beside writers.

    deep: read every byte too: files are what was committed, keys in the right bucket, each once, as many as the log says. on_step: told
    what is looked at.
    Raises UnsupportedFormat for a log of a newer client, and storage errors.
    """
    fileio = timeline.fileio
    report = Report(fileio.url)
    tell = on_step or (lambda _: None)
    own = Examination(timeline, report, *_check_log(timeline, report, tell, lambda raw: decode_delta(raw).paths), Manifests(fileio))
    tell("the state of the tables")
    view = _fold(own)
    if view is not None and own.entries:
        tell("the checkpoints")
        _check_checkpoints(own, deep=deep)
        tell("the files of every readable snapshot")
        files = _check_files(own, view)
        report.cover(Coverage.CHECKED, "P7")
        report.cover(Coverage.IN_PART, "P9")
        if deep:
            _check_digests(own, files, tell)
            for snapshot in _snapshots(view):
                tell(f"the rows of table {snapshot.spec.table}")
                _check_rows(own, snapshot)
                if snapshot.spec.is_located:
                    _check_located(own, snapshot)
            report.cover(Coverage.CHECKED, "P9")
    return report


def examine_names(lake: FileIO, *, on_step: Callable[[str], None] | None = None) -> Report:
    """Examine the names of a lake: their log, and whether each name means a table that is open, and each log has a name.

    lake: the store that it lies in. Sends reads and listings only. Raises as `examine`.
    """
    catalog = Catalog(lake)
    report = Report(catalog.fileio.url)
    tell = on_step or (lambda _: None)
    _check_log(catalog.timeline, report, tell, lambda _: ())
    if not report.healthy:
        return report
    tell("the logs below the names")
    placed = {prefix for page in lake.list("tables/", delimiter="/") for prefix in page.prefixes}
    names = catalog.refresh()
    known = {bound.binding.prefix for bound in names.tables.values()} | {dropped.binding.prefix for dropped in names.dropped.values()}
    known |= set(names.domains.values())
    report.counts["names"] = len(names.tables)
    for prefix in sorted(placed - {f"{place}/" for place in known}):
        report.leftover(
            prefix,
            "is a log that no name means: whoever created it died before it had a name, or is at it now",
            "delete the objects below it, once you know that nobody is creating a table",
        )
    for bound in names.tables.values():
        try:
            view = Timeline(lake.child(bound.binding.prefix), TablesReducer()).open()
        except CorruptTable:
            continue  # The examination of that log says what is wrong with it.
        name, table = bound.binding.name, bound.binding.table
        if table not in view.state:
            report.broken("P7", name, f"means table {table} below {bound.binding.prefix}, whose log does not hold it")
        elif view.log.marks(table).closed_at is not None:
            report.leftover(
                name,
                "means a table that is closed: whoever dropped it died before it took the name away",
                f"lake.drop_table({name!r}) finishes that, lake.undrop_table({name!r}) brings the table back",
            )
    return report


def examine_lake(lake: FileIO, *, deep: bool = False, on_step: Callable[[str], None] | None = None) -> Iterator[Report]:
    """Examine the names of a lake, then the log of each table that has or had one, one report each. Else as `examine`."""
    names = Catalog(lake).refresh()
    yield examine_names(lake, on_step=on_step)
    places = {bound.binding.prefix for bound in names.tables.values()} | {dropped.binding.prefix for dropped in names.dropped.values()}
    for prefix in sorted(places):
        yield examine(Timeline(lake.child(prefix), TablesReducer()), deep=deep, on_step=on_step)


def _check_log(
    timeline: Timeline[Any], report: Report, tell: Callable[[str], None], paths_of: Callable[[msgspec.Raw], Iterable[str]]
) -> tuple[Mapping[str, ObjectMeta], Sequence[Entry]]:
    """What holds of every log, whatever its changes mean. paths_of: the files that a change names. Returns the listing and the entries."""
    tell("the objects of the store")
    # Listed before the log is read: what the log names beyond that was written since, and what the listing has beyond the log is not lost.
    listed = {meta.key: meta for page in timeline.fileio.list() for meta in page.objects}
    tell("the log")
    entries = _read_log(timeline, report, listed)
    if not entries:
        return listed, entries  # There is none, or it cannot be read: what it does not say is nothing to go by.
    tell("transactions, times and conflicts")
    _check_outcomes(report, entries)
    _check_conflicts(timeline.fileio, report, entries)
    tell("what lies about")
    _check_leftovers(timeline.fileio, report, listed, entries, paths_of)
    report.cover(Coverage.CHECKED, "P2", "P5", "P6", "P8")
    return listed, entries


def _read_log(timeline: Timeline[Any], report: Report, listed: Mapping[str, ObjectMeta]) -> Sequence[Entry]:
    """Every entry up to the head, or up to what cannot be read (P1)."""
    slots = sorted(int(key[4:-5]) for key in listed if key.startswith("log/") and key[4:-5].isdigit())
    for key in listed:
        if key.startswith("log/") and not (key[4:-5].isdigit() and key == log_key(int(key[4:-5]))):
            report.leftover(key, "is no slot of the log, and nobody reads it", "delete it if you know where it came from")
    for before, after in pairwise([-1, *slots]):
        if after != before + 1:
            report.broken("P1", log_key(before + 1), f"is missing although slot {after} exists: nobody can read past it")
            break
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


def _check_outcomes(report: Report, entries: Sequence[Entry]) -> None:
    """P2 and P6: a transaction has one outcome; commit times strictly increase."""
    committed: dict[str, int] = {}
    fenced: dict[str, int] = {}
    for before, entry in zip([None, *entries], entries, strict=False):
        if before is not None and entry.committed_at_ms <= before.committed_at_ms:
            report.broken("P6", f"slot {entry.slot}", f"is not later than slot {before.slot}, so time travel may miss one of them")
        outcomes: list[tuple[dict[str, int], str]] = [(committed, entry.txn)]
        if entry.rollback_of is not None:
            outcomes.append((fenced, entry.rollback_of))
        for where, txn in outcomes:
            if txn in where:
                report.broken("P2", f"transaction {txn}", f"has two slots, {where[txn]} and {entry.slot}: its rows may count twice")
            where[txn] = entry.slot
    for txn in committed.keys() & fenced.keys():
        report.broken("P2", f"transaction {txn}", f"is committed at slot {committed[txn]} and rolled back at slot {fenced[txn]}")


def _check_conflicts(fileio: FileIO, report: Report, entries: Sequence[Entry]) -> None:
    """P5 and P9: no entry stands above another one that it could not have known and that it conflicts with."""
    digests_of = partial(get_digests, fileio)
    first = entries[0].slot if entries else 0
    for entry in entries:
        for other in entries[max(0, entry.base + 1 - first) : entry.slot - first]:
            # What an erasure has taken out of one of the two, keys above all, nobody can judge by any more.
            judged = {table: own for table, own in entry.footprint.items() if table not in entry.erased and table not in other.erased}
            for overlap in find_conflicts(entry.action, judged, other, digests_of):
                homes = ", ".join(str(home) for home in overlap.homes[:3])
                report.broken(
                    "P5",
                    f"slot {entry.slot}",
                    f"({entry.action} {entry.txn}) was planned at slot {entry.base} and stands above slot {other.slot}, which it conflicts "
                    f"with: {overlap.rule}{f' ({homes})' if homes else ''}; what slot {other.slot} wrote there may be lost",
                    f"compare the rows with those as of slot {other.slot}, and write what is missing again; report this as a bug",
                )
        report.counts["entries judged"] += 1


def _fold(own: Examination) -> LogView[Tables] | None:
    """P9: what the log says can be folded, and a handle that opens by the shortest way gets the same."""
    try:
        folded = own.timeline.advance(LogView(LogState(), {}), own.entries)
        groups = {snapshot.spec.table: snapshot.all_groups(own.manifests) for snapshot in _snapshots(folded)}
    except ObjcatError as error:
        own.report.broken("P9", "the fold of the log", str(error))
        return None
    try:
        opened, found = _opened(own)
        differing = [table for table, said in found.items() if not _agree(said, groups.get(table))]
        if opened.slot == folded.slot:
            differing += [table for table in found if opened.state[table].spec != folded.state[table].spec]
    except UnsupportedFormat:
        raise
    except ObjcatError as error:
        own.report.broken("P9", "checkpoints/", f"cannot be read: {error}", CACHE)
        return folded
    # A log that moved while it was examined is compared the next time.
    if opened.slot == folded.slot:
        for table in differing:
            says = f"gives other file groups, or another schema, for table {table} than the log does: readers that open it see wrong rows"
            own.report.broken("P9", f"checkpoint {opened.checkpoint}", says, f"{CACHE}; report this as a bug")
    return folded


def _agree(one: Sequence[FileGroup], other: Sequence[FileGroup] | None) -> bool:
    """Whether two opinions of what is live say the same. A checkpoint of an older client knows no digests."""
    if other is None or one == other:
        return other is not None
    ours, theirs = _files_of(one), _files_of(other)
    for path, file in ours.items():
        known = theirs.get(path, file)
        if any(None not in pair and pair[0] != pair[1] for pair in ((file.digest, known.digest), (file.footer, known.footer))):
            return False
    return _bare(one) == _bare(other)


def _bare(groups: Sequence[FileGroup]) -> list[FileGroup]:
    """Without digests."""

    def bare(file: F) -> F:
        return msgspec.structs.replace(file, digest=None, footer=None)

    return [
        replace(
            group,
            base=None if group.base is None else bare(group.base),
            logs=tuple(replace(part, object=bare(part.object)) for part in group.logs),
        )
        for group in groups
    ]


def _opened(own: Examination) -> tuple[LogView[Tables], Mapping[str, Sequence[FileGroup]]]:
    """The view that a handle opens, and the file groups that it finds, whatever checkpoints it has to pass over. Those that are damaged are
    told here, those that lack objects where checkpoints are looked at."""
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
    """P7 and P9: each root can be read, and what it names is there. deep: read that too."""
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
            state = own.timeline.fold.load(found.root.payload)
            objects = own.timeline.fold.objects(found.root.payload) | {segment.path for segment in found.root.segments}
        except CorruptTable as error:
            own.report.broken("P9", key, f"cannot be read: {error}", CACHE)
            continue
        for path in sorted(objects):
            if path not in own.listed and _head(own.fileio, path) is None and _is_root(own, slot):
                own.report.broken("P7", path, f"is missing although the checkpoint at slot {slot} names it", CACHE)
        if deep and objects <= own.listed.keys():
            _check_checkpoint(own, found.root, state)


def _is_root(own: Examination, slot: int) -> bool:
    """Whether a root is still there: its objects go after it, when somebody collects it meanwhile."""
    found = read_root(own.fileio, slot)
    return found is not None and isinstance(found.root, Root)


def _check_checkpoint(own: Examination, root: Root, state: Tables) -> None:
    """Reads all that a root names."""
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
        own.report.broken("P9", root_key(root.slot), "says other outcomes of transactions than the log", CACHE)


def _snapshots(view: LogView[Tables]) -> Iterator[Snapshot]:
    """Of every table that is open."""
    for table, state in view.state.items():
        if view.log.marks(table).closed_at is None:
            yield Snapshot(view.log, state)


def _check_files(own: Examination, view: LogView[Tables]) -> dict[str, DataFile]:
    """P7: every file that a readable snapshot needs is there, with the size that its entry gives. Returns these files."""
    files: dict[str, DataFile] = {}
    for table in view.state:
        marks = view.log.marks(table)
        needed: dict[str, DataFile] = {}
        starts = {slot for slot in (*marks.saved, min(marks.bound, view.slot)) if slot >= 0}
        for slot in sorted(starts):
            then = own.timeline.at(slot)
            state = then.state.get(table)
            # A slot at which the table is dropped shows no row, so it needs no file.
            if state is not None and then.log.marks(table).closed_at is None:
                needed |= _files_of(Snapshot(view.log, state).all_groups(own.manifests))
        for entry in own.entries:
            if entry.slot > marks.bound and table in entry.changes:
                delta = decode_delta(entry.changes[table])
                needed |= {file.path: file for file in delta.files}
        for path, file in needed.items():
            size = file.bytes
            found = own.listed.get(path) or _head(own.fileio, path)
            if found is None:
                own.report.broken("P7", path, f"is missing although a readable snapshot of table {table} needs it: its rows cannot be read")
            elif found.size != size:
                own.report.broken("P7", path, f"has {found.size:,} bytes, and {size:,} were committed: it is not the file of that commit")
        own.report.counts["files"] += len(needed)
        files |= needed
    return files


def _check_digests(own: Examination, files: Mapping[str, DataFile], tell: Callable[[str], None]) -> None:
    """P7 in depth: the bytes of every file are those that its entry has the digest of."""
    known = [(path, file.bytes, file.digest) for path, file in sorted(files.items()) if is_verifiable(file.digest)]
    total = sum(size for _, size, _ in known)
    counts = own.report.counts
    counts["digests verified"], counts["files without a digest"] = 0, len(files) - len(known)

    def on_file(size: int) -> None:
        counts["digests verified"] += 1
        counts["bytes"] += size
        tell(f"the bytes of the files: {counts['digests verified']:,} of {len(known):,} files, {counts['bytes']:,} of {total:,} bytes")

    for path, wrong in verify_all(own.fileio, known, on_file=on_file):
        own.report.broken("P7", path, f"is not the file that was committed: {wrong}")


def _files_of(groups: Sequence[FileGroup]) -> dict[str, DataFile]:
    files: dict[str, DataFile] = {group.base.path: group.base for group in groups if group.base is not None}
    return files | {rows.object.path: rows.object for group in groups for rows in group.logs}


def _head(fileio: FileIO, key: str) -> ObjectMeta | None:
    try:
        return fileio.head(key)
    except NotFound:
        return None


def _check_leftovers(
    fileio: FileIO,
    report: Report,
    listed: Mapping[str, ObjectMeta],
    entries: Sequence[Entry],
    paths_of: Callable[[msgspec.Raw], Iterable[str]],
) -> None:
    """P8 from outside: what is there that no committed entry names. None of it is visible to readers."""
    txns: dict[str, Entry] = {entry.txn: entry for entry in entries}
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
            report.leftover(f"data/{txn}/", f"holds {count} objects that its commit does not name", "objcat rollback removes them")
        elif not is_txn(txn):
            report.leftover(f"data/{txn}", "is of no transaction, and nobody reads it", "delete it if you know where it came from")
        else:
            report.leftover(
                f"data/{txn}/",
                f"holds {count} objects of a transaction that is not in the log; {'its intent is there, so' if txn in under_way else ''} "
                "its writer may still be at work",
                "objcat rollback settles it for ever, once you know that its writer is dead",
            )
    for path in unnamed_history(fileio, listed):
        report.leftover(path, "is a history file that no slot names: whoever wrote it died", "the next objcat archive removes it")
    for txn in under_way & (txns.keys() | fenced):
        if fileio.exists(intent_key(Txn(txn))):
            report.leftover(f"intents/{txn}", "is the intent of a settled transaction", "objcat rollback removes it")


def _named_by(entry: Entry, paths_of: Callable[[msgspec.Raw], Iterable[str]]) -> frozenset[str]:
    """Every object below `data/` that an entry names."""
    paths = [path for raw in entry.changes.values() for path in paths_of(raw)]
    sides = [entry.side]
    for footprint in entry.footprint.values():
        if footprint.keys is not None:
            sides += [footprint.keys.placed.side, footprint.keys.updated.side]
    return frozenset([*paths, *(side.path for side in sides if side is not None)])


def _check_rows(own: Examination, snapshot: Snapshot) -> None:
    """P9 in depth: each row lies in its partition and in the bucket of its key, each key once in a base file, as many rows as the log
    says."""
    spec = snapshot.spec
    key = [column.physical for column in spec.key_columns]
    located = [*key, *(column.physical for column in spec.partition_columns if column.id not in spec.key)]
    columns = located or [spec.table_schema.columns[0].physical]
    for group in snapshot.file_groups(own.manifests):
        try:
            parts = [*_base_parts(own.fileio, group, columns, spec), *_log_parts(own.fileio, group, columns, spec)]
        except (ObjcatError, OSError, pa.ArrowException) as error:
            _check_memory(error)
            own.report.broken("P9", str(group.home), f"cannot be read: {error}")
            continue
        bases = {group.base.path} if group.base is not None else set[str]()
        for path, rows, expected, home in parts:
            own.report.counts["rows"] += rows.num_rows
            if rows.num_rows != expected:
                own.report.broken("P9", path, f"holds {rows.num_rows:,} rows of {group.home}, and {expected:,} were committed")
            if key and rows.num_rows and rows.group_by([pc.field(name) for name in key]).aggregate([]).num_rows != rows.num_rows:
                own.report.broken("P9", path, "holds a key twice", "compact the table: the merge keeps one row of each key")
            if path in bases and key and not lies_otherwise(group) and not _is_sorted(rows, key):
                says = "is not sorted by key, and does not say so: a merge with log rows may take an old row for the newest"
                own.report.broken("P9", path, says, "copy the rows to a new table; report this as a bug")
            # Where keys move, a log row may be the end of one that went elsewhere, or have lost against one that is there.
            if (path in bases or not spec.is_global) and _strays(rows, spec, home):
                own.report.broken("P9", path, f"holds rows that do not belong to {group.home}: lookups by key miss them")


def _check_memory(error: Exception) -> None:
    """A file that does not fit into memory is not damaged. Raises the error."""
    if is_full(error):
        raise error


def _check_located(own: Examination, snapshot: Snapshot) -> None:
    """P9 in depth where keys are looked up: each lives in one file group of its partition, or of the table; a record index says in which.
    Holds 8 bytes for each key, and 16 more for an index."""
    spec = snapshot.spec
    groups = list(snapshot.file_groups(own.manifests))
    found, placed = [], []
    for group in groups:
        try:
            tables = list(living_keys(own.fileio, LocateTask(spec, (group,))))
        except (ObjcatError, OSError, pa.ArrowException) as error:
            _check_memory(error)
            return  # said where its rows were looked at
        for rows in tables:
            within = [] if spec.is_global else [constant(group.home.partition, rows.num_rows)]
            keys = [rows.column(column.physical) for column in spec.key_columns]
            found.append(key_digests([*within, *keys]))
            if snapshot.index is not None:
                partition, bucket = constant(group.home.partition, rows.num_rows), np.full(rows.num_rows, group.home.bucket, np.int32)
                placed.append(key_digests([*keys, partition, pa.array(bucket)]))
    digests = np.concatenate(found) if found else np.zeros(0, np.uint64)
    twice = len(digests) - len(np.unique(digests))
    if twice:
        own.report.broken("P9", f"table {spec.table}", f"holds {twice:,} keys in two file groups each, by digests of 64 bits")
    if snapshot.index is not None:
        _check_index(own, snapshot.index, np.concatenate(placed) if placed else np.zeros(0, np.uint64))


def _check_index(own: Examination, index: Snapshot, placed: npt.NDArray[np.uint64]) -> None:
    """A record index names the home of every key that lives: one more is allowed, one less is a key that writers would place again. placed:
    digests of living keys with their homes."""
    known = [np.zeros(0, np.uint64)]
    for group in index.file_groups(own.manifests):
        try:
            rows = all_entries(own.fileio, index.spec, group)
        except (ObjcatError, OSError, pa.ArrowException) as error:
            _check_memory(error)
            own.report.broken("P9", str(group.home), f"of the record index cannot be read: {error}")
            return
        known.append(key_digests(rows.columns))
    missing = int((~np.isin(placed, np.concatenate(known))).sum())
    own.report.counts["keys in the index"] += sum(map(len, known))
    if missing:
        says = f"does not say, or says wrongly, where {missing:,} keys live: the next write of them would place them a second time"
        remedy = "restore the newest slot before that, or copy the rows to a new table; report this as a bug"
        own.report.broken("P9", f"the record index of table {index.spec.table}", says, remedy)


def _base_parts(
    fileio: FileIO, group: FileGroup, columns: Sequence[str], spec: TableSpec
) -> Iterator[tuple[str, pa.Table, int, FileGroupId]]:
    base: BaseFile | None = group.base
    if base is not None:
        yield base.path, read_base(fileio, base, columns, spec.table_schema), base.rows, base.home


def _log_parts(
    fileio: FileIO, group: FileGroup, columns: Sequence[str], spec: TableSpec
) -> Iterator[tuple[str, pa.Table, int, FileGroupId]]:
    for rows in group.logs:
        (table,) = read_log(fileio, rows.object, [(rows.start, rows.end)], columns, spec.table_schema)
        yield rows.object.path, table, rows.end - rows.start, rows.home


def _is_sorted(rows: pa.Table, key: Sequence[str]) -> bool:
    order = pc.sort_indices(rows.select(list(key)), sort_keys=[(pc.field(name), "ascending") for name in key])
    return bool(np.array_equal(np.asarray(order), np.arange(rows.num_rows)))


def _strays(rows: pa.Table, spec: TableSpec, home: FileGroupId) -> bool:
    """Whether a row is of another partition than the home that it was written for, or its key hashes elsewhere. That home may have been
    split since: its rows then belong to several of today."""
    if rows.num_rows == 0:
        return False
    shape = shape_of(home.partition)
    of_shape = [partitioning for partitioning in (spec.partitioning, *spec.former) if partitioning.shape == shape]
    found = {text for partitioning in of_shape for text in partitions_of(partitioning, (), (), spec.table_schema, rows).texts}
    if found != {home.partition}:
        return True
    if spec.is_keyless or spec.is_located:
        return False
    return bool(np.any(bucket_of([rows.column(column.physical) for column in spec.bucket_columns], home.bucket_count) != home.bucket))


__all__ = ["INVARIANTS", "Coverage", "Finding", "Report", "Severity", "examine", "examine_names"]

"""A small model of tables that shows what the conflict rules must refuse: operations plan at one slot and commit at a later one.

Every operation has two meanings. Its *files*: what it writes, computed from what it saw at its base, and replayed by slot as the protocol
says. Its *intent*: what it does to a dict, applied at its own slot. Whatever the rules admit must leave files that read as the dict does,
which is the serial execution in slot order.

Two worlds: one with a bucket index, where a key tells its file group and splits change bucket counts, and one with an index that is looked
up, where a key may live anywhere and digests keep two from placing it twice. Nothing here uses the product but footprints, entries, the
rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from objcat.timeline.conflicts import find_conflicts
from objcat.timeline.entry import Action, Digests, Entry, FileGroupId, Footprint, Keys, Txn

TABLE = "t"
P = "p"

Value = tuple[str, ...]
"""A value is the list of the updates that made it, so that a lost one shows."""
Rows = Mapping[int, Value]
Log = Mapping[int, Value | None]
"""Log rows of one commit; None deletes."""


class Wrong(AssertionError):
    """Files that do not read as the serial execution."""


# Files, and their replay.


@dataclass(frozen=True, slots=True)
class Group:
    """A base file, the slot of the commit that wrote it, and the log rows above, by slot."""

    base: Rows | None = None
    base_slot: int = -1
    logs: tuple[tuple[int, Log], ...] = ()

    def rows(self) -> dict[int, Value]:
        found = dict(self.base or {})
        for _, log in self.logs:
            for key, value in log.items():
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = value
        return found


@dataclass(frozen=True, slots=True)
class Files:
    """What is live. count: buckets of the partition once its first write fixed them. bucketed: whether a key tells its file group.

    index: where each key lives, or died, when it is looked up.
    """

    bucketed: bool
    count: int | None = None
    groups: Mapping[FileGroupId, Group] = field(default_factory=dict)
    index: Mapping[int, FileGroupId] = field(default_factory=dict)

    def read(self) -> dict[int, Value]:
        """Every row. Raises Wrong when a key lives where nobody looks for it, or twice."""
        found: dict[int, Value] = {}
        for group_id, group in self.groups.items():
            for key, value in group.rows().items():
                if self.bucketed and (group_id.bucket_count != self.count or key % group_id.bucket_count != group_id.bucket):
                    raise Wrong(f"key {key} lies in {group_id}, in a partition of {self.count} buckets")
                if key in found:
                    raise Wrong(f"key {key} lives twice")
                if not self.bucketed and self.index.get(key) != group_id:
                    raise Wrong(f"key {key} lies in {group_id}, the index says {self.index.get(key)}")
                found[key] = value
        return found


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a commit does to files. bases: first files, or, with `as_of`, new ones for what a file group held as of that slot. parents: file
    groups that a split saw. removes_all: the end of whatever is live. restored: the files of an earlier slot. forgets: keys whose
    tombstones are gone, so that the index loses them."""

    bases: Mapping[FileGroupId, Rows] = field(default_factory=dict)
    as_of: int | None = None
    logs: Sequence[tuple[FileGroupId, Log]] = ()
    retires: Sequence[FileGroupId] = ()
    removes_all: bool = False
    split: int | None = None
    parents: Sequence[FileGroupId] = ()
    restored: Files | None = None
    forgets: Sequence[int] = ()


def replay(files: Files, change: Change, slot: int) -> Files:
    """The files after a commit. Raises Wrong for what a reader would call corrupt."""
    if change.restored is not None:
        return change.restored
    groups: dict[FileGroupId, Group] = {} if change.removes_all else dict(files.groups)
    count = files.count
    for group_id in change.retires:
        groups.pop(group_id, None)
    if change.split is not None:
        count = change.split
        groups = _split(groups, change)
    for group_id, rows in change.bases.items():
        count = count or group_id.bucket_count
        before = groups.get(group_id)
        if files.bucketed and group_id.bucket_count != count:
            raise Wrong(f"a base file for {group_id} in a partition of {count} buckets")
        if change.as_of is None:
            if before is not None and before.base is not None:
                raise Wrong(f"a second base file for {group_id}")
            groups[group_id] = Group(rows, slot, () if before is None else before.logs)
        elif before is None or before.base_slot > change.as_of:
            raise Wrong(f"a base file that replaces what is no longer live in {group_id}")
        else:
            groups[group_id] = Group(rows, slot, tuple(log for log in before.logs if log[0] > change.as_of))
    for group_id, log in change.logs:
        count = count or group_id.bucket_count
        for target, part in _addressed(group_id, log, count if files.bucketed else None).items():
            group = groups.get(target, Group())
            groups[target] = Group(group.base, group.base_slot, (*group.logs, (slot, part)))
    return Files(files.bucketed, count, groups, {} if files.bucketed else _indexed(files.index, change))


def _indexed(index: Mapping[int, FileGroupId], change: Change) -> dict[int, FileGroupId]:
    """The index after a commit. Deletes leave their key where it died."""
    kept = {} if change.removes_all else {key: group_id for key, group_id in index.items() if group_id not in change.retires}
    for key in change.forgets:
        kept.pop(key, None)
    if change.as_of is None:
        kept.update({key: group_id for group_id, rows in change.bases.items() for key in rows})
    kept.update({key: group_id for group_id, log in change.logs for key, value in log.items() if value is not None})
    return kept


def _addressed(group_id: FileGroupId, log: Log, count: int | None) -> dict[FileGroupId, Log]:
    """Log rows by the file group that they belong to at a bucket count."""
    if count is None or group_id.bucket_count == count:
        return {group_id: log}
    found: dict[FileGroupId, dict[int, Value | None]] = {}
    for key, value in log.items():
        found.setdefault(FileGroupId(P, key % count, count), {})[key] = value
    return {**found}


def _split(groups: Mapping[FileGroupId, Group], change: Change) -> dict[FileGroupId, Group]:
    """The groups after a split: those that it saw divided, whatever they hold now, and log rows without a base file addressed anew."""
    assert change.split is not None
    count = change.split
    divided = {group_id: group for group_id, group in groups.items() if group_id in change.parents or group.base is None}
    found = {group_id: group for group_id, group in groups.items() if group_id not in divided}
    children: dict[FileGroupId, list[Group]] = {}
    for group_id, group in divided.items():
        for bucket in range(count):
            child = FileGroupId(P, bucket, count)
            if child.is_common(group_id):
                base = None if group.base is None else {key: value for key, value in group.base.items() if key % count == bucket}
                logs = tuple((slot, _addressed(group_id, log, count).get(child, {})) for slot, log in group.logs)
                children.setdefault(child, []).append(Group(base, group.base_slot, tuple(part for part in logs if part[1])))
    for child, parts in children.items():
        bases = [part.base for part in parts if part.base is not None]
        merged = sorted((log for part in parts for log in part.logs), key=lambda log: log[0])
        if bases or merged:
            base = {key: value for rows in bases for key, value in rows.items()} if bases else None
            found[child] = Group(base, max(part.base_slot for part in parts), tuple(merged))
    return found


# Operations.


@dataclass(slots=True)
class State:
    """A table as of a slot, as files and as the dict that they must read as. start: where the run began. plans: made before."""

    slot: int
    files: Files
    rows: Rows
    start: State | None = None
    plans: dict[tuple[str, int, bool], Planned | None] = field(default_factory=dict)

    def live(self, bucket: int | None = None) -> list[FileGroupId]:
        """Live file groups; of those keys that lie in one of two buckets, or all. Under an index that is looked up: that one file group."""
        group_ids = self.files.groups
        if bucket is None:
            return list(group_ids)
        if not self.files.bucketed:
            return [group_id for group_id in group_ids if group_id.bucket == bucket]
        return [group_id for group_id in group_ids if group_id.is_common(FileGroupId(P, bucket, 2))]

    def held(self, group_ids: Sequence[FileGroupId]) -> dict[FileGroupId, dict[int, Value]]:
        return {group_id: self.files.groups[group_id].rows() for group_id in group_ids}

    def group_id_of(self, key: int, count: int = 2) -> FileGroupId:
        """Under a bucket index. count: what a first write takes."""
        count = self.files.count or count
        return FileGroupId(P, key % count, count)

    def lookup(self, key: int) -> FileGroupId | None:
        """Under an index that is looked up."""
        return self.files.index.get(key)


Intent = Callable[[Rows], Rows]


@dataclass(frozen=True, slots=True)
class Planned:
    """An operation with its files written, ready to commit."""

    action: Action
    footprint: Footprint
    change: Change
    intent: Intent


Plan = Callable[[State, str, bool], Planned | None]
"""Plans at a state: with the mark that its updates leave, and whether it is serializable. None: there is nothing to do."""


@dataclass(frozen=True, slots=True)
class Op:
    name: str
    plan: Plan


def puts(new: Mapping[int, Value | None]) -> Intent:
    """Set and delete keys, whatever they were."""
    return lambda rows: {key: value for key, value in {**rows, **new}.items() if value is not None}


def marks(keys: Sequence[int], mark: str) -> Intent:
    """Add a mark to the values of those keys that there are."""
    return lambda rows: {key: (*value, mark) if key in keys else value for key, value in rows.items()}


def same(rows: Rows) -> Rows:
    return rows


def keys_of(group_ids: Sequence[FileGroupId]) -> list[int]:
    return [key for key in range(16) if any(key % group_id.bucket_count == group_id.bucket for group_id in group_ids)]


def upsert(*keys: int) -> Op:
    def plan(state: State, mark: str, serializable: bool) -> Planned:
        logs = [(state.group_id_of(key), {key: (mark,)}) for key in keys]
        footprint = Footprint(appends=tuple(group_id for group_id, _ in logs))
        return Planned(Action.DELTA_COMMIT, footprint, Change(logs=logs), puts(dict.fromkeys(keys, (mark,))))

    return Op(f"upsert {keys}", plan)


def delete(key: int) -> Op:
    def plan(state: State, mark: str, serializable: bool) -> Planned:
        group_id = state.group_id_of(key)
        return Planned(Action.DELTA_COMMIT, Footprint(appends=(group_id,)), Change(logs=[(group_id, {key: None})]), puts({key: None}))

    return Op(f"delete {key}", plan)


def insert(*keys: int, count: int = 2) -> Op:
    """Base files in file groups that are not live, log rows in the others."""

    def plan(state: State, mark: str, serializable: bool) -> Planned:
        bases: dict[FileGroupId, dict[int, Value]] = {}
        logs: list[tuple[FileGroupId, Log]] = []
        for key in keys:
            group_id = state.group_id_of(key, count)
            if group_id in state.files.groups:
                logs.append((group_id, {key: (mark,)}))
            else:
                bases.setdefault(group_id, {})[key] = (mark,)
        footprint = Footprint(creates=tuple(bases), appends=tuple(group_id for group_id, _ in logs))
        return Planned(Action.DELTA_COMMIT, footprint, Change(bases=bases, logs=logs), puts(dict.fromkeys(keys, (mark,))))

    return Op(f"insert {keys}/{count}", plan)


def increment(key: int) -> Op:
    """Log rows computed from the row that is there, or from none."""

    def plan(state: State, mark: str, serializable: bool) -> Planned:
        group_id = state.group_id_of(key)
        log = {key: (*state.rows.get(key, ()), mark)}
        footprint = Footprint(appends=(group_id,), rmw=(group_id,))
        return Planned(
            Action.DELTA_COMMIT, footprint, Change(logs=[(group_id, log)]), lambda rows: {**rows, key: (*rows.get(key, ()), mark)}
        )

    return Op(f"increment {key}", plan)


def rewrite(bucket: int) -> Op:
    """Copy-on-write update of all rows of some file groups. Under snapshot isolation it means the file groups that were live at its
    base."""

    def plan(state: State, mark: str, serializable: bool) -> Planned | None:
        held = state.held(state.live(bucket))
        if not held:
            return None
        reads = (FileGroupId(P, bucket, 2), *held) if serializable else ()
        bases = {group_id: {key: (*value, mark) for key, value in rows.items()} for group_id, rows in held.items()}
        footprint = Footprint(replaces=tuple(held), reads=reads)
        return Planned(Action.COMMIT, footprint, Change(bases=bases, as_of=state.slot), marks(keys_of(reads or list(held)), mark))

    return Op(f"rewrite {bucket}", plan)


def compact(bucket: int | None = None) -> Op:
    """The same rows in new base files. It drops tombstones, and their keys from the index, which counts as placing them."""

    def plan(state: State, mark: str, serializable: bool) -> Planned | None:
        held = state.held(state.live(bucket))
        if not held:
            return None
        forgets = [key for key, group_id in state.files.index.items() if group_id in held and key not in held[group_id]]
        footprint = Footprint(replaces=tuple(held), keys=placing(*forgets) if forgets else None)
        return Planned(Action.COMPACTION, footprint, Change(bases=held, as_of=state.slot, forgets=forgets), same)

    return Op(f"compact {'all' if bucket is None else bucket}", plan)


def split(count: int) -> Op:
    def plan(state: State, mark: str, serializable: bool) -> Planned | None:
        if not state.files.groups or state.files.count == count:
            return None
        return Planned(Action.REPLACE, Footprint(splits={P: count}), Change(split=count, parents=state.live()), same)

    return Op(f"split {count}", plan)


def cluster(bucket: int) -> Op:
    """New groups for old ones in the same file groups."""

    def plan(state: State, mark: str, serializable: bool) -> Planned | None:
        held = state.held(state.live(bucket))
        if not held:
            return None
        group_ids = tuple(held)
        return Planned(Action.REPLACE, Footprint(retires=group_ids, creates=group_ids), Change(bases=held, retires=group_ids), same)

    return Op(f"cluster {bucket}", plan)


def remove(bucket: int) -> Op:
    """Delete all rows of the file groups that were live."""

    def plan(state: State, mark: str, serializable: bool) -> Planned | None:
        held = state.held(state.live(bucket))
        if not held:
            return None
        gone = keys_of(list(held)) if state.files.bucketed else [key for rows in held.values() for key in rows]
        keys = None if state.files.bucketed else placing(*gone)
        footprint = Footprint(retires=tuple(held), keys=keys)
        return Planned(Action.REPLACE, footprint, Change(retires=tuple(held)), puts(dict.fromkeys(gone)))

    return Op(f"remove {bucket}", plan)


def overwrite(key: int, *, listed: bool) -> Op:
    """Replace the partition by one row. listed: it ends the groups that it saw, which it names; otherwise all that are live at its slot."""

    def plan(state: State, mark: str, serializable: bool) -> Planned:
        group_id = state.group_id_of(key) if state.files.bucketed else FileGroupId(P, 0, 4)
        retires = tuple(state.live()) if listed else ()
        keys = None if state.files.bucketed else placing(key, *state.rows)
        footprint = Footprint(overwrites=(P,), retires=retires, creates=(group_id,), keys=keys)
        change = Change(bases={group_id: {key: (mark,)}}, retires=retires, removes_all=not listed)
        return Planned(Action.REPLACE, footprint, change, lambda rows: {key: (mark,)})

    return Op(f"overwrite {key}{' as seen' if listed else ''}", plan)


def restore() -> Op:
    """Back to where the run began."""

    def plan(state: State, mark: str, serializable: bool) -> Planned:
        start = state.start or state
        return Planned(Action.RESTORE, Footprint(restores=start.slot), Change(restored=start.files), lambda rows: start.rows)

    return Op("restore", plan)


def copy(source: int, target: int) -> Op:
    """Write one key from what another one was. Under snapshot isolation that is what it was at the base: write skew is allowed."""

    def plan(state: State, mark: str, serializable: bool) -> Planned:
        group_id = state.group_id_of(target)
        seen = (*state.rows.get(source, ()), mark)
        footprint = Footprint(appends=(group_id,), reads=(state.group_id_of(source),) if serializable else ())
        intent = (lambda rows: {**rows, target: (*rows.get(source, ()), mark)}) if serializable else puts({target: seen})
        return Planned(Action.DELTA_COMMIT, footprint, Change(logs=[(group_id, {target: seen})]), intent)

    return Op(f"copy {source} to {target}", plan)


def count_into(target: int) -> Op:
    """Write the number of rows of the partition."""

    def plan(state: State, mark: str, serializable: bool) -> Planned:
        group_id = state.group_id_of(target)
        seen = (str(len(state.rows)), mark)
        footprint = Footprint(appends=(group_id,), read_partitions=(P,) if serializable else ())
        intent = (lambda rows: {**rows, target: (str(len(rows)), mark)}) if serializable else puts({target: seen})
        return Planned(Action.DELTA_COMMIT, footprint, Change(logs=[(group_id, {target: seen})]), intent)

    return Op(f"count into {target}", plan)


# Operations under an index that is looked up: file groups are the numbers of file groups, of which there are at most four.


def at(number: int) -> FileGroupId:
    return FileGroupId(P, number, 4)


def digests(*keys: int) -> Digests:
    return Digests(len(set(keys)), inline=" ".join(map(str, sorted(set(keys)))))


def parse(found: Digests) -> frozenset[int]:
    return frozenset(map(int, found.inline.split()))


def placing(*keys: int) -> Keys:
    return Keys(placed=digests(*keys))


def updating(*keys: int) -> Keys:
    return Keys(updated=digests(*keys))


def put(key: int, number: int, *, first: bool = False) -> Op:
    """Update a key where the index finds it, else place it. first: as a base file, if that file group is not live."""

    def plan(state: State, mark: str, serializable: bool) -> Planned:
        found = state.lookup(key)
        group_id = at(number) if found is None else found
        keys = updating(key) if found else placing(key)
        row = {key: (mark,)}
        if first and group_id not in state.files.groups:
            return Planned(Action.DELTA_COMMIT, Footprint(creates=(group_id,), keys=keys), Change(bases={group_id: row}), puts(row))
        return Planned(Action.DELTA_COMMIT, Footprint(appends=(group_id,), keys=keys), Change(logs=[(group_id, row)]), puts(row))

    return Op(f"put {key} at {number}{' first' if first else ''}", plan)


def move(key: int, number: int) -> Op:
    """An upsert that says in which group the key lives from now on."""

    def plan(state: State, mark: str, serializable: bool) -> Planned:
        found, group_id = state.lookup(key), at(number)
        logs: list[tuple[FileGroupId, Log]] = [] if found in (None, group_id) else [(found, {key: None})]
        logs.append((group_id, {key: (mark,)}))
        footprint = Footprint(appends=tuple(each for each, _ in logs), keys=updating(key) if found == group_id else placing(key))
        return Planned(Action.DELTA_COMMIT, footprint, Change(logs=logs), puts({key: (mark,)}))

    return Op(f"move {key} to {number}", plan)


def drop(key: int) -> Op:
    """Delete a key where the index finds it. One that it does not find counts as placed: it must be unknown at its slot too."""

    def plan(state: State, mark: str, serializable: bool) -> Planned:
        found = state.lookup(key)
        logs: list[tuple[FileGroupId, Log]] = [] if found is None else [(found, {key: None})]
        footprint = Footprint(appends=tuple(group_id for group_id, _ in logs), keys=placing(key))
        return Planned(Action.DELTA_COMMIT, footprint, Change(logs=logs), puts({key: None}))

    return Op(f"drop {key}", plan)


def add_to(key: int) -> Op:
    """Log rows computed from the row that the index finds, or placed as new."""

    def plan(state: State, mark: str, serializable: bool) -> Planned:
        found = state.lookup(key)
        log = {key: (*state.rows.get(key, ()), mark)}
        if found is None:
            footprint = Footprint(appends=(at(0),), keys=placing(key))
        else:
            footprint = Footprint(appends=(found,), rmw=(found,), keys=updating(key))
        logs = [(found or at(0), log)]
        return Planned(Action.DELTA_COMMIT, footprint, Change(logs=logs), lambda rows: {**rows, key: (*rows.get(key, ()), mark)})

    return Op(f"add to {key}", plan)


def rework(number: int) -> Op:
    """Copy-on-write update of the rows of one group."""

    def plan(state: State, mark: str, serializable: bool) -> Planned | None:
        held = state.held(state.live(number))
        keys = [key for rows in held.values() for key in rows]
        if not keys:
            return None
        bases = {group_id: {key: (*value, mark) for key, value in rows.items()} for group_id, rows in held.items()}
        footprint = Footprint(replaces=tuple(held), keys=updating(*keys))
        return Planned(Action.COMMIT, footprint, Change(bases=bases, as_of=state.slot), marks(keys, mark))

    return Op(f"rework {number}", plan)


def regroup(number: int, to: int) -> Op:
    """Clustering: the rows of one group go to a new one. Nobody lists their keys, there may be billions."""

    def plan(state: State, mark: str, serializable: bool) -> Planned | None:
        held = state.held(state.live(number))
        if not held or state.live(to):
            return None
        rows = {key: value for rows in held.values() for key, value in rows.items()}
        footprint = Footprint(retires=tuple(held), creates=(at(to),))
        return Planned(Action.REPLACE, footprint, Change(bases={at(to): rows}, retires=tuple(held)), same)

    return Op(f"regroup {number} to {to}", plan)


# Runs.


@dataclass(slots=True)
class Report:
    """What a search saw. runs: orders of plans and commits. whole: those in which every operation was admitted. admitted, refused: pairs of
    operations (candidate, later entry), by name, that came to be judged; wrong: the first run that broke the promise, as a story."""

    runs: int = 0
    whole: int = 0
    admitted: set[tuple[str, str]] = field(default_factory=set)
    refused: set[tuple[str, str]] = field(default_factory=set)
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    op: Op
    base: int
    entry: Entry
    state: State


def start_of(ops: Sequence[Op], *, bucketed: bool) -> State:
    """A state made by operations one after the other."""
    state = State(-1, Files(bucketed), {})
    for number, op in enumerate(ops):
        planned = op.plan(state, f"start{number}", False)
        assert planned is not None, op.name
        files = replay(state.files, planned.change, number)
        state = State(number, files, planned.intent(state.rows))
        assert files.read() == state.rows, op.name
    return state


def explore(start: State, ops: Sequence[Op], depth: int, *, serializable: bool) -> Report:
    """All orders in which up to `depth` operations of any kinds can plan and commit.

    An order is, for each operation in the order of commits, the slot that it planned at. An operation that is refused, or that finds
    nothing to do, ends a run: what others do without it is a run of its own. Stops at the first wrong run.
    """
    report = Report()
    for _ in _runs(start, ops, depth, [], serializable, report):
        if report.wrong:
            break
    return report


def _runs(start: State, ops: Sequence[Op], depth: int, steps: list[Step], serializable: bool, report: Report) -> Iterator[None]:
    states = [start, *(step.state for step in steps)]
    for op in ops:
        for base, seen in enumerate(states):
            planned = _plan(seen, op, len(steps), serializable)
            if planned is None:
                continue
            report.runs += 1
            if not _judge(op, planned, steps[base:], report):
                continue
            try:
                step = _commit(op, base, planned, states[-1], start)
            except Wrong as wrong:
                story = [f"{done.op.name} (planned after {done.base} commits)" for done in steps]
                report.wrong = f"{', '.join([*story, f'{op.name} (planned after {base} commits)'])}: {wrong}"
                yield
                return
            report.whole += 1
            if depth > 1:
                yield from _runs(start, ops, depth - 1, [*steps, step], serializable, report)
                if report.wrong:
                    return
    yield


def _plan(seen: State, op: Op, number: int, serializable: bool) -> Planned | None:
    made = (op.name, number, serializable)
    if made not in seen.plans:
        seen.plans[made] = op.plan(seen, f"{number}", serializable)
    return seen.plans[made]


def _judge(op: Op, planned: Planned, later: Sequence[Step], report: Report) -> bool:
    refused = False
    for step in later:
        pair = (op.name, step.op.name)
        if find_conflicts(planned.action, {TABLE: planned.footprint}, step.entry, parse):
            report.refused.add(pair)
            refused = True
        else:
            report.admitted.add(pair)
    return not refused


def _commit(op: Op, base: int, planned: Planned, head: State, start: State) -> Step:
    slot = head.slot + 1
    files, rows = replay(head.files, planned.change, slot), planned.intent(head.rows)
    read = files.read()
    if read != rows:
        raise Wrong(f"the files read {read}, the serial execution has {rows}")
    entry = Entry(
        format=1,
        slot=slot,
        action=planned.action,
        txn=Txn(str(slot)),
        base=start.slot + base,
        committed_at_ms=slot,
        footprint={TABLE: planned.footprint},
    )
    return Step(op, base, entry, State(slot, files, rows, start))

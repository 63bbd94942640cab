"""The conflict rules: pure functions of footprints, in one table.

A rule compares two operations on one table: an attempt, and an entry that was committed after the attempt's base. It compares file groups
by the keys that they may hold. Two file groups may hold the same key when their partitions are equal and their buckets are equal modulo the
greatest common divisor of their bucket counts. So no rule needs to know which splits lie between two footprints.

`Footprint` has three special cases:
- A compaction replaces what it saw, as of its base, by the same rows. Later log rows stay on top. So it changes no rows.
- A split names a partition and no file groups. It divides the file groups of the partition, whatever they hold at the split's own slot. So
  it changes no rows either.
- An overwritten or read partition includes all partitions below it, also those that did not exist yet. The empty text is the whole table.

What happens then: `objcat.timeline.commit` asks for the conflicts when a slot is lost, and without one tries the next slot. With one,
`objcat.write.transaction` rewrites the file groups in conflict and tries again, and `objcat.write.service_commit` plans a table service
again. Where neither can help, or after the limits of `objcat.timeline.attempt.CommitRetryPolicy` (100 rewrites), the caller gets
CommitConflict: nothing is visible and the files of the attempt are deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import TypeAlias

from objcat.timeline.entry import Action, Digests, Entry, FileGroupId, Footprint, Keys

DigestsOf: TypeAlias = Callable[[Digests], frozenset[int] | None]
"""Reads a set of digests. None when the object that held them is gone."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why an attempt conflicts.

    Args:
        rule: A sentence in which "it" is the attempt and "the other commit" is the later entry.
        group_ids: File groups of the attempt that both touched. The attempt may repeat its work in these, above the later entry, and keep
            the rest. This requires that its work in one file group does not depend on rows of another. Empty: file groups do not matter,
            and only a new plan helps.
        table: Its id.
    """

    rule: str
    group_ids: tuple[FileGroupId, ...]
    table: str = ""

    @property
    def is_of_rows_read(self) -> bool:
        """Whether it is only about rows that the attempt has read. Who knows which these are may find that they are the same."""
        return RULES.get(self.rule) in (computed_from_changed, read_changed)


@dataclass(frozen=True, slots=True)
class ConflictSide:
    """What one operation did to one table. digests_of: reads the keys that it names."""

    action: Action
    footprint: Footprint
    digests_of: DigestsOf

    @property
    def rewritten(self) -> tuple[FileGroupId, ...]:
        """File groups whose files it replaced or ended."""
        return (*self.footprint.replaces, *self.footprint.retires)

    @property
    def changed(self) -> tuple[FileGroupId, ...]:
        """File groups whose rows it changed. A compaction replaces rows by the same rows."""
        own = self.footprint
        return (*own.creates, *own.appends, *own.retires, *(() if self.action is Action.COMPACTION else own.replaces))

    @property
    def written(self) -> tuple[FileGroupId, ...]:
        """File groups whose files or log rows it wrote or ended."""
        own = self.footprint
        return (*own.creates, *own.appends, *own.replaces, *own.retires)


Rule: TypeAlias = Callable[[ConflictSide, ConflictSide], tuple[FileGroupId, ...] | None]
"""Judges an attempt against a later entry. None: no conflict. Else the file groups of the attempt to repeat; none of them: plan again."""

PLAN_AGAIN: tuple[FileGroupId, ...] = ()
ERASED = "it was planned below an erasure, and the log no longer holds what the other commit did in partitions that are now empty"


def find_conflicts(
    action: Action, candidate: Mapping[str, Footprint], entry: Entry, digests_of: Callable[[Digests], frozenset[int] | None]
) -> Sequence[Conflict]:
    """Every rule that an entry committed after the attempt's base breaks; none when there is no conflict.

    Args:
        action: Of the attempt.
        candidate: Its footprints by table id. All its reads were at its base.
        entry: The later entry.
        digests_of: Reads a set of digests. Called only when two such sets really race. None means that the object is gone; this is a
            conflict, since nobody can say which keys they were.
    """
    found = []
    for table, footprint in candidate.items():
        later = entry.footprint.get(table)
        if later is None:
            continue
        mine, theirs = ConflictSide(action, footprint, digests_of), ConflictSide(entry.action, later, digests_of)
        if entry.erased.get(table):
            found.append(Conflict(ERASED, _all_or_again(mine), table))
            continue
        for sentence, rule in RULES.items():
            group_ids = rule(mine, theirs)
            if group_ids is not None:
                found.append(Conflict(sentence, group_ids, table))
    return found


def _all_or_again(mine: ConflictSide) -> tuple[FileGroupId, ...]:
    """All file groups that the attempt touched, if its work can be expressed in file groups."""
    own = mine.footprint
    if own.overwrites or own.read_partitions or own.splits or own.schema is not None:
        return PLAN_AGAIN
    return tuple(dict.fromkeys((*mine.written, *own.rmw, *own.reads)))


# Files and log rows of file groups.


def both_rewrote(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """Both replace or end one file group. The second does not know the first, whichever is a compaction."""
    return _common(mine.rewritten, later.rewritten)


def both_created(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """A file group has one base file, below all its log rows. Log rows that create a file group are appended to the live one, if any."""
    return _common(mine.footprint.creates, (*later.footprint.creates, *later.footprint.appends))


def created_with_another_count(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """The first write in a partition fixes its bucket count.

    Base files made for another count do not fit. Log rows are assigned to buckets again. Log rows of a later entry that were planned before
    a split the attempt has seen look the same; then the attempt repeats work in vain.
    """
    creates = mine.footprint.creates
    if not creates:
        return None
    counts: dict[str, set[int]] = {}
    for group_id in (*later.footprint.creates, *later.footprint.appends):
        counts.setdefault(group_id.partition, set()).add(group_id.bucket_count)
    return tuple(group_id for group_id in creates if counts.get(group_id.partition, set()) - {group_id.bucket_count}) or None


def rewrote_appended(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """It would drop log rows that it never saw, or put them above newer ones. A compaction does neither: it is as of its base."""
    own = mine.footprint
    return _common(own.retires if mine.action is Action.COMPACTION else mine.rewritten, later.footprint.appends)


def appended_to_retired(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """The keys of an ended file group may be stored elsewhere now."""
    return _common(mine.footprint.appends, later.footprint.retires)


def wrote_for_a_stale_count(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """A split assigns log rows to buckets again, but neither base files nor the end of a file group."""
    splits = later.footprint.splits
    if not splits:
        return None
    files = (*mine.footprint.creates, *mine.rewritten)
    return _distinct(group_id for group_id in files if splits.get(group_id.partition, group_id.bucket_count) != group_id.bucket_count)


def split_unseen(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """A split divides the file groups that it saw, and log rows are assigned to buckets again.

    So it conflicts with every base file that appeared: the first one of a file group, and a rewritten one, since the file group may have
    begun with log rows that the split did not see. It conflicts with the end of file groups too. Planning again costs nothing.
    """
    splits = mine.footprint.splits
    if not splits:
        return None
    theirs = later.footprint
    touched = {*theirs.splits, *(group_id.partition for group_id in (*theirs.creates, *theirs.replaces, *theirs.retires))}
    if not touched.isdisjoint(splits) or _is_any_below(splits, theirs.overwrites):
        return PLAN_AGAIN
    return None


def computed_from_changed(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """It computed what it appended from rows that are not the newest: an update would be lost."""
    return _merge(_common(mine.footprint.rmw, later.changed), _below(mine.footprint.rmw, later.footprint.overwrites))


def overwrote_written(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """A writer that replaces a whole partition decided so by its old content."""
    partitions = mine.footprint.overwrites
    if not partitions:
        return None
    touched = {group_id.partition for group_id in later.changed}
    theirs = later.footprint.overwrites
    if _is_any_below(touched, partitions) or _is_any_below(theirs, partitions) or _is_any_below(partitions, theirs):
        return PLAN_AGAIN
    return None


def wrote_in_overwritten(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """The rows that it replaces are gone, and its new rows were meant for rows that are gone."""
    return _below(mine.written, later.footprint.overwrites)


# Keys, and reads.


def placed_one_key(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """Two operations must not insert, move or delete the same key, under an index that stores locations.

    Nor may one of them update a key where the other one moves or deletes it. The digests do not say which file group holds the key, so all
    file groups are repeated.
    """
    own, theirs = mine.footprint.keys or Keys(), later.footprint.keys or Keys()
    for ours, others in ((own.placed, theirs.placed), (own.placed, theirs.updated), (own.updated, theirs.placed)):
        if not ours.count or not others.count:
            continue
        digests, own_digests = later.digests_of(others), mine.digests_of(ours)
        if digests is None or own_digests is None or not own_digests.isdisjoint(digests):
            return tuple(dict.fromkeys((*mine.written, *mine.footprint.reads)))
    return None


def read_changed(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """Its outcome depends on rows that are not the newest: at its own slot the outcome would differ."""
    reads, partitions = mine.footprint.reads, mine.footprint.read_partitions
    if not reads and not partitions:
        return None
    theirs = later.footprint.overwrites
    if _below(later.changed, partitions) or _is_any_below(theirs, partitions) or _is_any_below(partitions, theirs):
        return PLAN_AGAIN
    return _merge(_common(reads, later.changed), _below(reads, theirs))


# The table as a whole.

_UNDONE_BY_RESTORE = frozenset({Action.COMMIT, Action.DELTA_COMMIT, Action.REPLACE, Action.COMPACTION, Action.SCHEMA, Action.CLOSE})


def wrote_before_restore(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """It was planned from a state that a RESTORE took back. A RESTORE itself sets a state over any writer, so it conflicts with none."""
    return PLAN_AGAIN if later.footprint.restores is not None and mine.action in _UNDONE_BY_RESTORE else None


def cleaned_what_was_kept(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """A CLEAN chose its files before a slot below its retention floor was saved or restored. It cleans nothing at the floor or above."""
    bound = mine.footprint.bound
    kept = (later.footprint.saves, later.footprint.restores)
    return PLAN_AGAIN if bound is not None and any(slot is not None and slot < bound for slot in kept) else None


def kept_what_was_cleaned(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """The slot may have lost its files, or the savepoint that protected them. If it is still saved, the next plan finds it so."""
    bound, released = later.footprint.bound, later.footprint.releases
    for slot in (mine.footprint.saves, mine.footprint.restores):
        if slot is not None and (slot == released or (bound is not None and slot < bound)):
            return PLAN_AGAIN
    return None


def released_what_was_saved(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """The release of a savepoint does not mean a savepoint that was made after it was planned."""
    released = mine.footprint.releases
    return PLAN_AGAIN if released is not None and released == later.footprint.saves else None


def both_changed_the_schema(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """Each change starts from the schema before it. Two changes of one schema would assign one column id twice."""
    return PLAN_AGAIN if mine.footprint.schema is not None and later.footprint.schema is not None else None


def schema_needs_changed_rows(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """The schema change was allowed because of the rows that were there."""
    schema = mine.footprint.schema
    needs_data = schema is not None and schema.needs_data
    return PLAN_AGAIN if needs_data and (later.changed or later.footprint.overwrites) else None


def wrote_against_the_schema(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """The schema change was allowed because no row was like those that the attempt may add."""
    schema = later.footprint.schema
    needs_data = schema is not None and schema.needs_data
    return PLAN_AGAIN if needs_data and (mine.written or mine.footprint.overwrites) else None


def wrote_to_the_dropped(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """A dropped table takes only the RESTORE that undrops it, and the ROLLBACK of a dead writer."""
    return PLAN_AGAIN if later.action is Action.CLOSE and mine.action not in (Action.RESTORE, Action.ROLLBACK) else None


# The names of a catalog.


def both_named(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """Of two operations that give or take one name, exactly one may win. The other has to look again."""
    own, theirs = mine.footprint, later.footprint
    return None if {*own.binds, *own.unbinds}.isdisjoint((*theirs.binds, *theirs.unbinds)) else PLAN_AGAIN


def needed_the_emptied(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """A name in a dropped namespace could not be reached."""
    return None if set(mine.footprint.needs).isdisjoint(later.footprint.empties) else PLAN_AGAIN


def emptied_the_needed(mine: ConflictSide, later: ConflictSide) -> tuple[FileGroupId, ...] | None:
    """A namespace that got a name is not empty."""
    return None if set(mine.footprint.empties).isdisjoint(later.footprint.needs) else PLAN_AGAIN


RULES: Mapping[str, Rule] = {
    "both rewrote or removed the files of one bucket": both_rewrote,
    "both wrote the first rows of a bucket, one of them as a base file": both_created,
    "it wrote base files for another bucket count than the first rows of the partition have": created_with_another_count,
    "it rewrote or removed files of a bucket to which the other commit added rows": rewrote_appended,
    "it added rows to a bucket whose files the other commit removed": appended_to_retired,
    "it wrote files for a bucket count that the other commit changed by a split": wrote_for_a_stale_count,
    "it split a partition in which the other commit wrote base files, removed some, or split them": split_unseen,
    "it computed new rows from rows that the other commit changed": computed_from_changed,
    "it overwrote a partition in which the other commit wrote": overwrote_written,
    "it wrote in a partition that the other commit overwrote": wrote_in_overwritten,
    "both wrote the same key, and at least one of them inserted, moved or deleted it": placed_one_key,
    "it read rows that the other commit changed": read_changed,
    "it was planned before the other commit restored the table to an earlier state": wrote_before_restore,
    "it would clean the slot of a savepoint or of a restore that the other commit needs": cleaned_what_was_kept,
    "it needs a slot that the other commit gave up to be cleaned": kept_what_was_cleaned,
    "it gave up a savepoint that the other commit made": released_what_was_saved,
    "both changed the schema": both_changed_the_schema,
    "it changed the schema in a way that depends on the rows, and the other commit changed rows": schema_needs_changed_rows,
    "it wrote rows, and the other commit changed the schema in a way that depends on the rows": wrote_against_the_schema,
    "the other commit dropped the table": wrote_to_the_dropped,
    "both gave or took the same name": both_named,
    "it needs a namespace that the other commit dropped": needed_the_emptied,
    "it dropped a namespace that the other commit needs": emptied_the_needed,
}
"""Each rule, with the sentence that the user reads when it is broken."""


def _common(mine: Sequence[FileGroupId], theirs: Sequence[FileGroupId]) -> tuple[FileGroupId, ...] | None:
    """My file groups that may hold a key of one of their file groups; None when there is none. Linear in both."""
    if not mine or not theirs:
        return None
    partitions = {group_id.partition for group_id in mine}
    buckets: dict[str, dict[int, set[int]]] = {}
    for group_id in theirs:
        if group_id.partition in partitions:
            buckets.setdefault(group_id.partition, {}).setdefault(group_id.bucket_count, set()).add(group_id.bucket)
    residues: dict[tuple[str, int], list[tuple[int, set[int]]]] = {}
    found = []
    for group_id in mine:
        by_count = buckets.get(group_id.partition)
        if by_count is None:
            continue
        tests = residues.get((group_id.partition, group_id.bucket_count))
        if tests is None:
            divisors = [(gcd(count, group_id.bucket_count), others) for count, others in by_count.items()]
            tests = residues[group_id.partition, group_id.bucket_count] = [(d, {bucket % d for bucket in others}) for d, others in divisors]
        if any(group_id.bucket % divisor in others for divisor, others in tests):
            found.append(group_id)
    return _distinct(found)


def _below(group_ids: Iterable[FileGroupId], partitions: Sequence[str]) -> tuple[FileGroupId, ...] | None:
    """The file groups in one of the partitions, or below one; None when there is none."""
    if not partitions:
        return None
    wanted = frozenset(partitions)
    verdicts: dict[str, bool] = {}
    found = []
    for group_id in group_ids:
        verdict = verdicts.get(group_id.partition)
        if verdict is None:
            verdict = verdicts[group_id.partition] = _is_below(group_id.partition, wanted)
        if verdict:
            found.append(group_id)
    return _distinct(found)


def _is_any_below(partitions: Iterable[str], ancestors: Iterable[str]) -> bool:
    wanted = frozenset(ancestors)
    return bool(wanted) and any(_is_below(partition, wanted) for partition in partitions)


def _is_below(partition: str, ancestors: frozenset[str]) -> bool:
    """Whether the partition is one of the ancestors, or lies below one: `year=2026/month=1` lies below `year=2026`, and all below ``."""
    if partition in ancestors or "" in ancestors:
        return True
    return any(partition[:end] in ancestors for end, letter in enumerate(partition) if letter == "/")


def _merge(*found: tuple[FileGroupId, ...] | None) -> tuple[FileGroupId, ...] | None:
    return _distinct(group_id for group_ids in found if group_ids for group_id in group_ids)


def _distinct(group_ids: Iterable[FileGroupId]) -> tuple[FileGroupId, ...] | None:
    return tuple(dict.fromkeys(group_ids)) or None

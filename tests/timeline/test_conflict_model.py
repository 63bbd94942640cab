"""What the conflict rules admit reads as the serial execution: all orders of plans and commits of operations of every kind.

What is promised. *Serializable*: a run of admitted operations reads exactly as their serial execution in slot order. *Snapshot* (default):
the same, except that what an operation wrote from rows which it only read is computed from its base. So no update is lost, under either,
and write skew is possible under snapshot isolation alone. There, an operation on all rows of a bucket leaves out a bucket that was not
live at its base.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pytest

from objcat.timeline import conflicts
from objcat.timeline.conflicts import RULES, ConflictSide, Rule
from objcat.timeline.entry import Action, Digests, FileGroupId, Footprint
from tests.timeline import conflict_model as model
from tests.timeline import test_conflicts as by_hand
from tests.timeline.conflict_model import Op, Report, explore, start_of

# Kinds of operations that are tried in threes in every run; the others in twos, and in threes behind --all.
BUCKET_CORE = (
    model.upsert(0),
    model.upsert(0, 1),
    model.delete(0),
    model.insert(0, 1),
    model.insert(2, count=4),
    model.increment(0),
    model.rewrite(0),
    model.compact(),
    model.split(4),
    model.cluster(0),
    model.remove(0),
    model.overwrite(0, listed=True),
    model.restore(),
    model.copy(0, 1),
)
BUCKET_OPS = (
    *BUCKET_CORE,
    model.upsert(2),
    model.insert(0),
    model.insert(1, count=4),
    model.increment(2),
    model.rewrite(1),
    model.compact(0),
    model.split(3),
    model.overwrite(1, listed=False),
    model.copy(1, 0),
    model.count_into(3),
)
INDEX_CORE = (
    model.put(0, 0),
    model.put(0, 2, first=True),
    model.put(1, 1),
    model.move(0, 1),
    model.move(0, 0),
    model.drop(0),
    model.add_to(0),
    model.rework(0),
    model.compact(),
    model.regroup(0, 3),
    model.overwrite(0, listed=True),
    model.restore(),
)
INDEX_OPS = (
    *INDEX_CORE,
    model.put(0, 1),
    model.put(1, 0),
    model.put(1, 1, first=True),
    model.move(0, 2),
    model.drop(1),
    model.rework(1),
    model.compact(0),
    model.regroup(0, 2),
    model.remove(0),
    model.overwrite(1, listed=False),
)
BUCKET_STARTS: Mapping[str, Sequence[Op]] = {
    "nothing": (),
    "base files": (model.insert(0, 1),),
    "log rows": (model.upsert(0),),
    "both": (model.insert(0), model.upsert(0, 2)),
    "after a split": (model.insert(0, 1), model.upsert(2), model.split(4)),
}
INDEX_STARTS: Mapping[str, Sequence[Op]] = {
    "nothing": (),
    "one row": (model.put(0, 0, first=True),),
    "log rows": (model.put(0, 0),),
    "moved": (model.put(0, 0, first=True), model.put(1, 1), model.move(1, 0)),
    "a tombstone": (model.put(0, 0, first=True), model.put(1, 1), model.drop(0)),
}


@dataclass(frozen=True)
class World:
    """Where runs begin, and what may happen in them."""

    name: str
    start: Sequence[Op]
    core: Sequence[Op]
    ops: Sequence[Op]
    bucketed: bool
    serializable: bool = False

    def explore(self, depth: int, *, ops: Sequence[Op] | None = None) -> Report:
        start = start_of(self.start, bucketed=self.bucketed)
        return explore(start, self.ops if ops is None else ops, depth, serializable=self.serializable)


WORLDS = [
    *(World(f"buckets, {name}", start, BUCKET_CORE, BUCKET_OPS, True) for name, start in BUCKET_STARTS.items()),
    *(World(f"index, {name}", start, INDEX_CORE, INDEX_OPS, False) for name, start in INDEX_STARTS.items()),
    *(World(f"serializable, {name}", start, BUCKET_CORE, BUCKET_OPS, True, True) for name, start in BUCKET_STARTS.items()),
]
worlds = pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)


@worlds
def test_two_operations_of_every_kind_in_all_orders(world: World) -> None:
    check(world, world.explore(2), runs_min=500)


@worlds
def test_three_operations_in_all_orders(world: World) -> None:
    check(world, world.explore(3, ops=world.core), runs_min=3_500)


@worlds
@pytest.mark.tier("all")
def test_three_operations_of_every_kind_in_all_orders(world: World) -> None:
    check(world, world.explore(3), runs_min=15_000)


@worlds
@pytest.mark.tier("all")
@pytest.mark.timeout(900)
def test_four_operations_in_all_orders(world: World) -> None:
    check(world, world.explore(4, ops=world.core), runs_min=80_000)


def check(world: World, report: Report, *, runs_min: int) -> None:
    print(f"{world.name}: {report.runs} runs, in {report.whole} of them everything was admitted")
    assert not report.wrong
    assert report.runs >= runs_min
    assert report.whole >= report.runs * 0.45, "rules that refuse everything prove nothing"


# Pairs that may never conflict, whatever came before, by the names of their operations.
BLIND = {"upsert (0,)", "upsert (0, 1)", "upsert (2,)", "delete 0"}
SERVICES = {"compact all", "compact 0", "split 4", "split 3"}
COMPACTIONS = {"compact all", "compact 0"}
COMPUTED = {"increment 0", "increment 2", "copy 0 to 1", "copy 1 to 0", "count into 3"}
NEVER = {
    *((one, two) for one in BLIND for two in BLIND | SERVICES | COMPUTED),
    *((one, two) for one in COMPACTIONS for two in BLIND | COMPUTED),
    *((one, two) for one in ("split 4", "split 3") for two in BLIND | COMPUTED),
    *((one, two) for one in COMPUTED for two in SERVICES),
    *(("restore", two.name) for two in BUCKET_OPS),
}
# Those that touch different buckets of one partition.
APART = {
    ("increment 0", "copy 0 to 1"),
    ("rewrite 0", "rewrite 1"),
    ("compact 0", "rewrite 1"),
    ("rewrite 1", "insert (0,)/2"),
    ("cluster 0", "rewrite 1"),
}


@worlds
def test_what_may_never_conflict_is_never_refused(world: World) -> None:
    report = world.explore(2)
    pairs = NEVER | (set() if world.serializable else APART)
    assert not report.refused & pairs
    if world.name == "buckets, base files":
        assert report.admitted >= pairs


def test_write_skew_is_possible_under_snapshot_isolation_alone() -> None:
    skew = (model.copy(0, 1), model.copy(1, 0))
    world = next(world for world in WORLDS if world.name == "buckets, base files")
    assert ("copy 0 to 1", "copy 1 to 0") in world.explore(2, ops=skew).admitted
    report = dataclasses.replace(world, serializable=True).explore(2, ops=skew)
    assert {("copy 0 to 1", "copy 1 to 0"), ("copy 1 to 0", "copy 0 to 1")} <= report.refused


# The model must be able to fail: every rule is taken out of the table, then every part of a footprint that a rule looks at.

UNSEEN: Mapping[str, Callable[[], None]] = {
    "cleaned_what_was_kept": lambda: by_hand.test_restore_or_savepoint_onto_files_that_clean_is_about_to_delete_and_the_reverse(
        Footprint(restores=4), 5, True
    ),
    "kept_what_was_cleaned": lambda: by_hand.test_restore_or_savepoint_onto_files_that_clean_is_about_to_delete_and_the_reverse(
        Footprint(saves=4), 5, True
    ),
    "released_what_was_saved": by_hand.test_a_savepoint_that_is_given_up_keeps_nothing,
    "both_changed_the_schema": by_hand.test_two_changes_of_one_schema_with_one_field_id,
    "schema_needs_changed_rows": lambda: by_hand.test_cell("notnull", "upsert", by_hand.h(0), True),
    "wrote_against_the_schema": lambda: by_hand.test_cell("upsert", "notnull", by_hand.h(0), True),
    "wrote_to_the_dropped": lambda: by_hand.test_drop_of_a_table_while_a_writer_commits("upsert"),
    "both_named": lambda: by_hand.test_exactly_one_of_two_that_give_or_take_one_name_wins(Footprint(binds=("n",)), Footprint(binds=("n",))),
    "needed_the_emptied": by_hand.test_create_in_a_namespace_that_is_being_dropped,
    "emptied_the_needed": by_hand.test_create_in_a_namespace_that_is_being_dropped,
}
"""Rules of what the model does not have, with the test that sees each of them missing."""


def found_wrong() -> str:
    """The shortest wrong run with the rules as they are, over all worlds; none: empty."""
    for depth in (2, 3):
        for world in WORLDS:
            wrong = world.explore(depth, ops=world.ops if depth == 2 else world.core).wrong
            if wrong:
                return wrong
    return ""


@pytest.mark.parametrize("name", sorted({rule.__name__ for rule in RULES.values()} - UNSEEN.keys()))
def test_a_run_goes_wrong_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "RULES", {sentence: rule for sentence, rule in RULES.items() if rule.__name__ != name})
    wrong = found_wrong()
    print(wrong)
    assert wrong


@pytest.mark.parametrize("name", sorted(UNSEEN))
def test_a_case_by_hand_goes_wrong_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    UNSEEN[name]()
    monkeypatch.setattr(conflicts, "RULES", {sentence: rule for sentence, rule in RULES.items() if rule.__name__ != name})
    with pytest.raises(AssertionError):
        UNSEEN[name]()


SIDES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    # rule: parts of the candidate's footprint, parts of the later one's
    "both_rewrote": (("replaces", "retires"), ("replaces", "retires")),
    "both_created": (("creates",), ("creates", "appends")),
    "created_with_another_count": (("creates",), ("creates", "appends")),
    "rewrote_appended": (("replaces", "retires"), ("appends",)),
    "appended_to_retired": (("appends",), ("retires",)),
    "wrote_for_a_stale_count": (("creates", "replaces", "retires"), ("splits",)),
    "split_unseen": (("splits",), ("creates", "replaces", "splits")),
    "computed_from_changed": (("rmw",), ("creates", "appends", "replaces")),
    "overwrote_written": (("overwrites",), ("creates", "appends")),
    "wrote_in_overwritten": (("replaces",), ("overwrites",)),
    "placed_one_key": (("placed", "updated"), ("placed", "updated")),
    "read_changed": (("reads", "read_partitions"), ("creates", "appends", "replaces", "retires")),
    "wrote_before_restore": ((), ("restores",)),
}
# Parts that other rules, or the order of slots, make harmless in the model. They are there so that an overwrite, a split and what was
# computed are judged alike however somebody writes them down. The cells by hand see them.
BELT: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "split_unseen": ((), ("retires", "overwrites")),
    "computed_from_changed": ((), ("retires", "overwrites")),
    "overwrote_written": ((), ("replaces", "retires", "overwrites")),
    "wrote_in_overwritten": (("creates", "appends", "retires"), ()),
    "read_changed": ((), ("overwrites",)),
}


def parts(table: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> list[tuple[str, bool, str]]:
    return [
        (name, later, field)
        for name, sides in table.items()
        for later, fields in zip((False, True), sides, strict=True)
        for field in fields
    ]


def blinded(name: str, *, later: bool, field: str) -> dict[str, Rule]:
    """The rules, one of which does not see a part of one footprint."""

    def blind(part: ConflictSide) -> ConflictSide:
        own = part.footprint
        if field in ("placed", "updated"):
            change = {"keys": own.keys and msgspec.structs.replace(own.keys, **{field: Digests()})}
        else:
            change = {field: getattr(Footprint(), field)}
        return dataclasses.replace(part, footprint=msgspec.structs.replace(own, **change))

    def wrap(rule: Rule) -> Rule:
        return lambda mine, theirs: rule(mine, blind(theirs)) if later else rule(blind(mine), theirs)

    return {sentence: wrap(rule) if rule.__name__ == name else rule for sentence, rule in RULES.items()}


@pytest.mark.parametrize(("name", "later", "field"), parts(SIDES))
def test_a_run_goes_wrong_without_looking_at(name: str, later: bool, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "RULES", blinded(name, later=later, field=field))
    assert found_wrong()


@pytest.mark.parametrize(("name", "later", "field"), parts(BELT))
def test_a_cell_changes_without_looking_at(name: str, later: bool, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def verdicts() -> list[set[str]]:
        cells = [(by_hand.KINDS[mine](by_hand.h(0)), by_hand.KINDS[theirs](group_id)) for mine, theirs, group_id in cell_values()]
        emptied = (Action.REPLACE, Footprint(overwrites=("p",)))
        cells += [(kind(by_hand.h(0)), emptied) for kind in by_hand.KINDS.values()]
        return [{overlap.rule for overlap in by_hand.judge(*cell)} for cell in cells]

    before = verdicts()
    monkeypatch.setattr(conflicts, "RULES", blinded(name, later=later, field=field))
    assert verdicts() != before


def cell_values() -> Iterator[tuple[str, str, FileGroupId]]:
    for cell in by_hand.CELLS:
        mine, theirs, group_id, _ = cell.values
        assert isinstance(group_id, FileGroupId)
        yield str(mine), str(theirs), group_id


def test_a_run_goes_wrong_when_groups_are_compared_by_the_smaller_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts that do not divide each other need their greatest common divisor: key 3 lives in bucket 1 of 2, and in bucket 0 of 3."""
    world = World("", (model.insert(0, 1),), (), (model.increment(3), model.upsert(3), model.split(3)), bucketed=True)
    assert not world.explore(3).wrong
    monkeypatch.setattr(conflicts, "gcd", min)
    assert world.explore(3).wrong


@pytest.mark.parametrize("action", sorted(conflicts._UNDONE_BY_RESTORE - {"SCHEMA", "CLOSE"}))
def test_a_run_goes_wrong_when_a_restore_does_not_concern(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "_UNDONE_BY_RESTORE", conflicts._UNDONE_BY_RESTORE - {action})
    assert found_wrong()

"""The conflict rules, cell by cell: every kind of operation against every other, with verdicts that were written by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import msgspec
import pytest

from objcat.timeline.conflicts import RULES, Conflict, find_conflicts
from objcat.timeline.entry import Action, Digests, Entry, FileGroupId, Footprint, Keys, SchemaChange, Txn
from objcat.timeline.log_state import LogState

TABLE = "t"
DELTA, COMMIT, REPLACE, COMPACTION = Action.DELTA_COMMIT, Action.COMMIT, Action.REPLACE, Action.COMPACTION


def no_digests(digests: Digests) -> frozenset[int] | None:
    raise AssertionError("nobody may ask for keys unless two sets of them race")


def h(bucket: int, count: int = 4, partition: str = "p") -> FileGroupId:
    return FileGroupId(partition, bucket, count)


def entry(action: Action, footprint: Footprint, *, table: str = TABLE, slot: int = 9) -> Entry:
    return Entry(format=1, slot=slot, action=action, txn=Txn("later"), base=-1, committed_at_ms=1, footprint={table: footprint})


def judge(
    mine: tuple[Action, Footprint], later: tuple[Action, Footprint], digests_of: Callable[[Digests], frozenset[int] | None] = no_digests
) -> list[Conflict]:
    """All that a candidate breaks against one later entry."""
    return list(find_conflicts(mine[0], {TABLE: mine[1]}, entry(*later), digests_of))


def rules(found: list[Conflict]) -> set[str]:
    """The names of the broken rules."""
    return {RULES[overlap.rule].__name__ for overlap in found}


# Every kind of operation, in a file group of partition p (or of another one) and, where it reads, writing in a partition of its own.
KINDS: Mapping[str, Callable[[FileGroupId], tuple[Action, Footprint]]] = {
    "upsert": lambda group_id: (DELTA, Footprint(appends=(group_id,))),
    "update": lambda group_id: (DELTA, Footprint(appends=(group_id,), rmw=(group_id,))),
    "insert": lambda group_id: (DELTA, Footprint(creates=(group_id,))),
    "rewrite": lambda group_id: (COMMIT, Footprint(replaces=(group_id,))),
    "compact": lambda group_id: (COMPACTION, Footprint(replaces=(group_id,))),
    "split": lambda group_id: (REPLACE, Footprint(splits={group_id.partition: 2 * group_id.bucket_count})),
    "cluster": lambda group_id: (REPLACE, Footprint(retires=(group_id,), creates=(group_id,))),
    "remove": lambda group_id: (REPLACE, Footprint(retires=(group_id,))),
    "overwr.": lambda group_id: (REPLACE, Footprint(overwrites=(group_id.partition,), creates=(group_id,))),
    "read": lambda group_id: (DELTA, Footprint(reads=(group_id,), appends=(FileGroupId("own", 0, 4),))),
    "readp": lambda group_id: (DELTA, Footprint(read_partitions=(group_id.partition,), appends=(FileGroupId("own", 0, 4),))),
    "schema": lambda group_id: (Action.SCHEMA, Footprint(schema=SchemaChange(columns=(7,)))),
    "notnull": lambda group_id: (Action.SCHEMA, Footprint(schema=SchemaChange(columns=(7,), needs_data=True))),
    "clean": lambda group_id: (Action.CLEAN, Footprint(bound=5)),
    "save": lambda group_id: (Action.SAVEPOINT, Footprint(saves=3)),
    "release": lambda group_id: (Action.SAVEPOINT, Footprint(releases=2)),
    "restore": lambda group_id: (Action.RESTORE, Footprint(restores=3)),
    "close": lambda group_id: (Action.CLOSE, Footprint()),
    "fence": lambda group_id: (Action.ROLLBACK, Footprint()),
}

# Rows: the candidate. Columns: the entry that was committed after its base. x: conflict.
SAME_HOME = """
          upsert update insert rewrite compact split cluster remove overwr. read readp schema notnull clean save release restore close fence
upsert    .      .      .      .       .       .     x       x      x       .    .     .      x       .     .    .       x       x     .
update    x      x      x      x       .       .     x       x      x       .    .     .      x       .     .    .       x       x     .
insert    x      x      x      .       .       x     x       .      x       .    .     .      x       .     .    .       x       x     .
rewrite   x      x      .      x       x       x     x       x      x       .    .     .      x       .     .    .       x       x     .
compact   .      .      .      x       x       x     x       x      x       .    .     .      x       .     .    .       x       x     .
split     .      .      x      x       x       x     x       x      x       .    .     .      .       .     .    .       x       x     .
cluster   x      x      x      x       x       x     x       x      x       .    .     .      x       .     .    .       x       x     .
remove    x      x      .      x       x       x     x       x      x       .    .     .      x       .     .    .       x       x     .
overwr.   x      x      x      x       .       x     x       x      x       .    .     .      x       .     .    .       x       x     .
read      x      x      x      x       .       .     x       x      x       .    .     .      x       .     .    .       x       x     .
readp     x      x      x      x       .       .     x       x      x       .    .     .      x       .     .    .       x       x     .
schema    .      .      .      .       .       .     .       .      .       .    .     x      x       .     .    .       x       x     .
notnull   x      x      x      x       .       .     x       x      x       x    x     x      x       .     .    .       x       x     .
clean     .      .      .      .       .       .     .       .      .       .    .     .      .       .     x    .       x       x     .
save      .      .      .      .       .       .     .       .      .       .    .     .      .       x     .    .       .       x     .
release   .      .      .      .       .       .     .       .      .       .    .     .      .       .     .    .       .       x     .
restore   .      .      .      .       .       .     .       .      .       .    .     .      .       x     .    .       .       .     .
close     .      .      .      .       .       .     .       .      .       .    .     .      .       .     .    .       x       x     .
fence     .      .      .      .       .       .     .       .      .       .    .     .      .       .     .    .       .       .     .
"""
# The same for those that touch file groups or partitions, where nothing but the file group differs, and where the partition does.
OTHER_HOME = """
          upsert update insert rewrite compact split cluster remove overwr. read readp
upsert    .      .      .      .       .       .     .       .      x       .    .
update    .      .      .      .       .       .     .       .      x       .    .
insert    .      .      .      .       .       x     .       .      x       .    .
rewrite   .      .      .      .       .       x     .       .      x       .    .
compact   .      .      .      .       .       x     .       .      x       .    .
split     .      .      x      x       x       x     x       x      x       .    .
cluster   .      .      .      .       .       x     .       .      x       .    .
remove    .      .      .      .       .       x     .       .      x       .    .
overwr.   x      x      x      x       .       x     x       x      x       .    .
read      .      .      .      .       .       .     .       .      x       .    .
readp     x      x      x      x       .       .     x       x      x       .    .
"""
OTHER_PARTITION = """
          upsert update insert rewrite compact split cluster remove overwr. read readp
upsert    .      .      .      .       .       .     .       .      .       .    .
update    .      .      .      .       .       .     .       .      .       .    .
insert    .      .      .      .       .       .     .       .      .       .    .
rewrite   .      .      .      .       .       .     .       .      .       .    .
compact   .      .      .      .       .       .     .       .      .       .    .
split     .      .      .      .       .       .     .       .      .       .    .
cluster   .      .      .      .       .       .     .       .      .       .    .
remove    .      .      .      .       .       .     .       .      .       .    .
overwr.   .      .      .      .       .       .     .       .      .       .    .
read      .      .      .      .       .       .     .       .      .       .    .
readp     .      .      .      .       .       .     .       .      .       .    .
"""


def cells(text: str) -> dict[tuple[str, str], bool]:
    heads, *lines = [line.split() for line in text.strip().splitlines()]
    for line in lines:
        assert len(line) == len(heads) + 1, line
    return {(line[0], head): cell == "x" for line in lines for head, cell in zip(heads, line[1:], strict=True)}


TABLES = {
    "same file group": (SAME_HOME, h(0)),
    "other file group": (OTHER_HOME, h(1)),
    "other partition": (OTHER_PARTITION, h(0, partition="q")),
}
CELLS = [
    pytest.param(mine, later, group_id, conflicts, id=f"{where}: {mine}, then {later}")
    for where, (text, group_id) in TABLES.items()
    for (mine, later), conflicts in cells(text).items()
]


@pytest.mark.parametrize(("mine", "later", "group_id", "conflicts"), CELLS)
def test_cell(mine: str, later: str, group_id: FileGroupId, conflicts: bool) -> None:
    found = judge(KINDS[mine](h(0)), KINDS[later](group_id))
    assert bool(found) is conflicts, found
    candidate = KINDS[mine](h(0))[1]
    own = {*candidate.creates, *candidate.appends, *candidate.replaces, *candidate.retires, *candidate.reads}
    assert all(own.issuperset(overlap.group_ids) for overlap in found)
    other_table = entry(*KINDS[later](group_id), table="another")
    assert find_conflicts(KINDS[mine](h(0))[0], {TABLE: candidate}, other_table, no_digests) == []


def test_the_tables_are_complete() -> None:
    assert set(cells(SAME_HOME)) == set(itertools.product(KINDS, KINDS))
    kinds = list(KINDS)[:11]
    assert set(cells(OTHER_HOME)) == set(cells(OTHER_PARTITION)) == set(itertools.product(kinds, kinds))


@pytest.mark.parametrize(
    ("mine", "later"), [("upsert", "upsert"), ("upsert", "compact"), ("upsert", "split"), ("compact", "upsert"), ("split", "upsert")]
)
def test_blind_appends_share_the_log_with_each_other_and_with_services_at_any_bucket_counts(mine: str, later: str) -> None:
    for ours, theirs in itertools.product([h(b, n) for n in (1, 2, 3, 4, 8) for b in range(n)], repeat=2):
        assert judge(KINDS[mine](ours), KINDS[later](theirs)) == []


def test_two_groups_are_common_exactly_when_a_key_can_live_in_both() -> None:
    counts = range(1, 9)
    hashes = range(math.lcm(*counts))
    for first, second in itertools.combinations_with_replacement(counts, 2):
        met = {(hashed % first, hashed % second) for hashed in hashes}
        for one, two in itertools.product(range(first), range(second)):
            found = judge((COMMIT, Footprint(replaces=(h(one, first),))), (COMMIT, Footprint(replaces=(h(two, second),))))
            assert bool(found) is ((one, two) in met) is h(one, first).is_common(h(two, second))


def test_the_groups_of_an_overlap_are_those_to_do_again() -> None:
    mine = Footprint(replaces=(h(0), h(1), h(2), h(0, partition="q")), creates=(h(3),))
    later = Footprint(appends=(h(2), h(3), h(1, 2, "r")), replaces=(h(1),))
    found = {RULES[overlap.rule].__name__: overlap.group_ids for overlap in judge((COMMIT, mine), (COMMIT, later))}
    assert found == {"both_rewrote": (h(1),), "rewrote_appended": (h(2),), "both_created": (h(3),)}


def test_groups_of_a_finer_count_are_named_as_the_candidate_knows_them() -> None:
    (overlap,) = judge((COMMIT, Footprint(replaces=(h(0, 8), h(1, 8), h(4, 8)))), (DELTA, Footprint(appends=(h(0, 4),))))
    assert overlap == Conflict(overlap.rule, (h(0, 8), h(4, 8)), TABLE)


def test_every_table_of_a_transaction_is_judged() -> None:
    mine = {"a": Footprint(appends=(h(0),)), "b": Footprint(replaces=(h(1),)), "c": Footprint(creates=(h(2),))}
    later = msgspec.structs.replace(entry(DELTA, Footprint()), footprint={name: Footprint(appends=(h(1), h(2))) for name in "abcd"})
    found = find_conflicts(COMMIT, mine, later, no_digests)
    assert [(overlap.table, overlap.group_ids) for overlap in found] == [("b", (h(1),)), ("c", (h(2),))]


def test_a_hundred_thousand_groups_are_compared_at_once() -> None:
    mine = Footprint(replaces=tuple(h(bucket, 65536, f"p{n}") for bucket in range(0, 65536, 2) for n in (1, 2, 3)))
    later = Footprint(appends=tuple(h(bucket, 65536, f"p{n}") for bucket in range(1, 65536, 2) for n in (1, 2, 3)))
    assert judge((COMMIT, mine), (DELTA, later)) == []
    (overlap,) = judge((COMMIT, mine), (DELTA, msgspec.structs.replace(later, appends=(*later.appends, h(70, 65536, "p2")))))
    assert overlap.group_ids == (h(70, 65536, "p2"),)


def test_sentences_say_what_happened_and_name_every_rule_once() -> None:
    assert len({rule.__name__ for rule in RULES.values()}) == len(RULES)
    assert all("it " in sentence or sentence.startswith(("both ", "the other commit ")) for sentence in RULES)
    assert not any("_" in sentence or sentence.endswith(".") for sentence in RULES)


# Attacks that earlier drafts of the protocol did not survive, as far as they are a matter of these rules.


def test_two_first_writes_to_one_bucket() -> None:
    insert, upsert = (DELTA, Footprint(creates=(h(0),))), (DELTA, Footprint(appends=(h(0),)))
    assert rules(judge(insert, insert)) == {"both_created"}
    assert rules(judge(insert, upsert)) == {"both_created"}
    assert judge(upsert, insert) == []  # its log rows join the group that is live
    assert judge(upsert, upsert) == []


@pytest.mark.parametrize("mine", [Footprint(creates=(h(0, 1),)), Footprint(creates=(h(0, 2),)), Footprint(creates=(h(1, 2),))])
@pytest.mark.parametrize("later", [Footprint(creates=(h(0, 1),)), Footprint(appends=(h(0, 1),)), Footprint(creates=(h(1, 2),))])
def test_bucket_counts_1_and_2_for_one_first_write(mine: Footprint, later: Footprint) -> None:
    (own,), theirs = mine.creates, (*later.creates, *later.appends)[0]
    both = own.is_common(theirs) or own.bucket_count != theirs.bucket_count
    found = judge((DELTA, mine), (DELTA, later))
    assert bool(found) is both
    assert all(overlap.group_ids == (own,) for overlap in found)
    assert judge((DELTA, Footprint(appends=mine.creates)), (DELTA, later)) == []  # log rows are addressed anew


def test_mixed_bucket_counts_under_one_bucket_spec() -> None:
    mine = (DELTA, Footprint(creates=(h(0, 2),)))
    assert rules(judge(mine, (DELTA, Footprint(creates=(h(1, 4),))))) == {"created_with_another_count"}
    assert rules(judge(mine, (DELTA, Footprint(appends=(h(1, 4),))))) == {"created_with_another_count"}
    assert judge(mine, (DELTA, Footprint(creates=(h(1, 4, "q"),)))) == []
    assert judge(mine, (DELTA, Footprint(creates=(h(1, 2),)))) == []


@pytest.mark.parametrize("kind", ["cluster", "remove", "overwr.", "rewrite"])
@pytest.mark.parametrize("written", [h(0), h(0, 2), h(0, 8)])
def test_clustering_or_overwrite_over_a_concurrent_append(kind: str, written: FileGroupId) -> None:
    assert judge(KINDS[kind](h(0)), KINDS["upsert"](written))


def test_append_then_split_then_clustering_of_the_children() -> None:
    upsert = (DELTA, Footprint(appends=(h(0, 4),)))
    split = (REPLACE, Footprint(splits={"p": 8}))
    children = (REPLACE, Footprint(retires=(h(0, 8), h(4, 8)), creates=(h(0, 8), h(4, 8))))
    assert judge(upsert, split) == []
    assert rules(judge(upsert, children)) == {"appended_to_retired"}
    assert {group_id for overlap in judge(children, upsert) for group_id in overlap.group_ids} == {h(0, 8), h(4, 8)}
    assert judge((DELTA, Footprint(appends=(h(1, 4),))), children) == []


@pytest.mark.parametrize("part", ["creates", "replaces", "retires"])
@pytest.mark.parametrize("action", [DELTA, COMMIT, REPLACE, COMPACTION])
def test_base_files_written_for_a_stale_bucket_count(action: Action, part: str) -> None:
    split = (REPLACE, Footprint(splits={"p": 8}))
    stale = msgspec.structs.replace(Footprint(), **{part: (h(3, 4), h(0, 4, "q"))})
    (overlap,) = judge((action, stale), split)
    assert (RULES[overlap.rule].__name__, overlap.group_ids) == ("wrote_for_a_stale_count", (h(3, 4),))
    assert judge((action, msgspec.structs.replace(Footprint(), **{part: (h(3, 8), h(0, 4, "q"))})), split) == []


def test_a_split_does_not_see_files_that_began_after_it_was_planned() -> None:
    split = (REPLACE, Footprint(splits={"p": 8}))
    assert rules(judge(split, (DELTA, Footprint(creates=(h(3, 4),))))) == {"split_unseen"}
    assert judge(split, (DELTA, Footprint(creates=(h(3, 4, "q"),)))) == []
    assert rules(judge(split, (REPLACE, Footprint(splits={"p": 16})))) == {"split_unseen"}
    assert judge(split, (REPLACE, Footprint(splits={"q": 16}))) == []
    assert rules(judge(split, (REPLACE, Footprint(overwrites=("",))))) == {"split_unseen"}
    # The group may have begun with log rows, which the split does not mind, and have got its first base file so.
    for action in (COMMIT, COMPACTION):
        assert rules(judge(split, (action, Footprint(replaces=(h(3, 4),))))) == {"split_unseen"}


@pytest.mark.parametrize("count", [2, 4, 8])
def test_two_read_modify_write_deltas_under_snapshot_isolation(count: int) -> None:
    mine = (DELTA, Footprint(appends=(h(0),), rmw=(h(0),)))
    (overlap,) = judge(mine, (DELTA, Footprint(appends=(h(0, count),), rmw=(h(0, count),))))
    assert (RULES[overlap.rule].__name__, overlap.group_ids) == ("computed_from_changed", (h(0),))


def test_rows_computed_from_an_empty_group_mind_its_first_base_file() -> None:
    assert rules(judge((DELTA, Footprint(appends=(h(0),), rmw=(h(0),))), (DELTA, Footprint(creates=(h(0),))))) == {"computed_from_changed"}


def keys(*, placed: tuple[int, ...] = (), updated: tuple[int, ...] = ()) -> Keys:
    return Keys(placed=digests(placed), updated=digests(updated))


def digests(values: tuple[int, ...]) -> Digests:
    return Digests(len(values), inline=" ".join(map(str, values)))


def parse(found: Digests) -> frozenset[int]:
    assert found.count, "an empty set need not be read"
    return frozenset(map(int, found.inline.split()))


K, L = 17, 18
RACES = [
    # mine, later, conflict
    (keys(placed=(K,)), keys(placed=(K,)), True),
    (keys(placed=(K,)), keys(updated=(K,)), True),
    (keys(updated=(K,)), keys(placed=(K,)), True),
    (keys(updated=(K,)), keys(updated=(K,)), False),
    (keys(placed=(K,), updated=(L,)), keys(placed=(L,)), True),
    (keys(placed=(K,)), keys(placed=(L,), updated=(K,)), True),
    (keys(placed=(K,), updated=(L,)), keys(updated=(L,)), False),
    (keys(placed=(K,)), keys(placed=(L,)), False),
    (keys(placed=(K,)), keys(updated=(L,)), False),
    (keys(updated=(K,)), keys(placed=(L,)), False),
    (keys(placed=(K,)), None, False),
    (None, keys(placed=(K,)), False),
    (keys(placed=(K,)), keys(), False),
    (keys(), keys(placed=(K,)), False),
]


@pytest.mark.parametrize(("mine", "later", "conflicts"), RACES)
def test_digests_of_keys(mine: Keys | None, later: Keys | None, conflicts: bool) -> None:
    found = judge((DELTA, Footprint(appends=(h(0),), keys=mine)), (DELTA, Footprint(appends=(h(1),), keys=later)), parse)
    assert rules(found) == ({"placed_one_key"} if conflicts else set())
    # Which file group the key is in is not said, so all are to be done again.
    assert all(overlap.group_ids == (h(0),) for overlap in found)


def test_digests_are_read_only_when_two_sets_race() -> None:
    one_side = (DELTA, Footprint(appends=(h(0),), keys=keys(placed=(K,), updated=(L,))))
    updates = (DELTA, Footprint(appends=(h(0),), keys=keys(updated=(L,))))
    assert judge(one_side, KINDS["upsert"](h(0))) == []
    assert judge(KINDS["upsert"](h(0)), one_side) == []
    assert judge(updates, updates) == []


@pytest.mark.parametrize("gone", [K, L])
def test_keys_that_nobody_can_read_any_more_are_a_conflict(gone: int) -> None:
    def lost(found: Digests) -> frozenset[int] | None:
        return None if parse(found) == {gone} else parse(found)

    mine, later = (DELTA, Footprint(keys=keys(placed=(K,)))), (DELTA, Footprint(keys=keys(updated=(L,))))
    assert judge(mine, later, parse) == []
    assert rules(judge(mine, later, lost)) == {"placed_one_key"}


MOVE = Footprint(appends=(h(0), h(0, partition="q")), keys=keys(placed=(K,)))
UPDATE_IN_PLACE = Footprint(appends=(h(0),), keys=keys(updated=(K,)))
DELETE = Footprint(appends=(h(0),), keys=keys(placed=(K,)))
TOMBSTONE_OF_THE_UNKNOWN = Footprint(appends=(h(3),), keys=keys(placed=(K,)))
INSERT = Footprint(creates=(h(2),), keys=keys(placed=(K,)))
COMPACTED_TOMBSTONE = Footprint(replaces=(h(0),), keys=keys(placed=(K,)))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param((DELTA, MOVE), (DELTA, UPDATE_IN_PLACE), id="a key moved by a global index while another upsert uses its old place"),
        pytest.param((DELTA, UPDATE_IN_PLACE), (DELTA, MOVE), id="a key moved while it is updated in place"),
        pytest.param((DELTA, DELETE), (DELTA, UPDATE_IN_PLACE), id="delete of a key and its index row racing an update"),
        pytest.param((COMPACTION, COMPACTED_TOMBSTONE), (DELTA, UPDATE_IN_PLACE), id="late update after a compacted delete"),
        pytest.param((DELTA, TOMBSTONE_OF_THE_UNKNOWN), (DELTA, INSERT), id="a tombstone that an index lookup does not see"),
        pytest.param((DELTA, MOVE), (DELTA, MOVE), id="two moves"),
        pytest.param((DELTA, INSERT), (DELTA, MOVE), id="insert and move"),
        pytest.param((REPLACE, msgspec.structs.replace(INSERT, overwrites=("z",))), (DELTA, INSERT), id="overwrite and insert"),
    ],
)
def test_races_for_one_key_under_an_index(first: tuple[Action, Footprint], second: tuple[Action, Footprint]) -> None:
    assert "placed_one_key" in rules(judge(first, second, parse))
    assert "placed_one_key" in rules(judge(second, first, parse))


def test_two_workers_executing_one_compaction_plan_the_older_last() -> None:
    (overlap,) = judge(KINDS["compact"](h(0)), KINDS["compact"](h(0)))
    assert (RULES[overlap.rule].__name__, overlap.group_ids) == ("both_rewrote", (h(0),))


@pytest.mark.parametrize("kept", [Footprint(saves=4), Footprint(restores=4)])
@pytest.mark.parametrize(("bound", "conflicts"), [(3, False), (4, False), (5, True)])
def test_restore_or_savepoint_onto_files_that_clean_is_about_to_delete_and_the_reverse(
    kept: Footprint, bound: int, conflicts: bool
) -> None:
    action = Action.SAVEPOINT if kept.saves else Action.RESTORE
    clean = (Action.CLEAN, Footprint(bound=bound))
    assert rules(judge(clean, (action, kept))) == ({"cleaned_what_was_kept"} if conflicts else set())
    assert rules(judge((action, kept), clean)) == ({"kept_what_was_cleaned"} if conflicts else set())


def test_a_savepoint_that_is_given_up_keeps_nothing() -> None:
    release = (Action.SAVEPOINT, Footprint(releases=4))
    for action, kept in ((Action.SAVEPOINT, Footprint(saves=4)), (Action.RESTORE, Footprint(restores=4))):
        assert rules(judge((action, kept), release)) == {"kept_what_was_cleaned"}
    assert judge((Action.RESTORE, Footprint(restores=3)), release) == []
    assert rules(judge(release, (Action.SAVEPOINT, Footprint(saves=4)))) == {"released_what_was_saved"}
    assert judge(release, (Action.SAVEPOINT, Footprint(saves=3))) == []
    assert judge(release, release) == []
    assert judge((Action.CLEAN, Footprint(bound=9)), release) == []  # it only keeps more than it must


def test_a_smaller_clean_bound_after_a_larger() -> None:
    large, small = Footprint(bound=7), Footprint(bound=5)
    assert judge((Action.CLEAN, small), (Action.CLEAN, large)) == []
    state = LogState().advance([entry(Action.CLEAN, large, slot=0), entry(Action.CLEAN, small, slot=1)])
    assert state.marks(TABLE).bound == 7


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_drop_of_a_table_while_a_writer_commits(kind: str) -> None:
    found = judge(KINDS[kind](h(0)), (Action.CLOSE, Footprint()))
    assert rules(found) == (set() if kind in ("restore", "fence") else {"wrote_to_the_dropped"})
    # The drop itself minds no writer: what they wrote is dropped with the table.
    against = judge((Action.CLOSE, Footprint()), KINDS[kind](h(0)))
    assert rules(against) == {"close": {"wrote_to_the_dropped"}, "restore": {"wrote_before_restore"}}.get(kind, set())


def test_two_changes_of_one_schema_with_one_field_id() -> None:
    add = (Action.SCHEMA, Footprint(schema=SchemaChange(columns=(7,))))
    assert rules(judge(add, add)) == {"both_changed_the_schema"}
    evolving = (DELTA, Footprint(appends=(h(0),), schema=SchemaChange(columns=(7,))))
    assert rules(judge(evolving, add)) == rules(judge(add, evolving)) == {"both_changed_the_schema"}
    assert judge(KINDS["upsert"](h(0)), add) == judge(add, KINDS["upsert"](h(0))) == []


@pytest.mark.parametrize("kind", ["upsert", "update", "insert", "rewrite", "compact", "split", "cluster", "remove", "overwr.", "read"])
def test_a_restore_under_a_running_writer(kind: str) -> None:
    restore = (Action.RESTORE, Footprint(restores=3))
    (overlap,) = judge(KINDS[kind](h(0)), restore)
    assert (RULES[overlap.rule].__name__, overlap.group_ids) == ("wrote_before_restore", ())
    assert judge(restore, KINDS[kind](h(0))) == []


def test_create_in_a_namespace_that_is_being_dropped() -> None:
    create = (COMMIT, Footprint(binds=("sales.orders",), needs=("sales",)))
    drop = (COMMIT, Footprint(unbinds=("sales",), empties=("sales",)))
    assert rules(judge(create, drop)) == {"needed_the_emptied"}
    assert rules(judge(drop, create)) == {"emptied_the_needed"}
    elsewhere = (COMMIT, Footprint(binds=("hr.people",), needs=("hr",)))
    assert judge(elsewhere, drop) == judge(drop, elsewhere) == []
    assert judge(create, elsewhere) == judge(elsewhere, create) == []


@pytest.mark.parametrize("mine", [Footprint(binds=("n",)), Footprint(unbinds=("n",)), Footprint(binds=("m",), unbinds=("n",))])
@pytest.mark.parametrize("later", [Footprint(binds=("n",)), Footprint(unbinds=("n",)), Footprint(binds=("n",), unbinds=("m",))])
def test_exactly_one_of_two_that_give_or_take_one_name_wins(mine: Footprint, later: Footprint) -> None:
    assert rules(judge((COMMIT, mine), (COMMIT, later))) == {"both_named"}


# Partitions: what overwriting and reading one mean.


@pytest.mark.parametrize(
    ("partition", "written", "touches"),
    [
        ("", "", True),
        ("", "year=2026/month=1", True),
        ("year=2026", "year=2026", True),
        ("year=2026", "year=2026/month=1", True),
        ("year=2026/month=1", "year=2026", False),
        ("year=2026", "year=20267", False),
        ("year=2026", "year=2025/month=1", False),
        ("year=2026", "", False),
    ],
)
def test_a_partition_that_is_read_or_overwritten_is_all_that_lies_below_it(partition: str, written: str, touches: bool) -> None:
    group_id = FileGroupId(written, 0, 4)
    reader = (DELTA, Footprint(read_partitions=(partition,), appends=(FileGroupId("own", 0, 4),)))
    overwrite = (REPLACE, Footprint(overwrites=(partition,)))
    for kind in ("upsert", "insert", "rewrite", "remove"):
        assert rules(judge(reader, KINDS[kind](group_id))) == ({"read_changed"} if touches else set())
        assert rules(judge(overwrite, KINDS[kind](group_id))) == ({"overwrote_written"} if touches else set())
        assert rules(judge(KINDS[kind](group_id), overwrite)) >= ({"wrote_in_overwritten"} if touches else set())
        assert bool(judge(KINDS[kind](group_id), overwrite)) is touches
    for kind in ("compact", "split"):
        assert judge(reader, KINDS[kind](group_id)) == []
        assert judge(overwrite, KINDS[kind](group_id)) == []
        assert bool(judge(KINDS[kind](group_id), overwrite)) is touches


@pytest.mark.parametrize(("mine", "later"), [("", "a=1"), ("a=1", ""), ("a=1", "a=1"), ("a=1/b=1", "a=1"), ("a=1", "a=1/b=1")])
def test_overwrites_meet_overwrites_and_reads_in_both_directions(mine: str, later: str) -> None:
    overwrite = (REPLACE, Footprint(overwrites=(later,)))
    assert rules(judge((REPLACE, Footprint(overwrites=(mine,))), overwrite)) == {"overwrote_written"}
    assert rules(judge((DELTA, Footprint(read_partitions=(mine,))), overwrite)) == {"read_changed"}
    elsewhere = judge((DELTA, Footprint(read_partitions=(mine,))), (REPLACE, Footprint(overwrites=("a=2",))))
    assert rules(elsewhere) == (set() if mine else {"read_changed"})

"""Positions of sources in a log: which values fit, which commit lands, what a RESTORE marks, what roots hold, what a commit costs."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from fileio.contract import Create, Update, Written
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, Rule, Rules
from fileio.write_outcomes import RetryPolicy
from objcat.errors import CommitConflict, CommitUnknown, CorruptTable, InvalidInput, PositionConflict, StreamRewound, UnsupportedFormat
from objcat.timeline import checkpoint, entry
from objcat.timeline.attempt import CommitAttempt
from objcat.timeline.commit import Committer
from objcat.timeline.entry import (
    POSITIONS,
    Action,
    Entry,
    Footprint,
    PositionChange,
    SideObject,
    check_writable,
    decode_entry,
    encode_entry,
    log_key,
    new_txn,
)
from objcat.timeline.log import Log
from objcat.timeline.log_state import LogState
from objcat.timeline.position import (
    STATE_BYTES_MAX,
    STATE_INLINE_BYTES_MAX,
    PositionProgress,
    SourcePosition,
    read_position,
    write_position,
)
from tests.timeline.toy import digested, grow, open_toy

TABLE = "t"


def position(since: int, state: Mapping[str, Any] | None = None, source: str = "mysql", **more: Any) -> SourcePosition:
    return SourcePosition(source=source, state={"at": since + 1} if state is None else state, since=since, **more)


def candidate(fileio: FileIO, base: LogState, own: SourcePosition, **more: Any) -> CommitAttempt:
    txn = new_txn(fileio.env)
    return CommitAttempt(
        txn=txn, action=Action.COMMIT, base=base, changes={}, footprint={}, position=write_position(fileio, txn, own), **more
    )


def known(fileio: FileIO) -> LogState:
    return LogState().advance(Log(fileio).read_after(-1))


@pytest.fixture
def memory() -> MemoryBackend:
    return MemoryBackend("positions")


@pytest.fixture
def fileio(memory: MemoryBackend) -> FileIO:
    fileio = FileIO(memory, env=FakeEnv())
    create = CommitAttempt(
        txn=new_txn(fileio.env),
        action=Action.CREATE,
        base=LogState(),
        changes={TABLE: msgspec.Raw(b"{}")},
        footprint={TABLE: Footprint()},
    )
    Committer(fileio).commit(create)
    return fileio


def put(fileio: FileIO, own: SourcePosition) -> Entry:
    return Committer(fileio).commit(candidate(fileio, known(fileio), own)).entry


def restore(fileio: FileIO, to: int) -> int:
    attempt = CommitAttempt(
        txn=new_txn(fileio.env), action=Action.RESTORE, base=known(fileio), changes={}, footprint={TABLE: Footprint(restores=to)}
    )
    return Committer(fileio).commit(attempt).entry.slot


# ---- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"": None, "a": [1, -(2**63), 2**64, 1.5, True, "Zürich", {"b": {}}]},
        {"\0 \u2028 🚕": "x" * 3},
        MappingProxyType({"a": 1}),
    ],
)
def test_a_state_of_json_reads_back_as_it_is(fileio: FileIO, state: Mapping[str, Any]) -> None:
    put(fileio, position(-1, state))
    found = read_position(fileio, "mysql", known(fileio).sources["mysql"])
    assert found.state == dict(state)
    assert [type(value) for value in found.state.values()] == [type(value) for value in state.values()]


@pytest.mark.parametrize(
    "state",
    [
        {"a": (1, 2)},
        {"a": float("nan")},
        {"a": [float("inf")]},
        {1: "a"},
        {"a": {2: "b"}},
        {"a": b"x"},
        {"a": {"b"}},
        {"a": Decimal(1)},
        {"a": dt.date(2026, 1, 1)},
        {"a": object()},
        {"a": "\ud800"},
        {"a": MappingProxyType({})},
    ],
)
def test_a_state_that_json_would_change_is_refused(state: Any) -> None:
    with pytest.raises(InvalidInput, match="The state of the position of 'mysql'"):
        position(-1, state)


@pytest.mark.parametrize("state", [None, [], "text", 7])
def test_a_state_is_a_dict(state: Any) -> None:
    with pytest.raises(InvalidInput, match="Give a dict"):
        SourcePosition(source="mysql", state=state, since=-1)


def test_a_state_that_holds_itself_is_refused() -> None:
    state: dict[str, Any] = {}
    state["itself"] = state
    with pytest.raises(InvalidInput):
        position(-1, state)


@pytest.mark.parametrize(
    "wrong",
    [{"source": ""}, {"source": 7}, {"source": "x" * 256}, {"since": -2}, {"since": None}, {"since": True}, {"resumed_after": -1}],
)
def test_other_values_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        SourcePosition(**{"source": "mysql", "state": {}, "since": -1, **wrong})


def test_a_state_has_a_greatest_size() -> None:
    room = STATE_BYTES_MAX - len('{"a":""}')
    position(-1, {"a": "x" * room})
    with pytest.raises(InvalidInput, match="put the rest into a table"):
        position(-1, {"a": "x" * (room + 1)})


def test_a_position_keeps_the_state_that_it_was_given() -> None:
    state: dict[str, Any] = {"todo": [1, 2]}
    own = position(-1, state)
    state["todo"].append(3)
    assert own.state == {"todo": [1, 2]}
    assert pickle.loads(pickle.dumps(own)) == own


# ---- who lands ---------------------------------------------------------------------------------------------------


def test_versions_count_and_sources_do_not_meet(fileio: FileIO) -> None:
    assert put(fileio, position(-1)).positions == {"mysql": PositionChange(0, state={"at": 0})}
    put(fileio, position(-1, source="pg"))
    put(fileio, position(0))
    sources = known(fileio).sources
    assert {name: (one.version, one.slot, one.rewound_at) for name, one in sources.items()} == {"mysql": (1, 3, None), "pg": (0, 2, None)}
    newest = Log(fileio).read_known(3)
    assert sources["mysql"].txn == newest.txn
    assert sources["mysql"].committed_at_ms == newest.committed_at_ms


@pytest.mark.parametrize("since", [-1, 1, 7])
def test_a_commit_that_builds_on_another_version_is_refused(fileio: FileIO, since: int) -> None:
    put(fileio, position(-1))
    before = set(fileio.list_keys())
    with pytest.raises(PositionConflict, match=f"builds on version {since} .* has version 0 of it, since slot 1") as refused:
        put(fileio, position(since))
    assert (refused.value.version, refused.value.winner_slot) == (0, 1)
    assert isinstance(refused.value, CommitConflict)
    assert set(fileio.list_keys()) == before
    again = pickle.loads(pickle.dumps(refused.value))
    assert (type(again), str(again), again.version, again.winner_slot) == (PositionConflict, str(refused.value), 0, 1)


def test_a_first_commit_says_that_there_was_none(fileio: FileIO) -> None:
    with pytest.raises(PositionConflict, match="has no position of it") as refused:
        put(fileio, position(0))
    assert (refused.value.version, refused.value.winner_slot) == (-1, -1)


def test_of_two_that_build_on_one_version_the_slot_decides(fileio: FileIO) -> None:
    """Both looked at the log before either had committed."""
    base = known(fileio)
    first, second = (candidate(fileio, base, position(-1, {"of": number})) for number in (1, 2))
    Committer(fileio).commit(second)
    with pytest.raises(PositionConflict):
        Committer(fileio).commit(first)
    assert known(fileio).sources["mysql"].state == {"of": 2}


def test_a_stale_base_is_no_conflict_where_the_version_is_right(fileio: FileIO) -> None:
    base = known(fileio)
    put(fileio, position(-1, source="pg"))
    Committer(fileio).commit(candidate(fileio, base, position(-1)))
    assert set(known(fileio).sources) == {"mysql", "pg"}


@pytest.mark.parametrize("fault", [Fault.AFTER, Fault.TWICE, Fault.LATER])
def test_a_lost_response_is_read_back_and_the_next_version_builds_on_it(fault: Fault) -> None:
    backend = MemoryBackend("lost")
    rule = Rule(fault=fault, kinds=frozenset({"put"}), key=lambda key: key.endswith(f"{1:020d}.json"))
    faulty = FileIO(FaultyBackend(backend, Rules([rule])), env=FakeEnv(1))
    create = CommitAttempt(
        txn=new_txn(faulty.env), action=Action.CREATE, base=LogState(), changes={TABLE: msgspec.Raw(b"{}")}, footprint={TABLE: Footprint()}
    )
    Committer(faulty).commit(create)
    assert put(faulty, position(-1)).slot == 1
    assert put(faulty, position(0)).slot == 2
    with pytest.raises(PositionConflict):
        put(faulty, position(0))
    assert [one.positions["mysql"].version for one in Log(faulty).read_after(0)] == [0, 1]


def test_a_reader_that_tries_again_after_an_unknown_outcome_is_told_that_it_landed(memory: MemoryBackend, fileio: FileIO) -> None:
    """It did land: the second try is refused, and the position names the transaction of the first one."""
    rules = [
        Rule(fault=Fault.AFTER, kinds=frozenset({"put"}), key=lambda key: key == log_key(1)),
        Rule(fault=Fault.BEFORE, kinds=frozenset({"get", "head"}), key=lambda key: key == log_key(1), times=99),
    ]
    losing = FileIO(FaultyBackend(memory, Rules(rules)), env=FakeEnv(2), policy=RetryPolicy(attempts_max=1))
    with pytest.raises(CommitUnknown) as unknown:
        Committer(losing).commit(candidate(losing, known(fileio), position(-1)))
    with pytest.raises(PositionConflict):
        put(fileio, position(-1))
    assert known(fileio).sources["mysql"].txn == unknown.value.txn


def test_a_writer_that_dies_at_its_slot_has_committed_its_position_or_has_not(memory: MemoryBackend, fileio: FileIO) -> None:
    for fault, landed in ((Fault.CRASH_BEFORE, False), (Fault.CRASH_AFTER, True)):
        since = known(fileio).sources["mysql"].version if "mysql" in known(fileio).sources else -1
        rule = Rule(fault=fault, kinds=frozenset({"put"}), key=lambda key: key.startswith("log/"))
        dying = FileIO(FaultyBackend(memory, Rules([rule])), env=FakeEnv(3 + landed))
        with pytest.raises(Crash):
            Committer(dying).commit(candidate(dying, known(fileio), position(since)))
        found = known(fileio).sources.get("mysql")
        assert (-1 if found is None else found.version) == since + landed


# ---- a RESTORE ---------------------------------------------------------------------------------------------------


def test_a_restore_marks_what_it_may_have_taken_back(fileio: FileIO) -> None:
    put(fileio, position(-1, source="early"))
    put(fileio, position(-1))
    slot = restore(fileio, 1)
    assert {name: one.rewound_at for name, one in known(fileio).sources.items()} == {"early": None, "mysql": slot}
    put(fileio, position(0, source="early"))
    for acknowledged in (None, slot - 1):
        with pytest.raises(StreamRewound, match=f"resumed_after={slot}") as rewound:
            put(fileio, position(0, resumed_after=acknowledged))
        assert rewound.value.winner_slot == slot
    put(fileio, position(0, resumed_after=slot))
    assert known(fileio).sources["mysql"].rewound_at is None
    put(fileio, position(1))


def test_a_mark_stays_through_another_restore(fileio: FileIO) -> None:
    put(fileio, position(-1))
    first = restore(fileio, 0)
    second = restore(fileio, first - 1)
    assert known(fileio).sources["mysql"].rewound_at == second
    with pytest.raises(StreamRewound):
        put(fileio, position(0, resumed_after=first))
    put(fileio, position(0, resumed_after=second))


def test_a_restore_that_lands_first_refuses_a_commit_under_way(fileio: FileIO) -> None:
    put(fileio, position(-1))
    late = candidate(fileio, known(fileio), position(0))
    slot = restore(fileio, 0)
    with pytest.raises(StreamRewound):
        Committer(fileio).commit(late)
    assert known(fileio).slot == slot


# ---- entries and roots -------------------------------------------------------------------------------------------


def test_an_entry_without_a_position_says_nothing_of_them(fileio: FileIO) -> None:
    data = fileio.get(log_key(0)).data  # type: ignore[union-attr]
    assert b"position" not in data
    assert b"writer_features" not in data


def test_roots_hold_the_newest_positions() -> None:
    store = FileIO(MemoryBackend("roots"), env=FakeEnv(5))
    timeline = open_toy(store)
    view = grow(timeline, 3)
    large = {"a": "x" * STATE_INLINE_BYTES_MAX}
    for own in (position(-1), position(-1, large, source="pg")):
        Committer(store).commit(candidate(store, known(store), own))
    view = grow(timeline, 60, view=timeline.open())
    opened = timeline.open()
    assert opened.checkpoint > 4
    assert opened.log.sources == known(store).sources == view.log.sources
    assert opened.log.sources["mysql"].state == {"at": 0}
    assert opened.log.sources["pg"].state is None
    assert read_position(store, "pg", opened.log.sources["pg"]).state == large
    root = store.get(checkpoint.root_key(opened.checkpoint)).data  # type: ignore[union-attr]
    assert len(root) < STATE_INLINE_BYTES_MAX * 4
    with pytest.raises(PositionConflict):
        Committer(store).commit(candidate(store, opened.log, position(-1)))


def test_a_root_of_a_log_without_positions_has_no_such_field() -> None:
    store = FileIO(MemoryBackend("bare roots"), env=FakeEnv(5))
    timeline = open_toy(store)
    grow(timeline, 40)
    opened = timeline.open()
    assert opened.checkpoint >= 16
    assert b"positions" not in store.get(checkpoint.root_key(opened.checkpoint)).data  # type: ignore[union-attr]


@pytest.mark.parametrize("carries", [False, True])
def test_a_root_of_a_writer_that_lost_the_positions_is_passed_over(caplog: pytest.LogCaptureFixture, carries: bool) -> None:
    """A handle replays the log instead, and the next publisher at that slot replaces the root. carries: whether the hint does so too."""
    store = FileIO(MemoryBackend("old roots"), env=FakeEnv(5))
    timeline = open_toy(store)
    grow(timeline, 3)
    Committer(store).commit(candidate(store, known(store), position(-1)))
    grow(timeline, 60, view=timeline.open())
    opened = timeline.open()
    key = checkpoint.root_key(opened.checkpoint)
    found = checkpoint.read_root(store, opened.checkpoint)
    assert found is not None
    assert isinstance(found.root, checkpoint.Root)
    forgetful = msgspec.structs.replace(found.root, log=replace(found.root.log, positions=msgspec.UNSET))
    assert isinstance(checkpoint.put_root(store, forgetful, Update(found.version)), Written)
    hint = msgspec.json.decode(store.read(checkpoint.HINT_KEY))
    carried = {**hint.pop("carried"), "root": forgetful}
    hint |= {"carried": digested(carried)} if carries else {}
    store.put(checkpoint.HINT_KEY, msgspec.json.encode(hint))
    again = open_toy(store).open()
    assert again.log.sources["mysql"].version == 0
    assert again.checkpoint < opened.checkpoint
    assert key in caplog.text
    assert "lacks the positions of its log" in caplog.text


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"writer_features": {}}, "writer_features"),
        ({"positions": {"mysql": PositionChange(0)}}, "positions.mysql"),
        ({"positions": {"mysql": PositionChange(0, state={}, side=SideObject("data/x/position.json-1", 2, "0" * 64))}}, "side"),
        ({"positions": {"mysql": PositionChange(0, side=SideObject("../x", 2, "0" * 64))}}, "side"),
        ({"positions": {"mysql": PositionChange(0, side=SideObject("data/x/position.json-1", 2, "0"))}}, "side"),
    ],
)
def test_an_entry_that_contradicts_itself_is_neither_written_nor_read(fileio: FileIO, changed: dict[str, Any], names: str) -> None:
    good = put(fileio, position(-1))
    assert decode_entry(encode_entry(good), key=log_key(1)) == good
    bad = msgspec.structs.replace(good, **changed)
    with pytest.raises(TypeError, match=names):
        encode_entry(bad)
    with pytest.raises(CorruptTable, match=names):
        decode_entry(msgspec.json.encode(bad), key=log_key(1))


def test_an_erased_entry_may_lack_the_state(fileio: FileIO) -> None:
    good = put(fileio, position(-1))
    bare = msgspec.structs.replace(good, positions={"mysql": PositionChange(0)}, erased={TABLE: ()})
    assert decode_entry(encode_entry(bare), key=log_key(1)) == bare


def test_a_client_that_does_not_know_positions_may_not_write(fileio: FileIO, monkeypatch: pytest.MonkeyPatch) -> None:
    put(fileio, position(-1))
    assert known(fileio).writer_features == POSITIONS
    monkeypatch.setattr(entry, "WRITER_FEATURES", frozenset())
    with pytest.raises(UnsupportedFormat, match="'positions'"):
        check_writable(known(fileio).writer_features, where="here")
    late = CommitAttempt(txn=new_txn(fileio.env), action=Action.COMMIT, base=LogState(), changes={}, footprint={})
    with pytest.raises(UnsupportedFormat, match="'positions'"):
        Committer(fileio).commit(late)


def test_a_state_that_is_gone_or_changed_is_an_error_that_names_the_object(fileio: FileIO) -> None:
    put(fileio, position(-1, {"a": "x" * STATE_INLINE_BYTES_MAX}))
    progress = known(fileio).sources["mysql"]
    assert progress.side is not None
    assert progress.side.path.startswith(f"data/{progress.txn}/position.json-")
    fileio.delete([progress.side.path])
    with pytest.raises(CorruptTable, match=r"position\.json-"):
        read_position(fileio, "mysql", progress)
    fileio.put(progress.side.path, b"{}", Create())
    with pytest.raises(CorruptTable, match=r"is not what the commit"):
        read_position(fileio, "mysql", progress)
    # The next commit needs no earlier state.
    put(fileio, position(0))


def test_progress_of_another_slot_is_found_in_a_root() -> None:
    log = LogState(slot=16, committed_at_ms=5, writer_features=POSITIONS)
    ahead = PositionProgress(version=0, slot=17, txn=new_txn(FakeEnv()), committed_at_ms=4, state={})
    root = checkpoint.Root(format=1, slot=16, log=replace(log, positions={"mysql": ahead}))
    with pytest.raises(CorruptTable, match="positions"):
        checkpoint.decode_root(checkpoint.encode_root(root), slot=16)


# ---- budgets -----------------------------------------------------------------------------------------------------


def test_a_small_state_costs_no_request_and_a_large_one_one_put(fileio: FileIO) -> None:
    def cost(own: SourcePosition | None) -> dict[str, int]:
        base = known(fileio)
        before = fileio.metrics.snapshot()
        if own is None:
            bare = CommitAttempt(txn=new_txn(fileio.env), action=Action.COMMIT, base=base, changes={}, footprint={})
            Committer(fileio).commit(bare)
        else:
            Committer(fileio).commit(candidate(fileio, base, own))
        return dict((fileio.metrics.snapshot() - before).requests)

    without = cost(None)
    assert cost(position(-1)) == without
    assert cost(position(0, {"a": "x" * (STATE_INLINE_BYTES_MAX - len('{"a":""}'))})) == without
    assert cost(position(1, {"a": "x" * STATE_INLINE_BYTES_MAX})) == {**without, "put_create": without["put_create"] + 1}

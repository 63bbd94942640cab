"""The checker knows every anomaly by its own name, and finds none where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checker.histories import INITIAL, InvalidHistory, Kind, Read, Transaction, Version, Write, find_anomalies, transaction


def kinds(history: Sequence[Transaction]) -> set[Kind]:
    return {anomaly.kind for anomaly in find_anomalies(history)}


TORN = [
    # Two transactions that each took effect in two slots, one around the other.
    Transaction("T1", writes=[Write("x", 1), Write("y", 4)]),
    Transaction("T2", writes=[Write("x", 2), Write("y", 3)]),
]
ANOMALIES = {
    "garbage read": (Kind.GARBAGE_READ, [transaction("T1", 1, writes=["x"]), transaction("R", reads={"y": "T1"})]),
    "garbage read of nobody": (Kind.GARBAGE_READ, [transaction("R", reads={"x": "T9"})]),
    "G0": (Kind.G0, TORN),
    "G1a": (Kind.G1A, [transaction("T1", writes=["x"]), transaction("T2", 1, reads={"x": "T1"}, writes=["y"])]),
    "G1a by a reader": (Kind.G1A, [transaction("T1", writes=["x"]), transaction("R", reads={"x": "T1"})]),
    "G1b": (
        Kind.G1B,
        [
            Transaction("T1", writes=[Write("x", 1), Write("x", 1)]),
            Transaction("R", reads=[Read("x", Version("T1", 0))]),
        ],
    ),
    "G1c": (Kind.G1C, [transaction("T1", 1, reads={"y": "T2"}, writes=["x"]), transaction("T2", 2, reads={"x": "T1"}, writes=["y"])]),
    "G1c with a write": (
        Kind.G1C,
        [transaction("T1", 1, reads={"y": "T2"}, writes=["x"]), transaction("T2", 2, writes=["x", "y"])],
    ),
    "lost update": (
        Kind.LOST_UPDATE,
        [
            transaction("T1", 1, writes=["x"]),
            transaction("T2", 2, reads={"x": "T1"}, writes=["x"]),
            transaction("T3", 3, reads={"x": "T1"}, writes=["x"]),
        ],
    ),
    "lost update of what was absent": (
        Kind.LOST_UPDATE,
        [transaction("T1", 1, reads={"x": INITIAL}, writes=["x"]), transaction("T2", 2, reads={"x": INITIAL}, writes=["x"])],
    ),
    "lost update beside another key": (
        Kind.LOST_UPDATE,
        [transaction("T1", 1, writes=["x", "y"]), transaction("T2", 2, reads={"x": INITIAL}, writes=["x", "y"])],
    ),
    "G-single": (Kind.G_SINGLE, [transaction("T1", 1, writes=["x", "y"]), transaction("R", reads={"x": INITIAL, "y": "T1"})]),
    "G-single over three": (
        Kind.G_SINGLE,
        [
            transaction("T1", 1, writes=["x"]),
            transaction("T2", 2, reads={"x": "T1"}, writes=["y"]),
            transaction("R", reads={"x": INITIAL, "y": "T2"}),
        ],
    ),
    "G-single by a writer": (
        Kind.G_SINGLE,
        [transaction("T1", 1, writes=["x", "y"]), transaction("T2", 2, reads={"x": INITIAL}, writes=["y"])],
    ),
    "G2": (
        Kind.G2,
        [
            transaction("T1", 1, reads={"x": INITIAL, "y": INITIAL}, writes=["x"]),
            transaction("T2", 2, reads={"x": INITIAL, "y": INITIAL}, writes=["y"]),
        ],
    ),
    "G2 seen by readers": (
        # Two readers that saw two independent writes in opposite orders.
        Kind.G2,
        [
            transaction("T1", 1, writes=["x"]),
            transaction("T2", 2, writes=["y"]),
            transaction("R1", reads={"x": "T1", "y": INITIAL}),
            transaction("R2", reads={"x": INITIAL, "y": "T2"}),
        ],
    ),
}


@pytest.mark.parametrize(("kind", "history"), ANOMALIES.values(), ids=ANOMALIES)
def test_an_anomaly_has_its_own_name_and_no_other(kind: Kind, history: Sequence[Transaction]) -> None:
    assert kinds(history) == {kind}
    assert kinds(history[::-1]) == {kind}, "the order in which a history is told means nothing"


@pytest.mark.parametrize(("kind", "history"), ANOMALIES.values(), ids=ANOMALIES)
def test_an_anomaly_is_found_among_sound_transactions(kind: Kind, history: Sequence[Transaction]) -> None:
    sound = [transaction(f"S{slot}", slot, reads={"z": f"S{slot - 1}" if slot > 10 else INITIAL}, writes=["z"]) for slot in range(10, 30)]
    assert kinds([*sound[:10], *history, *sound[10:]]) == {kind}


CLEAN = {
    "nothing": [],
    "readers of one state": [
        transaction("T1", 1, writes=["x", "y"]),
        *(transaction(f"R{n}", reads={"x": "T1", "y": "T1"}) for n in (1, 2)),
    ],
    "a reader of an old state": [
        transaction("T1", 1, writes=["x", "y"]),
        transaction("T2", 2, writes=["x", "y"]),
        transaction("R", reads={"x": "T1", "y": "T1"}),
    ],
    "blind writes": [transaction(f"T{slot}", slot, writes=["x"]) for slot in (1, 2, 3)],
    "increments": [transaction(f"T{slot}", slot, reads={"x": f"T{slot - 1}" if slot else None}, writes=["x"]) for slot in range(9)],
    "an aborted writer that nobody read": [transaction("T1", writes=["x"]), transaction("T2", 1, reads={"x": INITIAL}, writes=["x"])],
    "an aborted reader of an aborted writer": [
        transaction("T1", writes=["x"]),
        Transaction("T2", committed=False, reads=[Read("x", Version("T1"))], writes=[Write("x", -1)]),
    ],
    "own reads": [
        Transaction("T1", reads=[Read("x", Version("T1", 0)), Read("x", Version("T1"))], writes=[Write("x", 1), Write("x", 1)]),
        transaction("T2", 2, reads={"x": "T1"}, writes=["x"]),
    ],
    "the last of several writes": [
        Transaction("T1", writes=[Write("x", 1), Write("x", 1)]),
        Transaction("R", reads=[Read("x", Version("T1", 1))]),
    ],
    "a write that depends on another key's old version": [
        transaction("T1", 1, writes=["x"]),
        transaction("T2", 2, reads={"x": INITIAL}, writes=["y"]),
    ],
}


@pytest.mark.parametrize("history", CLEAN.values(), ids=CLEAN)
def test_a_sound_history_has_no_anomaly(history: Sequence[Transaction]) -> None:
    assert find_anomalies(history) == []


def test_an_anomaly_is_told_as_the_cycle_that_it_is() -> None:
    (lost,) = find_anomalies(ANOMALIES["lost update"][1])
    assert lost.told.endswith("T3 -rw(x)-> T2, T2 -ww(x)-> T3")
    (aborted,) = find_anomalies(ANOMALIES["G1a"][1])
    assert aborted.told == "G1a: an aborted read: T2 read x as T1 wrote it, and T1 was aborted"


def test_several_anomalies_are_all_found_the_worst_first() -> None:
    other = [transaction("R", reads={"x": "A"}), transaction("A", writes=["x"])]
    renamed = [transaction("U1", 11, writes=["p", "q"]), transaction("U2", reads={"p": INITIAL, "q": "U1"})]
    found = [anomaly.kind for anomaly in find_anomalies([*ANOMALIES["G2"][1], *renamed, *other, *TORN_ELSEWHERE])]
    assert found == [Kind.G0, Kind.G1A, Kind.G_SINGLE, Kind.G2]


TORN_ELSEWHERE = [
    Transaction("V1", writes=[Write("v", 21), Write("w", 24)]),
    Transaction("V2", writes=[Write("v", 22), Write("w", 23)]),
]


def test_a_history_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidHistory, match="one name"):
        find_anomalies([transaction("T1", 1), transaction("T1", 2)])
    with pytest.raises(InvalidHistory, match="one slot"):
        find_anomalies([transaction("T1", 1, writes=["x"]), transaction("T2", 1, writes=["x"])])


# ---- properties

KEYS = ["x", "y", "z"]


@st.composite
def serial_histories(draw: st.DrawFn) -> list[Transaction]:
    """Transactions that ran one after the other, some aborted, some only reading; told in any order."""
    state: dict[str, str | None] = dict.fromkeys(KEYS)
    history = []
    for slot in range(draw(st.integers(0, 12))):
        reads = {key: state[key] for key in draw(st.sets(st.sampled_from(KEYS)))}
        writes = sorted(draw(st.sets(st.sampled_from(KEYS))))
        aborted = bool(writes) and draw(st.booleans())
        history.append(transaction(f"T{slot}", None if aborted else slot, reads=reads, writes=writes))
        if not aborted:
            state.update(dict.fromkeys(writes, f"T{slot}"))
    return draw(st.permutations(history))


@given(serial_histories())
def test_a_serial_history_has_no_anomaly(history: list[Transaction]) -> None:
    assert find_anomalies(history) == []


@st.composite
def snapshot_histories(draw: st.DrawFn) -> list[Transaction]:
    """Transactions that each read one older state, and that commit only when nobody wrote their keys since: snapshot isolation."""
    states: list[dict[str, str | None]] = [dict.fromkeys(KEYS)]
    history = []
    for number in range(draw(st.integers(0, 10))):
        base = draw(st.integers(0, len(states) - 1))
        reads = {key: states[base][key] for key in draw(st.sets(st.sampled_from(KEYS)))}
        writes = sorted(draw(st.sets(st.sampled_from(KEYS))))
        beaten = any(states[-1][key] != states[base][key] for key in writes)
        history.append(transaction(f"T{number}", None if beaten else number, reads=reads, writes=writes))
        if not beaten:
            states.append({**states[-1], **dict.fromkeys(writes, f"T{number}")})
    return history


@given(snapshot_histories())
def test_snapshot_isolation_shows_nothing_below_write_skew(history: list[Transaction]) -> None:
    assert kinds(history) <= {Kind.G2}


@st.composite
def any_histories(draw: st.DrawFn) -> list[Transaction]:
    """Up to four committed transactions that read whatever version they like."""
    count = draw(st.integers(1, 4))
    writes = [sorted(draw(st.sets(st.sampled_from(KEYS)))) for _ in range(count)]
    history = []
    for number in range(count):
        reads = {}
        for key in draw(st.sets(st.sampled_from(KEYS))):
            writers = [f"T{other}" for other in range(count) if key in writes[other] and other != number]
            reads[key] = draw(st.sampled_from([INITIAL, *writers]))
        history.append(transaction(f"T{number}", number, reads=reads, writes=writes[number]))
    return history


def has_serial_order(history: Sequence[Transaction]) -> bool:
    """Whether running the transactions one after the other in some order shows the same reads and leaves the same order of versions."""
    last = {key: [txn.name for txn in history if key in {write.key for write in txn.writes}] for key in KEYS}
    for order in permutations(history):
        state: dict[str, list[str]] = {key: [] for key in KEYS}
        for txn in order:
            if any((state[key][-1] if state[key] else None) != (version.txn if version else None) for key, version in txn.reads):
                break
            for write in txn.writes:
                state[write.key].append(txn.name)
        else:
            if state == last:
                return True
    return False


@given(any_histories())
def test_the_checker_agrees_with_trying_every_order(history: list[Transaction]) -> None:
    assert (find_anomalies(history) == []) == has_serial_order(history)

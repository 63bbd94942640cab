"""At the end of a chaos run: settles what nobody knows, and compares the table with everything that its processes were told.

It believes the journals and the store, and no code under test but the public calls of a table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fileio.errors import FileIOError
from fileio.store import FileIO
from objcat.errors import ObjcatError, SnapshotExpired
from objcat.metadata.shared_commits import commits_of
from tests.chaos.journal import Attempt
from tests.chaos.operations import resolution, txn_of_intent
from tests.checker.histories import INITIAL, Read, Transaction, Version, Write, find_anomalies

SWEEPS_MAX = 3
PAST_SLOTS_READ = 5

Rows = Mapping[int, str]


@dataclass(slots=True)
class Verdict:
    """problems: one sentence each, none when all is well. counts: what there was to judge."""

    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Slot:
    """A transaction of the log, as far as it can be judged from outside. Several may have one slot.

    attempt: None for those that no journal announced.
    """

    number: int
    txn: str
    rollback_of: str | None
    committed_at_ms: int
    attempt: Attempt | None


def audit(table: Any, store: FileIO, attempts: Sequence[Attempt]) -> Verdict:
    """Judge a run whose processes are all gone. table, store: reached without faults."""
    verdict = Verdict(counts=Counter(f"{attempt.operation}: {attempt.outcome or 'killed'}" for attempt in attempts))
    verdict.counts.update(attempt.said["error"] for attempt in attempts if attempt.outcome == "failed")
    add = verdict.problems.append
    add_all = verdict.problems.extend
    settled = settle(table, store, attempts)
    by_name = {attempt.name: attempt for attempt in attempts}
    log: list[Slot] = []
    for entry in (commit for shared in table.inspect.history() for commit in commits_of(shared)):
        name = entry.metadata.get("attempt")
        if name is not None and name not in by_name:
            add(f"slot {entry.slot} is of the attempt {name}, which no journal announced")
        log.append(Slot(entry.slot, entry.txn, entry.rollback_of, entry.committed_at_ms, by_name.get(name or "")))
    verdict.counts["slots"] = len(log)
    verdict.counts["rollbacks"] = sum(slot.rollback_of is not None for slot in log)
    add_all(check_log(log, list(store.list_keys("log/"))))
    add_all(check_outcomes(log, attempts, settled))
    add_all(check_real_time(log))
    add_all(check_left_over(store, log))
    states = replay(log)
    add_all(check_tables(table, states, cleaned=any(attempt.operation == "clean" for attempt in attempts)))
    placed, wrong = place_reads(attempts, log, states)
    add_all(wrong)
    add_all(f"the checker says {anomaly.told}" for anomaly in find_anomalies(history_of(log, attempts, placed)))
    return verdict


def settle(table: Any, store: FileIO, attempts: Sequence[Attempt]) -> list[Mapping[str, Any]]:
    """Resolve every transaction whose outcome a process did not learn, or which left anything. What processes settled counts too."""
    settled = [told for attempt in attempts if attempt.outcome == "settled" for told in attempt.said["resolved"]]
    unknown = [attempt.said["txn"] for attempt in attempts if attempt.outcome == "unknown"]
    settled.extend(resolution(txn, table.resolve(txn)) for txn in unknown)
    for _ in range(SWEEPS_MAX):
        committed = {txn for entry in table.inspect.history() for txn in entry.txns}
        left = {txn_of_intent(key) for key in store.list_keys("intents/")}
        left |= {key.split("/")[1] for key in store.list_keys("data/")} - committed
        settled.extend(resolution(txn, table.resolve(txn)) for txn in sorted(left))
        if not left:
            break
    return settled


def check_log(log: Sequence[Slot], keys: Sequence[str]) -> Iterator[str]:
    """P1, P2 and P6: dense slots, one outcome for each transaction, times that increase."""
    numbers = list(dict.fromkeys(slot.number for slot in log))
    if numbers != list(range(len(numbers))):
        yield f"P1: the slots are {numbers}"
    if len(keys) != len(numbers):
        yield f"P1: the log has {len(keys)} objects and {len(numbers)} slots"
    for txn, count in Counter(slot.txn for slot in log).items():
        if count > 1:
            yield f"P2: {txn} has {count} slots"
    rolled_back = Counter(slot.rollback_of for slot in log if slot.rollback_of is not None)
    for txn, count in rolled_back.items():
        if count > 1:
            yield f"P2: {txn} was rolled back {count} times"
    for slot in log:
        if slot.txn in rolled_back:
            yield f"P2: {slot.txn} has slot {slot.number} and was rolled back"
    for before, after in pairwise(log):
        if after.number > before.number and after.committed_at_ms <= before.committed_at_ms:
            yield f"P6: slot {after.number} is not later than slot {before.number}"


def check_outcomes(log: Sequence[Slot], attempts: Sequence[Attempt], settled: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """P3 and P4: what was acknowledged is there once and where it was said to be; what failed is not."""
    where: dict[str, list[Slot]] = {}
    for slot in log:
        if slot.attempt is not None:
            where.setdefault(slot.attempt.name, []).append(slot)
    for attempt in attempts:
        found = where.get(attempt.name, [])
        if len(found) > 1:
            yield f"P2: {attempt.name} ({attempt.operation}) is in the slots {[slot.number for slot in found]}"
        if attempt.outcome is not None:
            yield from _check_outcome(attempt, found, log, settled)
    for told in settled:
        slots = [slot for slot in log if slot.number == told["slot"]]
        if told["txn"] not in [slot.txn if told["committed"] else slot.rollback_of for slot in slots]:
            yield f"P3: resolving said {dict(told)}, and that slot holds {slots}"


def _check_outcome(attempt: Attempt, found: Sequence[Slot], log: Sequence[Slot], settled: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """found: the slots of the attempt."""
    match attempt.outcome:
        case "acknowledged":
            if [(slot.number, slot.txn) for slot in found] != [(attempt.said["slot"], attempt.said["txn"])]:
                yield f"P3: {attempt.name} was told {dict(attempt.said)}, and the log has it at {[slot.number for slot in found]}"
        case "served":
            slots = [slot for slot in log if slot.number == attempt.said["slot"]] if attempt.said else []
            if slots and slots[0].txn != attempt.said["txn"]:
                yield f"P3: {attempt.name} ({attempt.operation}) was told {dict(attempt.said)}, and that slot holds {slots}"
        case "failed":
            if found:
                yield f"P4: {attempt.name} failed with {attempt.said['error']}, and is at slot {found[0].number}"
        case "broke":
            yield f"P0: {attempt.name} ({attempt.operation}) broke: {attempt.said['error']}"
        case "unknown":
            if attempt.said["txn"] not in {told["txn"] for told in settled}:
                yield f"P3: {attempt.name} is unknown and {attempt.said['txn']} was not settled"
            if found and found[0].txn != attempt.said["txn"]:
                yield f"P3: {attempt.name} is unknown as {attempt.said['txn']}, and the log has it as {found[0].txn}"


def check_real_time(log: Sequence[Slot]) -> Iterator[str]:
    """What was acknowledged before something else began has an earlier slot."""
    newest_begin_ns = -1
    newest: Slot | None = None
    for slot in log:
        if slot.attempt is None:
            continue
        ended_ns = slot.attempt.ended_ns if slot.attempt.outcome == "acknowledged" else None
        if ended_ns is not None and newest is not None and ended_ns < newest_begin_ns:
            yield f"P10: slot {newest.number} began after slot {slot.number} was acknowledged"
        if slot.attempt.began_ns > newest_begin_ns:
            newest_begin_ns, newest = slot.attempt.began_ns, slot


def check_left_over(store: FileIO, log: Sequence[Slot]) -> Iterator[str]:
    """P8 from the other side: once all is settled, no transaction that was not committed owns anything."""
    committed = {slot.txn for slot in log}
    yield from (f"P8: {key} is left although all is settled" for key in store.list_keys("intents/"))
    for key in store.list_keys("data/"):
        if key.split("/")[1] not in committed:
            yield f"P8: {key} is left and is of no committed transaction"


def replay(log: Sequence[Slot]) -> list[Rows]:
    """The rows after every slot: what the log says, over a dict."""
    states: list[Rows] = []
    rows: dict[int, str] = {}
    for slot in log:
        for key, value in slot.attempt.writes.items() if slot.attempt else ():
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        del states[slot.number :]
        states.append(dict(rows))
    return states


def check_tables(table: Any, states: Sequence[Rows], *, cleaned: bool) -> Iterator[str]:
    """P7 and P9: the newest state and some old ones, key by key. cleaned: old ones may have expired."""
    step = max(1, len(states) // PAST_SLOTS_READ)
    for number in [*range(0, len(states) - 1, step), None]:
        name = "the newest slot" if number is None else f"slot {number}"
        try:
            read = table.scan(as_of=number).to_arrow().to_pylist()
        except (ObjcatError, FileIOError) as error:
            if cleaned and number is not None and isinstance(error, SnapshotExpired):
                continue
            yield f"P7: {name} cannot be read: {error}"
            continue
        rows = {row["id"]: row["value"] for row in read}
        if len(rows) < len(read):
            twice = [key for key, count in Counter(row["id"] for row in read).items() if count > 1]
            yield f"P9: {name} has the keys {twice} more than once"
        yield from differences(name, rows, states[-1 if number is None else number])


def differences(name: str, rows: Rows, expected: Rows) -> Iterator[str]:
    for key in sorted(rows.keys() | expected.keys()):
        if rows.get(key) != expected.get(key):
            yield f"P9: {name} has {rows.get(key)!r} under {key}, and what was written says {expected.get(key)!r}"


def place_reads(attempts: Sequence[Attempt], log: Sequence[Slot], states: Sequence[Rows]) -> tuple[dict[str, int], list[str]]:
    """P10: the slot that every scan saw, by attempt; of several that fit, the oldest.

    It is not older than what was acknowledged to anybody when the scan began, nor than what the same handle saw before.
    """
    slots_of: dict[frozenset[tuple[int, str]], list[int]] = {}
    for number, state in enumerate(states):
        slots_of.setdefault(frozenset(state.items()), []).append(number)
    floors = _Floors(log)
    seen: dict[str, int] = {}
    placed: dict[str, int] = {}
    problems = []
    for attempt in attempts:
        if attempt.outcome == "acknowledged":
            seen[attempt.handle] = max(seen.get(attempt.handle, 0), attempt.said["slot"])
        if attempt.outcome != "read":
            continue
        rows = {int(key): value for key, value in attempt.said["rows"].items()}
        if len(rows) < attempt.said["count"]:
            problems.append(f"P9: {attempt.name} read {attempt.said['count']} rows of {len(rows)} keys")
        fits = slots_of.get(frozenset(rows.items()), [])
        floor = max(floors.at(attempt.began_ns), seen.get(attempt.handle, 0))
        allowed = [number for number in fits if number >= floor]
        if allowed:
            placed[attempt.name] = seen[attempt.handle] = allowed[0]
        elif fits:
            problems.append(f"P10: {attempt.name} read slot {fits[-1]}, although slot {floor} was acknowledged, or read by it, before")
        else:
            problems.append(f"P10: {attempt.name} read what no slot says: {rows}")
    return placed, problems


class _Floors:
    """The highest slot that was acknowledged to anybody before a moment."""

    def __init__(self, log: Sequence[Slot]) -> None:
        ended = sorted(
            (slot.attempt.ended_ns, slot.number)
            for slot in log
            if slot.attempt and slot.attempt.outcome == "acknowledged" and slot.attempt.ended_ns is not None
        )
        self._moments = [moment for moment, _ in ended]
        self._highest: list[int] = []
        for _, number in ended:
            self._highest.append(max(number, self._highest[-1] if self._highest else 0))

    def at(self, moment_ns: int) -> int:
        place = bisect_left(self._moments, moment_ns)
        return self._highest[place - 1] if place else 0


def history_of(log: Sequence[Slot], attempts: Sequence[Attempt], placed: Mapping[str, int]) -> list[Transaction]:
    """The run as the checker takes it. A scan names what it saw by the values; what it did not see, by the slot that it fits."""
    written: dict[int, list[tuple[int, Attempt]]] = {}
    committed: dict[str, list[Write]] = {}
    for place, slot in enumerate(log):
        if slot.attempt is not None and slot.attempt.writes:
            committed.setdefault(slot.attempt.name, []).extend(Write(str(key), place) for key in slot.attempt.writes)
            for key in slot.attempt.writes:
                written.setdefault(key, []).append((slot.number, slot.attempt))
    history = [Transaction(name, writes=writes) for name, writes in committed.items()]
    for attempt in attempts:
        if attempt.writes and attempt.name not in committed:
            history.append(Transaction(attempt.name, committed=False, writes=[Write(str(key), -1) for key in attempt.writes]))
        if attempt.outcome == "read":
            reads = [Read(str(key), Version(value.split(":")[0])) for key, value in attempt.said["rows"].items()]
            for key in written.keys() - {int(key) for key in attempt.said["rows"]} if attempt.name in placed else ():
                before = [writer for number, writer in written[key] if number <= placed[attempt.name]]
                reads.append(Read(str(key), Version(before[-1].name) if before else INITIAL))
            history.append(Transaction(attempt.name, reads=reads))
    return history

"""What must hold in every state, by the numbers of the protocol's invariants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.explorer.actors import (
    Acknowledged,
    Actor,
    Began,
    Broke,
    Created,
    Dropped,
    Erased,
    Failed,
    Named,
    Note,
    Refused,
    RolledBack,
    Saw,
    Shown,
    Stated,
    TakenBack,
    Undecided,
    owner_of,
)
from tests.explorer.facts import (
    CATALOG,
    Facts,
    LogFacts,
    Naming,
    derived_rows,
    fold_names,
    kept_slots,
    paths_of,
    read_rows,
    still_held,
    unknown_keys,
    wrong_positions,
)
from tests.explorer.mirrored import check_mirrors

PROPERTIES = {
    "P0": "no schedule leads to an error that is not part of the contract",
    "P1": "the log has no gap, and no slot ever changes",
    "P2": "a transaction has one outcome: one slot commits it, or one rolls it back",
    "P3": "acknowledged means durable",
    "P4": "failed means never",
    "P5": "what files hold is what was committed: no update is lost, no batch of an application or a source counts twice",
    "P6": "commit times strictly increase",
    "P7": "every file of every snapshot that can still be read exists: from the bound on, and saved ones; and what a checkpoint names",
    "P8": "nothing is deleted but what the log allows",
    "P9": "a file group has at most one base file, a slot all tables of a transaction; a reader gets what other code replays",
    "P10": "a read is a prefix of the log, no older than the head when it began, and a handle never goes back",
    "P11": "an actor that is left alone ends in a bounded number of requests, and succeeds where nothing went wrong",
    "P12": "a certificate of erasure is true: no file holds a row that was there when the erasure began",
    "P13": "whatever readers of a mirror can begin with reads exactly its slot while that can be read, and is not written over",
}


def check_store(facts: Facts) -> str | None:
    """What is wrong with the store alone."""
    for log in facts.logs.values():
        broken = _check_log(log, facts) or check_mirrors(log, facts)
        if broken is not None:
            return broken
    for root, named in facts.roots.items():
        if missing := [key for key in named if key not in facts.files]:
            return f"P7: {missing[0]}, which {root} names, does not exist"
    for txn, where in facts.committed.items():
        if len({prefix for prefix, _ in where}) < len(where):
            return f"P2: {txn} is committed at the slots {[slot for _, slot in where]}"
        if txn in facts.rolled_back:
            return f"P2: {txn} is committed at slot {where[0][1]} and rolled back at slot {facts.rolled_back[txn][0][1]}"
    for txn, where in facts.rolled_back.items():
        if len(where) > 1:
            return f"P2: {txn} is rolled back at the slots {[slot for _, slot in where]}"
    return None


def _check_log(log: LogFacts, facts: Facts) -> str | None:
    slots = log.slots
    if sorted(slots) != list(range(len(slots))):
        return f"P1: the log has a gap: its slots are {sorted(slots)}"
    plans: dict[str, int] = {}
    for number, slot in sorted(slots.items()):
        if slot.number != number:
            return f"P1: slot {number} holds the entry of slot {slot.number}"
        if number and slot.committed_at_ms <= slots[number - 1].committed_at_ms:
            return f"P6: slot {number} is not later than slot {number - 1}"
        if number == 0 and slot.action != "CREATE" and CATALOG not in slot.tables:
            return f"P9: slot 0 is a {slot.action}"
        if slot.plan is not None and any(where[1] < number for where in facts.rolled_back.get(slot.plan, ())):
            return f"P2: the plan {slot.plan} is executed at slot {number}, after it was rolled back"
        if slot.plan is not None and plans.setdefault(slot.plan, number) != number:
            return f"P2: the plan {slot.plan} is executed at the slots {plans[slot.plan]} and {number}"
    return log.broken or wrong_positions(log, facts.files) or _check_names(log, facts) or _check_tables(log, facts)


def _check_names(log: LogFacts, facts: Facts) -> str | None:
    names, broken = fold_names(log.slots)
    for name, (table, prefix) in names.items():
        if prefix not in facts.logs or table not in facts.logs[prefix].states[-1]:
            return f"P7: the name {name} means {table}, which does not exist"
    return broken


def _check_tables(log: LogFacts, facts: Facts) -> str | None:
    for table, now in log.states[-1].items():
        for number in kept_slots(log, table):
            missing = sorted(path for path in log.states[number][table].files if log.prefix + path not in facts.files)
            if missing:
                return f"P7: {missing[0]}, which the snapshot of slot {number} names, does not exist"
        rows, ended = read_rows(now, facts.files, log.prefix)
        if rows != now.rows:
            return f"P5: the files of slot {log.head} hold {dict(rows)}, and what was committed adds up to {dict(now.rows)}"
        if ended != now.ended:
            return f"P5: the files of slot {log.head} hold the deletes {dict(ended)}, and those that won are {dict(now.ended)}"
        unknown = unknown_keys(now, facts.files, log.prefix)
        if unknown:
            return f"P9: the index of slot {log.head} does not say where the keys {unknown} live"
    return None


def check_notes(facts: Facts, actor: Actor, said: Sequence[Note], floors: Sequence[int]) -> str | None:
    """What an actor was told that the store contradicts. floors: the head of the log when each of its reads began."""
    reads = 0
    reached: dict[str, int] = {}
    for note in said:
        reads += isinstance(note, Began)
        broken = _check_note(facts, note, floors[reads - 1] if reads else -1)
        if isinstance(note, Saw):
            if note.slot < reached.get(note.log, -1):
                broken = "P10", f"read up to slot {note.slot}, after it had read up to slot {reached[note.log]}"
            reached[note.log] = note.slot
        if broken is not None:
            return f"{broken[0]}: {actor.name} {broken[1]}"
    unknown = any(isinstance(note, Undecided) or note == Refused("CommitUnknown") for note in said)
    if said and isinstance(said[-1], Refused) and not unknown:
        told = {note.txn for note in said if isinstance(note, Acknowledged)}
        for txn, ((prefix, number), *_) in facts.committed.items():
            if owner_of(txn) == actor.number and txn not in told and _counts(facts, prefix, number):
                return f"P4: {actor.name} was refused ({said[-1].error}), and its {txn} is committed at slot {number}"
    return None


def _counts(facts: Facts, prefix: str, number: int) -> bool:
    """Whether a slot is what its actor was asked for: not a rollback on the way there, nor the first of the two steps of a lake."""
    slot = facts.logs[prefix].slots[number]
    return slot.rollback_of is None and not (prefix.startswith("tables/") and slot.action in ("CREATE", "CLOSE", "RESTORE"))


def _check_note(facts: Facts, note: Note, floor: int) -> tuple[str, str] | None:
    match note:
        case Broke(error):
            return "P0", f"broke: {error}"
        case Failed(txn):
            if txn in facts.committed:
                return "P4", f"was told that {txn} failed, and it is committed at slot {_numbers(facts.committed, txn)[0]}"
        case RolledBack(txn, number):
            if txn in facts.committed:
                return "P4", f"rolled {txn} back, and it is committed at slot {_numbers(facts.committed, txn)[0]}"
            if number not in _numbers(facts.rolled_back, txn):
                return "P3", f"was told that slot {number} rolls {txn} back, which it does not"
        case Erased(prefix, key):
            held = still_held(facts.logs[prefix], facts.files, key, until=floor)
            if held is not None:
                return "P12", f"was told that the rows of key {key} are erased, and {held} holds one that was there at slot {floor}"
        case Saw():
            return _check_read(facts, note, floor)
        case Shown():
            return _check_shown(facts, note)
        case Acknowledged() | Created() | Named() | Dropped() | TakenBack() | Stated():
            return _check_durable(facts, note)
    return None


def _check_shown(facts: Facts, note: Shown) -> tuple[str, str] | None:
    for log in facts.logs.values():
        if note.slot < len(log.states) and note.source in log.states[note.slot]:
            wanted = derived_rows([log.states[note.slot][note.source]])
            if not any(state[note.table].rows == wanted for state in log.states if note.table in state):
                return "P3", f"was told that slot {note.slot} of the source is shown, {dict(wanted)}, which it never was"
    return None


def _check_durable(facts: Facts, note: Acknowledged | Created | Named | Dropped | TakenBack | Stated) -> tuple[str, str] | None:
    match note:
        case Acknowledged(txn, number):
            if number not in _numbers(facts.committed, txn):
                held = [log.slots[number].txns for log in facts.logs.values() if number in log.slots]
                return "P3", f"was told that {txn} is committed at slot {number}, which holds {held or 'nothing'}"
        case Created(table, number):
            if number or not any(number in log.slots and table in log.slots[number].tables for log in facts.logs.values()):
                return "P3", f"was told that table {table} exists since slot {number}, which another one has"
        case Named(name, table):
            if not any(bound[:2] == (name, table) for naming in _namings(facts) for bound in naming.binds):
                return "P3", f"was told that {name} means the table {table}, which no slot of the catalog says"
        case Dropped(table):
            closed = any(state[table].closed for log in facts.logs.values() for state in log.states if table in state)
            if not closed or not any(table in naming.drops for naming in _namings(facts)):
                return "P3", f"was told that the table {table} is dropped, which it is not"
        case TakenBack(table):
            written = [state[table].rows for log in facts.logs.values() for state in log.states if table in state and state[table].rows]
            if written:
                return "P3", f"took the table {table} back, to which somebody had written {dict(written[-1])}"
        case Stated(table, name, value):
            states = [state[table] for log in facts.logs.values() for state in log.states if table in state]
            if not any(state.properties.get(name) == value for state in states):
                return "P3", f"was told that the property {name} is {value}, which no slot says"
    return None


def _check_read(facts: Facts, saw: Saw, floor: int) -> tuple[str, str] | None:
    log = facts.logs.get(saw.log)
    if log is None or saw.slot > log.head:
        return "P10", f"read slot {saw.slot}, which is not there"
    if saw.slot < floor:
        return "P10", f"read up to slot {saw.slot}, although slot {floor} was there when the read began"
    if saw.slot >= len(log.states):
        return None
    tables = log.states[saw.slot]
    (state,) = [tables[saw.table]] if saw.table else tables.values()
    if saw.groups is not None:
        replayed = tuple((group_id, tuple(paths_of(group))) for group_id, group in sorted(state.groups.items()))
        if saw.groups != replayed:
            return "P9", f"got the file groups {saw.groups} of slot {saw.slot}, and the log replays to {replayed}"
    if saw.rows is not None and saw.rows != tuple(sorted(state.rows.items())):
        return "P9", f"read the rows {dict(saw.rows)} of slot {saw.slot}, and the log replays to {dict(state.rows)}"
    return None


def _namings(facts: Facts) -> list[Naming]:
    return [slot.naming for log in facts.logs.values() for slot in log.slots.values() if slot.naming is not None]


def _numbers(found: Mapping[str, tuple[tuple[str, int], ...]], txn: str) -> list[int]:
    return [number for _, number in found.get(txn, ())]

"""What must hold in every state, by the numbers of the protocol's invariants."""

from __future__ import annotations

from collections.abc import Sequence

from tests.explorer.actors import Acknowledged, Actor, Began, Broke, Created, Failed, Note, Refused, RolledBack, Saw, Undecided, owner_of
from tests.explorer.facts import Facts

PROPERTIES = {
    "P0": "no schedule leads to an error that is not part of the contract",
    "P1": "the log has no gap, and no slot ever changes",
    "P2": "a transaction has one outcome: one slot commits it, or one rolls it back",
    "P3": "acknowledged means durable",
    "P4": "failed means never",
    "P6": "commit times strictly increase",
    "P7": "every file that a committed entry names exists",
    "P8": "nothing is deleted but what the log allows",
    "P9": "a home has at most one base file, and no rows are older than it",
    "P10": "a read is a prefix of the log, no older than the head when it began",
    "P11": "an actor that is left alone ends in a bounded number of requests, and succeeds where nothing went wrong",
}


def check_store(facts: Facts) -> str | None:
    """What is wrong with the store alone."""
    slots = facts.slots
    if sorted(slots) != list(range(len(slots))):
        return f"P1: the log has a gap: its slots are {sorted(slots)}"
    for number, slot in slots.items():
        if slot.number != number:
            return f"P1: slot {number} holds the entry of slot {slot.number}"
        if number and slot.committed_at_ms <= slots[number - 1].committed_at_ms:
            return f"P6: slot {number} is not later than slot {number - 1}"
        if (slot.action == "CREATE") != (number == 0):
            return f"P9: slot {number} is a {slot.action}"
        missing = [path for path in slot.files if not any(key == path or key.endswith("/" + path) for key in facts.keys)]
        if missing:
            return f"P7: {missing[0]}, which slot {number} names, does not exist"
    for txn, where in facts.committed.items():
        if len(where) > 1:
            return f"P2: {txn} is committed at the slots {list(where)}"
        if txn in facts.rolled_back:
            return f"P2: {txn} is committed at slot {where[0]} and rolled back at slot {facts.rolled_back[txn][0]}"
    for txn, where in facts.rolled_back.items():
        if len(where) > 1:
            return f"P2: {txn} is rolled back at the slots {list(where)}"
    return _check_homes(facts)


def _check_homes(facts: Facts) -> str | None:
    live: set[tuple[str, int, int]] = set()
    for number in range(len(facts.slots)):
        slot = facts.slots[number]
        for home in slot.bases:
            if home in live:
                return f"P9: slot {number} writes a base file for {home}, which has rows already"
            live.add(home)
        live.update(slot.logs)
    return None


def check_notes(facts: Facts, actor: Actor, said: Sequence[Note], floors: Sequence[int]) -> str | None:
    """What an actor was told that the store contradicts. floors: the head of the log when each of its reads began."""
    reads = 0
    for note in said:
        reads += isinstance(note, Began)
        broken = _check_note(facts, note, floors[reads - 1] if reads else -1)
        if broken is not None:
            return f"{broken[0]}: {actor.name} {broken[1]}"
    unknown = any(isinstance(note, Undecided) or note == Refused("CommitUnknown") for note in said)
    if said and isinstance(said[-1], Refused) and not unknown:
        told = {note.txn for note in said if isinstance(note, Acknowledged)}
        for txn, where in facts.committed.items():
            if owner_of(txn) == actor.number and txn not in told and facts.slots[where[0]].rollback_of is None:
                return f"P4: {actor.name} was refused ({said[-1].error}), and its {txn} is committed at slot {where[0]}"
    return None


def _check_note(facts: Facts, note: Note, floor: int) -> tuple[str, str] | None:
    match note:
        case Broke(error):
            return "P0", f"broke: {error}"
        case Acknowledged(txn, number):
            slot = facts.slots.get(number)
            if slot is None or slot.txn != txn:
                return "P3", f"was told that {txn} is committed at slot {number}, which holds {slot.txn if slot else 'nothing'}"
        case Created(table, number):
            slot = facts.slots.get(number)
            if slot is None or table not in slot.tables:
                return "P3", f"was told that table {table} exists since slot {number}, which another one has"
        case Failed(txn):
            if txn in facts.committed:
                return "P4", f"was told that {txn} failed, and it is committed at slot {facts.committed[txn][0]}"
        case RolledBack(txn, number):
            if txn in facts.committed:
                return "P4", f"rolled {txn} back, and it is committed at slot {facts.committed[txn][0]}"
            if number not in facts.rolled_back.get(txn, ()):
                return "P3", f"was told that slot {number} rolls {txn} back, which it does not"
        case Saw(txns):
            log = tuple(facts.slots[number].txn for number in range(min(len(facts.slots), len(txns))))
            if txns != log:
                return "P10", f"read {list(txns)}, which is no prefix of the log {list(log)}"
            if len(txns) - 1 < floor:
                return "P10", f"read up to slot {len(txns) - 1}, although slot {floor} was there when the read began"
    return None

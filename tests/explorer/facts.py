"""What a store says, read by other code than the code under test: the log as plain JSON, the files, and who may delete what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from tests.explorer.actors import owner_of
from tests.explorer.store import Contents, Request


class Slot(NamedTuple):
    """An entry of the log. bases and logs: homes that got a base file, and log rows. files: every path that it names."""

    txn: str
    action: str
    rollback_of: str | None
    committed_at_ms: int
    number: int
    tables: tuple[str, ...]
    bases: tuple[tuple[str, int, int], ...]
    logs: tuple[tuple[str, int, int], ...]
    files: tuple[str, ...]


class Facts(NamedTuple):
    """slots: by number in the key. keys: every object there is. head: the highest slot, -1 for none."""

    slots: Mapping[int, Slot]
    keys: frozenset[str]
    head: int
    committed: Mapping[str, tuple[int, ...]]
    rolled_back: Mapping[str, tuple[int, ...]]


def log_slot(key: str) -> int | None:
    """The slot of a key of the log, whatever prefix the table has."""
    folder, _, name = key.rpartition("/")
    return int(name.removesuffix(".json")) if folder.rpartition("/")[2] == "log" else None


def facts_of(contents: Contents) -> Facts:
    """Read a whole store."""
    slots: dict[int, Slot] = {}
    for key, place in contents.items():
        number = log_slot(key)
        if number is not None and place.now is not None:
            slots[number] = parse_slot(place.now.data)
    committed: dict[str, tuple[int, ...]] = {}
    rolled_back: dict[str, tuple[int, ...]] = {}
    for number in sorted(slots):
        slot = slots[number]
        committed[slot.txn] = (*committed.get(slot.txn, ()), number)
        if slot.rollback_of is not None:
            rolled_back[slot.rollback_of] = (*rolled_back.get(slot.rollback_of, ()), number)
    keys = frozenset(key for key, place in contents.items() if place.now is not None)
    return Facts(slots, keys, max(slots, default=-1), committed, rolled_back)


@lru_cache(maxsize=100_000)
def parse_slot(data: bytes) -> Slot:
    """The entry of a slot's bytes."""
    entry: dict[str, Any] = json.loads(data)
    deltas = [delta for delta in entry.get("changes", {}).values() if isinstance(delta, dict)]
    bases = [base for delta in deltas for base in delta.get("bases", ())]
    logs = [log for delta in deltas for log in delta.get("logs", ())]
    return Slot(
        txn=entry["txn"],
        action=entry["action"],
        rollback_of=entry.get("rollback_of"),
        committed_at_ms=entry["committed_at_ms"],
        number=entry["slot"],
        tables=tuple(entry.get("changes", {})),
        bases=tuple(tuple(base["home"]) for base in bases),
        logs=tuple(tuple(rows[0]) for log in logs for rows in log["homes"]),
        files=tuple(file["path"] for file in [*bases, *logs]),
    )


def could_commit(request: Request, facts: Facts) -> str | None:
    """The transaction that a request, still under way, would commit if it landed now."""
    if request.kind != "put":
        return None
    number = log_slot(request.key)
    return None if number is None or number in facts.slots else parse_slot(request.data).txn


def may_delete(request: Request, facts: Facts, open_txns: set[str], *, by: int) -> str | None:
    """P8: what is wrong with a deletion; None when the log allows it.

    Files of a transaction go when its rollback is in the log, or when its own writer knows for certain that it failed; its intent goes when
    it is settled.
    """
    for key in request.keys:
        folder, _, rest = key.rpartition("/")
        if log_slot(key) is not None:
            return f"P8: {key} is deleted: slots never are"
        parts = key.split("/")
        if "data" in parts:
            txn = parts[parts.index("data") + 1]
            if txn in facts.committed:
                return f"P8: {key} is deleted although {txn} is committed"
            if txn not in facts.rolled_back and owner_of(txn) != by:
                return f"P8: {key} is deleted before a rollback of {txn} is in the log"
        elif folder.endswith("intents"):
            txn = rest.split(".")[0]
            if txn not in facts.committed and txn not in facts.rolled_back and owner_of(txn) != by:
                return f"P8: {key} is deleted although {txn} is not settled"
        else:
            continue
        if txn in open_txns:
            return f"P8: {key} is deleted although a request that commits {txn} is still under way"
    return None

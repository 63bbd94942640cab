"""What the processes of a chaos run do: a small table, to which an operation that comes adds its row.

An operation looks at the session and says, before anything is sent, which keys it will leave how; then it is run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import objcat
from fileio.store import FileIO
from objcat.timeline.rollback import CommittedAt, Resolution, RolledBackAt
from tests.chaos.journal import Outcome

SHARED_KEYS = 40
"""The keys that all processes write again and again; above them everybody has keys of its own."""
KEPT_SLOTS = 25
"""That cleaning leaves readable: few scans see more go by, and are told so; a run has more."""

Said = tuple[Outcome, Mapping[str, Any]]


@dataclass(slots=True)
class Session:
    """A process at work.

    batch: makes of rows what its engine writes. read: the rows of a scan. fresh_key: the next key that nobody uses.
    """

    table: Any
    store: FileIO
    chance: random.Random
    batch: Callable[[list[dict[str, Any]]], Any]
    read: Callable[[Any], list[dict[str, Any]]]
    fresh_key: int

    def some_keys(self, most: int) -> list[int]:
        return self.chance.sample(range(SHARED_KEYS), self.chance.randint(1, most))


def local_session(table: Any, store: FileIO, chance: random.Random, fresh_key: int) -> Session:
    """One of the local engine."""
    return Session(table, store, chance, lambda rows: rows, lambda scan: scan.to_arrow().to_pylist(), fresh_key)


class Step(NamedTuple):
    """writes: key -> value, None for a deletion. run: the call; returns what came of it."""

    writes: Mapping[int, str | None]
    run: Callable[[], Said]


def acknowledged(result: Any) -> Said:
    return "acknowledged", {"slot": result.slot, "txn": result.txn, "committed_at_ms": result.committed_at_ms}


def put(session: Session, name: str, keys: list[int], write: Callable[..., Any]) -> Step:
    """Rows whose values name the attempt and the key."""
    writes = {key: f"{name}:{key}" for key in keys}
    rows = [{"id": key, "value": value} for key, value in writes.items()]
    return Step(writes, lambda: acknowledged(write(session.batch(rows), metadata={"attempt": name})))


def upsert(session: Session, name: str) -> Step:
    return put(session, name, session.some_keys(8), session.table.upsert)


def insert(session: Session, name: str) -> Step:
    count = session.chance.randint(1, 4)
    keys = list(range(session.fresh_key, session.fresh_key + count))
    session.fresh_key += count
    return put(session, name, keys, session.table.insert)


def delete(session: Session, name: str) -> Step:
    keys = session.some_keys(4)
    rows = [{"id": key} for key in keys]
    return Step(dict.fromkeys(keys), lambda: acknowledged(session.table.delete(session.batch(rows), metadata={"attempt": name})))


def roll_back(session: Session, name: str) -> Step:
    """Settle every transaction that is under way, as if their writers were all dead. Most of them are alive."""

    def run() -> Said:
        txns = under_way(session.table)
        return "settled", {"resolved": [resolution(txn, session.table.resolve(txn)) for txn in txns]}

    return Step({}, run)


def scan(session: Session, name: str) -> Step:
    def run() -> Said:
        rows = session.read(session.table.scan())
        return "read", {"rows": {row["id"]: row["value"] for row in rows}, "count": len(rows)}

    return Step({}, run)


def served(result: Any) -> Said:
    """What a service did; nothing when there was nothing to do."""
    return "served", {} if result is None or result.slot is None else {"slot": result.slot, "txn": result.txn}


def compact(session: Session, name: str) -> Step:
    return Step({}, lambda: served(session.table.maintenance.compact()))


def clean(session: Session, name: str) -> Step:
    return Step({}, lambda: served(session.table.maintenance.clean(keep_slots=KEPT_SLOTS)))


OPERATIONS: Mapping[str, tuple[int, Callable[[Session, str], Step]]] = {
    "upsert": (6, upsert),
    "insert": (3, insert),
    "delete": (2, delete),
    "scan": (3, scan),
    "roll back": (1, roll_back),
    "compact": (1, compact),
    "clean": (1, clean),
}
"""By name: how often compared with the others, and what it does."""


def choose(session: Session) -> str:
    weights = [weight for weight, _ in OPERATIONS.values()]
    return session.chance.choices(list(OPERATIONS), weights)[0]


def under_way(table: Any) -> list[str]:
    """The transactions that have an intent, or files and no slot."""
    found = {txn_of_intent(key) for key in table._context.fileio.list_keys("intents/")}
    found |= {key.split("/")[1] for key in table._context.fileio.list_keys("data/")} - {
        txn for entry in table.inspect.history() for txn in entry.txns
    }
    return sorted(found)


def txn_of_intent(key: str) -> str:
    return key.removeprefix("intents/").split(".")[0]


def resolution(txn: str, found: Resolution) -> dict[str, Any]:
    """A resolution as a journal keeps it."""
    match found:
        case CommittedAt(slot):
            return {"txn": txn, "committed": True, "slot": slot}
        case RolledBackAt(slot):
            return {"txn": txn, "committed": False, "slot": slot}


def open_table(url: str, options: Mapping[str, Any], name: str, **settings: Any) -> tuple[Any, FileIO]:
    """A handle on the table, and the objects below its prefix."""
    table = objcat.connect(url, options, **settings).table(name)
    return table, table._context.fileio

"""What must be true of the lake at the end of `./dev demo --ingest`, however its ingest was killed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import objcat
from devkit.demo_checks import Check
from devkit.ingest_demo_shop import KEYS, ShopSums
from objcat.timeline.entry import Entry
from objcat.timeline.rollback import CommittedAt, Resolution

SOURCE = "shop"
"""The name of the source, of its namespace in the lake, and of the log that its tables share."""
CONSISTENT = "consistent"
"""The metadata of a commit that say whether the lake had whole transactions then."""


@dataclass(frozen=True, slots=True)
class Kill:
    """The end of a process by SIGKILL.

    Args:
        at_ms: when.
        commits: that the process had made.
        reads: the table that it was reading; None when it followed changes.
        txn: the transaction whose data was in the store, and whose commit was not; None when that was not looked for.
    """

    at_ms: int
    commits: int
    reads: str | None
    txn: str | None = None


@dataclass(slots=True)
class IngestStory:
    """What happened.

    Args:
        lake: where the shop is now.
        sums: those of the shop before the first purchase.
        source_rows: the rows of each table at the source, after the last transaction.
        kills: of the ingest.
        settled: what became of the transaction of the last kill.
        transactions: of the shop.
        altered_slot: the newest slot before the schema changed.
    """

    lake: objcat.Lake
    sums: ShopSums
    source_rows: Mapping[str, Sequence[Mapping[str, Any]]]
    kills: list[Kill] = field(default_factory=list)
    settled: Resolution | None = None
    transactions: int = 0
    altered_slot: int = 0


@dataclass(frozen=True, slots=True)
class SlotState:
    """The shop as of a consistent slot.

    Args:
        slot: the slot.
        committed_at_ms: when it was committed.
        sums: over its tables.
        orders: how many there are.
        newest_ms: when the newest of them was made.
    """

    slot: int
    committed_at_ms: int
    sums: ShopSums
    orders: int
    newest_ms: int


def read_entries(lake: objcat.Lake) -> list[Entry]:
    """All slots of the log that the tables share."""
    return lake.table(f"{SOURCE}.orders")._context.timeline.log.read_after(-1)


def read_states(lake: objcat.Lake, entries: Sequence[Entry]) -> list[SlotState]:
    """The shop as of each slot that says it is consistent."""
    tables = {name: lake.table(f"{SOURCE}.{name}") for name in KEYS}

    def columns(name: str, slot: int, *names: str) -> pa.Table:
        return tables[name].scan(columns=list(names), as_of=slot).to_arrow()

    found = []
    for entry in entries:
        if SOURCE not in entry.positions or entry.metadata.get(CONSISTENT) != "true":
            continue
        orders = columns("orders", entry.slot, "paid", "quantity", "ordered_at")
        money = _sum(columns("customers", entry.slot, "balance")["balance"]) + _sum(orders["paid"])
        goods = _sum(columns("products", entry.slot, "stock")["stock"]) + _sum(orders["quantity"])
        newest = pc.max(orders["ordered_at"]).as_py()
        sums = ShopSums(Decimal(money), int(goods))
        found.append(SlotState(entry.slot, entry.committed_at_ms, sums, orders.num_rows, int(newest.timestamp() * 1000)))
    return found


def check_ingest(story: IngestStory, entries: Sequence[Entry], states: Sequence[SlotState]) -> list[Check]:
    """Every check."""
    return [
        *_check_kills(story, entries),
        *_check_positions(entries),
        *_check_rows(story),
        _check_default(story),
        *_check_sums(story, states),
        _check_dead_letters(story.lake),
    ]


def _check_kills(story: IngestStory, entries: Sequence[Entry]) -> Iterator[Check]:
    read = [kill for kill in story.kills if kill.reads is not None and kill.commits]
    followed = [kill for kill in story.kills if kill.reads is None and kill.commits]
    yield Check(
        "the ingest was killed while it read the tables, and again while it followed their changes, each time after it had committed",
        bool(read and followed),
        "; ".join(f"after {kill.commits} commits, {kill.reads or 'in the stream'}" for kill in story.kills),
    )
    txn = next((kill.txn for kill in story.kills if kill.txn), None)
    slots = [entry.slot for entry in entries if entry.txn == txn]
    match story.settled:
        case None:
            yield Check("the batch that was cut off is there whole or not at all", False, "none was cut off")
        case CommittedAt(slot=slot):
            yield Check("the batch that was cut off is there whole or not at all", slots == [slot], f"its commit came through: slot {slot}")
        case found:
            is_gone = not slots and entries[found.slot].rollback_of == txn
            yield Check("the batch that was cut off is there whole or not at all", is_gone, f"rolled back, {found.files} files deleted")


def _check_positions(entries: Sequence[Entry]) -> Iterator[Check]:
    versions = [entry.positions[SOURCE].version for entry in entries if SOURCE in entry.positions]
    yield Check(
        "each position of the database was committed once, in order, with the rows that belong to it",
        bool(versions) and versions == list(range(len(versions))),
        f"{len(versions)} positions in {len(entries)} slots",
    )


def _check_rows(story: IngestStory) -> Iterator[Check]:
    for table, key in KEYS.items():
        there = {row[key]: dict(row) for row in story.source_rows[table]}
        rows = story.lake.table(f"{SOURCE}.{table}").scan().to_arrow().to_pylist()
        here = {row[key]: {name: _plain(value) for name, value in row.items()} for row in rows}
        missing, added = there.keys() - here.keys(), here.keys() - there.keys()
        changed = [one for one in there.keys() & here.keys() if there[one] != here[one]]
        found = f"{len(there):,} rows, {len(missing)} missing, {len(added)} added, {len(changed)} differ"
        examples = [*sorted(missing), *sorted(added), *sorted(changed)][:3]
        yield Check(
            f"row by row, the lake has the {table} that the database has",
            bool(there) and not missing and not added and not changed and len(rows) == len(here),
            found + (f", such as {', '.join(map(str, examples))}" if examples else ""),
        )


def _check_default(story: IngestStory) -> Check:
    table = story.lake.table(f"{SOURCE}.orders")
    before = table.scan(as_of=story.altered_slot).to_arrow()
    now = table.scan(columns=["id", "channel"]).to_arrow()
    old = now.filter(pc.is_in(now["id"], before["id"]))["channel"]
    others = sum(value != "web" for value in old.to_pylist())
    used = set(now["channel"].to_pylist())
    return Check(
        "orders from before the new column read its default, later ones their own value, and the past has no such column",
        "channel" not in before.column_names and bool(old) and not others and len(used) > 1,
        f"{len(old):,} read 'web', {others} do not; now there are {', '.join(sorted(map(str, used)))}",
    )


def _check_sums(story: IngestStory, states: Sequence[SlotState]) -> Iterator[Check]:
    differ = len({state.orders for state in states})
    yield Check(
        "the consistent slots show the shop as it changes", differ > 2, f"{len(states)} slots, {differ} different numbers of orders"
    )
    for what, wanted, found in (
        ("balances and payments", story.sums.money, {state.slot: state.sums.money for state in states}),
        ("stock and ordered goods", story.sums.goods, {state.slot: Decimal(state.sums.goods) for state in states}),
    ):
        wrong = [f"{total:,} at slot {slot}" for slot, total in found.items() if total != wanted]
        told = (
            f"{len(found)} slots, {wanted:,} each"
            if not wrong
            else f"{len(wrong)} of {len(found)} slots differ from {wanted:,}: {wrong[0]}"
        )
        yield Check(f"{what} add up to the same at every consistent slot", bool(found) and not wrong, told)


def _check_dead_letters(lake: objcat.Lake) -> Check:
    count = lake.table(f"{SOURCE}.ingest_dead").scan().count()
    return Check("no record is among the dead letters", count == 0, f"{count} records")


def _sum(column: pa.ChunkedArray) -> Any:
    return pc.sum(column).as_py() or 0


def _plain(value: Any) -> Any:
    """A value as the driver of the database has it: a time in UTC has no zone there."""
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) else value

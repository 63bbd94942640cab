"""Random histories of a table, written by the local engine: what native reads on Spark are compared with it on."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

import objcat

NAN = float("nan")
SCHEMA = pa.schema(
    [
        pa.field("a", pa.int64(), nullable=False),
        ("b", pa.string()),
        ("n", pa.int32()),
        ("f", pa.float64()),
        ("o", pa.int32()),
        ("v", pa.float64()),
        ("place", pa.struct([("x", pa.int32()), ("s", pa.string())])),
    ]
)
KEYS = [("a",), ("a", "n"), ("b", "a"), ("f", "a")]
FILTERS = ["a < 10 and v > 0.5", "a = 7", "b = 'x' and a in (1, 2, 3)", "o > 10", "place is null", "n = 1 and a = 3"]


@dataclass(slots=True)
class History:
    """A table and what was done to it. key: names. steps: for the message of a failure."""

    table: objcat.Table
    key: tuple[str, ...]
    ordering: str | None
    steps: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"key {self.key}, ordering {self.ordering}, {self.table.spec.table_type}, {self.table.spec.key_scope}: {self.steps}"


def history(place: Path, seed: int, *, steps: tuple[int, int] = (4, 14)) -> History:
    """A table after some random writes, compactions of all or some file groups, and splits. The same for the same seed."""
    chance = random.Random(seed)
    key = chance.choice(KEYS)
    ordering = chance.choice([None, "o"])
    scoped = chance.random() < 0.4
    table = objcat.connect(place).create_table(
        "t",
        SCHEMA,
        key=key,
        ordering=ordering,
        table_type=chance.choice(["merge_on_read", "merge_on_read", "copy_on_write"]),
        partition_by=["n"] if scoped else [],
        key_scope="partition" if scoped else "table",
        index=objcat.BucketIndex(chance.choice([1, 2, 4]), columns=chance.choice([None, ("a",)])),
    )
    made = History(table, key, ordering)
    for _ in range(chance.randrange(*steps)):
        _step(made, chance)
    return made


def _step(made: History, chance: random.Random) -> None:
    table = made.table
    step = chance.choice(["upsert"] * 5 + ["insert", "delete", "delete", "compact", "compact some", "split"])
    made.steps.append(step)
    if step in ("upsert", "insert"):
        getattr(table, step)(rows(chance, chance.randrange(1, 30)))
    elif step == "delete":
        _delete(made, chance)
    elif step == "compact":
        table.maintenance.compact()
    elif step == "compact some":
        group_ids = sorted(table.refresh().live_group_ids(table._context.manifests))
        if group_ids:
            table.maintenance.compact(file_groups=chance.sample(group_ids, max(1, len(group_ids) // 2)))
    elif table.snapshot.table.bucket_count("") < 16 and not table.spec.partitioning.fields:
        table.maintenance.split_buckets()


def _delete(made: History, chance: random.Random) -> None:
    """By key alone, which ends whatever came before, or as of an ordering value."""
    names = list(made.key)
    if made.ordering is not None and chance.random() < 0.5:
        names.append(made.ordering)
        made.steps[-1] = "delete as of"
    names += [field.name for field in made.table.schema if field.name == "n" and made.table.spec.partitioning.fields and "n" not in names]
    made.table.delete(rows(chance, chance.randrange(1, 15)).select(names))


def rows(chance: random.Random, count: int) -> pa.Table:
    """A batch in which keys come twice, orders tie, and values are all kinds of odd."""
    return pa.Table.from_pylist(
        [
            {
                "a": chance.randrange(30),
                "b": chance.choice(["x", "y", "é"]),
                "n": chance.randrange(3),
                "f": chance.choice([0.0, -0.0, NAN, 1.5]),
                "o": chance.randrange(12),
                "v": chance.choice([None, NAN, -0.0, chance.random()]),
                "place": chance.choice([None, {"x": chance.randrange(9), "s": None}]),
            }
            for _ in range(count)
        ],
        schema=SCHEMA,
    )


def comparable(found: pa.Table) -> list[str]:
    """The rows in an order of their own."""
    return sorted(map(repr, found.to_pylist()))

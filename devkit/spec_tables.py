"""`spec/tables/`: one small table for each feature of the format, as the objects of its log, with the rows of each slot as JSON.

One seed and one clock for each table, so that two runs write equal objects. The files of a table that is already there stay as they are,
since what an older version wrote must stay readable. Remove its folder to make it again.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

import objcat
from devkit.spec_values import dumped, rows_json
from fileio.contract import GetResult
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.errors import SnapshotExpired, TableClosed
from objcat.metadata.files import OUTER
from objcat.timeline.hints import Hints
from objcat.timeline.position import read_position

NINE = dt.datetime(2026, 11, 21, 9, tzinfo=dt.UTC)
BEGAN_MS = int(NINE.timestamp() * 1000)
SEED = 0x5BEC0000


@dataclass
class Maker:
    """A lake in memory, whose clock goes on by a minute before every step.

    Args:
        number: Of the feature; ids are drawn from it.
    """

    number: int
    env: FakeEnv = field(init=False)
    backend: MemoryBackend = field(init=False)
    lake: objcat.Lake = field(init=False)

    def __post_init__(self) -> None:
        """Make the empty lake."""
        self.env = FakeEnv(SEED + self.number, now_ms=BEGAN_MS)
        self.backend = MemoryBackend(f"spec-{self.number}", env=self.env)
        self.lake = objcat.Lake(FileIO(self.backend, env=self.env))

    def tick(self, minutes: float = 1) -> None:
        """Let time pass."""
        self.env.advance(60 * minutes)

    def table(self, name: str, schema: pa.Schema, **settings: Any) -> objcat.Table:
        """A new table."""
        self.tick()
        return self.lake.create_table(name, schema, **settings)


Make = Callable[[Maker], None]
"""Makes the tables of one feature."""


@dataclass(frozen=True)
class Feature:
    """A folder of `spec/tables/`. shows: what to look at."""

    name: str
    shows: str
    make: Make
    is_lake: bool = False


@dataclass(frozen=True)
class MadeTable:
    """What `spec/tables/<feature>/` holds.

    Args:
        objects: By key, relative to the prefix of the log (of the lake, where `is_lake`); adopted files by the path that the log names.
        documents: `table.json`, `rows/<slot>.json`, and `positions.json` where the log has some, by path.
    """

    objects: Mapping[str, bytes]
    documents: Mapping[str, str]


def make(feature: Feature, number: int) -> MadeTable:
    """Make the tables of a feature, and read them by objcat. number: its place in the list."""
    maker = Maker(number)
    # A hint is advice, and draws ids. The tables have those of their checkpoints only.
    with mock.patch.object(Hints, "is_due", return_value=False):
        feature.make(maker)
    lake = maker.lake
    tables = [lake.table(name) for name in lake.tables()]
    tables += [] if feature.is_lake else [lake.undrop_table(dropped.name) for dropped in lake.dropped_tables()]
    prefixes = {place_of(lake, table) for table in tables}
    if feature.is_lake:
        return MadeTable(_objects(lake.fileio, ""), {"names.json": dumped(names_of(lake))})
    (prefix,) = prefixes
    objects = {**_objects(lake.fileio, prefix + "/"), **_adopted(lake.fileio)}
    return MadeTable(objects, documents_of(feature, tables, actions_of(objects)))


def place_of(lake: objcat.Lake, table: objcat.Table) -> str:
    """The prefix of a table's log, relative to its lake."""
    return table._context.fileio.url.removeprefix(lake.fileio.url).strip("/")


def names_of(lake: objcat.Lake) -> dict[str, Any]:
    """What the names of a lake mean."""
    return {
        "about": "The names of the lake in objects/, whose names are the log below objects/_catalog/.",
        "tables": [{"name": name, "table": (table := lake.table(name)).id, "prefix": place_of(lake, table)} for name in lake.tables()],
        "namespaces": [{"name": name, "properties": lake.namespaces.properties(name)} for name in lake.namespaces.list()],
        "dropped": sorted(dropped.name for dropped in lake.dropped_tables()),
    }


def actions_of(objects: Mapping[str, bytes]) -> list[str]:
    """The action of every slot of a log."""
    return [str(json.loads(data)["action"]) for key, data in sorted(objects.items()) if key.startswith("log/")]


def documents_of(feature: Feature, tables: Sequence[objcat.Table], actions: Sequence[str]) -> dict[str, str]:
    """What objcat says of every slot of the log."""
    refused: list[dict[str, Any]] = []
    documents = {}
    for slot in range(len(actions)):
        rows: dict[str, Any] = {}
        for table in tables:
            found = _rows(table, slot) if slot >= _born(table) else "not created"
            if isinstance(found, str):
                refused.append({"table": table.id, "slot": slot, "why": found})
            else:
                rows[table.id] = found
        if rows:
            documents[f"rows/{slot}.json"] = dumped(rows)
    described = {
        "feature": feature.name,
        "shows": feature.shows,
        "tables": [{"table": table.id, "name": table.name} for table in tables],
        "slots": [f"{slot} {action}" for slot, action in enumerate(actions)],
        "refused": refused,
    }
    positions = {str(slot): said for slot in range(len(actions)) if (said := _positions(tables[0], slot))}
    return {"table.json": dumped(described), **documents, **({"positions.json": dumped(positions)} if positions else {})}


def _positions(table: objcat.Table, slot: int) -> dict[str, Any]:
    """The position of each source as of a slot."""
    timeline = table._context.timeline
    known = timeline.at(slot).log.sources
    found = {source: read_position(timeline.fileio, source, known[source]) for source in sorted(known)}
    return {
        source: {"version": one.version, "slot": one.slot, "rewound_at": one.rewound_at, "state": dict(one.state)}
        for source, one in found.items()
    }


def _rows(table: objcat.Table, slot: int) -> list[Any] | str:
    """The rows as of a slot, or why there are none."""
    try:
        return rows_json(table.scan(as_of=slot).to_arrow().to_pylist(maps_as_pydicts=None))
    except SnapshotExpired:
        return "expired"
    except TableClosed:
        return "closed"


def _born(table: objcat.Table) -> int:
    """The slot of a table's creation."""
    return next(entry.slot for entry in table.inspect.history() if table.id in entry.changes)


def _objects(fileio: FileIO, prefix: str) -> dict[str, bytes]:
    """Every object below a prefix."""
    found = {key.removeprefix(prefix): fileio.get(key) for key in sorted(fileio.list_keys()) if key.startswith(prefix)}
    return {key: result.data for key, result in found.items() if isinstance(result, GetResult)}


def _adopted(fileio: FileIO) -> dict[str, bytes]:
    """The objects of the lake that are neither of tables nor of names, under the paths by which a log names them."""
    found = _objects(fileio, "")
    return {f"{OUTER}/{key}": data for key, data in found.items() if not key.startswith(("tables/", "_catalog/"))}


def write(folder: Path, made: MadeTable) -> None:
    """Write a table below a folder that does not exist."""
    for key, data in made.objects.items():
        path = folder / "objects" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for name, text in made.documents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

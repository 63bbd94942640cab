"""The smallest conforming reader: the pseudocode of docs/spec/reading.md, line by line, as Python. It shares no code with objcat."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Json = dict[str, Any]
Id = tuple[str, int, int]
FEATURES = {"adopted_files", "base_order", "column_defaults", "erased_partitions", "ordering_columns", "shared_slots"}
ACTIONS = {
    *("CREATE", "COMMIT", "DELTA_COMMIT", "REPLACE", "COMPACTION", "CLEAN", "ROLLBACK", "SAVEPOINT", "RESTORE", "SCHEMA", "CLOSE"),
}


class Refused(Exception):
    """A slot that is not readable. Its text: expired, closed, not created."""


class Unsupported(Exception):
    """A later format, an unknown feature, an unknown action."""


@dataclass(frozen=True)
class Event:
    id: Id
    slot: int
    as_of: int
    path: str | None
    adopted: Json | None = None


@dataclass(frozen=True)
class Slice:
    id: Id
    counts_as: int
    named_at: int
    number: int
    path: str
    start: int
    end: int
    at_ms: int


@dataclass(frozen=True)
class State:
    spec: Json
    counts: dict[str, int] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    slices: tuple[Slice, ...] = ()

    def count(self, partition: str) -> int:
        return int(self.counts.get(partition) or self.spec["index"].get("count") or 65_536)


class Reader:
    """One log in a directory. hash_key: the hash of the spec, of pairs of type and value."""

    def __init__(self, root: Path, hash_key: Any, logical: Any) -> None:
        self.root, self.hash_key, self.logical = root, hash_key, logical
        self.log: list[Json] = []
        while (entry := self.entry(len(self.log))) is not None:
            self.log.append(entry)

    def entry(self, slot: int) -> Json | None:
        path = self.root / f"log/{slot:020d}.json"
        if not path.exists():
            return None
        e: Json = json.loads(path.read_bytes())
        if e.get("history"):
            rows = pq.read_table(io.BytesIO((self.root / e["history"]["file"]["path"]).read_bytes()))
            e = json.loads(rows["entry"][e["history"]["row"]].as_py())
        if e["format"] > 1 or set(e.get("features") or {}) - FEATURES or e["action"] not in ACTIONS:
            raise Unsupported(f"slot {slot}")
        if e.get("side"):
            e["changes"] = json.loads((self.root / e["side"]["path"]).read_bytes())
        return e

    def read(self, table: str, slot: int) -> list[Json]:
        floor, saved, born, is_closed = 0, set(), None, False
        for n, e in enumerate(self.log):
            f = (e.get("footprint") or {}).get(table)
            if f is None:
                continue
            born = n if born is None else born
            floor = max(floor, f.get("bound") or 0)
            saved |= {f["saves"]} if f.get("saves") is not None else set()
            saved -= {f["releases"]} if f.get("releases") is not None else set()
            if n <= slot:
                is_closed = e["action"] == "CLOSE" or (is_closed and f.get("restores") is None)
        if born is None or not born <= slot < len(self.log):
            raise Refused("not created")
        if slot < floor and slot not in saved:
            raise Refused("expired")
        if is_closed:
            raise Refused("closed")
        state = self.replay(table, slot)
        return [row for group in self.groups(state) for row in self.merge(state, *group)]

    def replay(self, table: str, slot: int) -> State:
        state: State | None = None
        created: set[str] = set()
        for e in self.log[: slot + 1]:
            restores = ((e.get("footprint") or {}).get(table) or {}).get("restores")
            if restores is not None:
                state = self.replay(table, restores)
            c = (e.get("changes") or {}).get(table)
            erased = set((e.get("erased") or {}).get(table) or ())
            if state is None:
                if c is None:
                    continue
                state, created = State(c["spec"]), erased
            if erased - created:
                raise Unsupported("an erasure is under way")
            if c is None:
                continue
            n, as_of = e["slot"], c.get("as_of")
            events = [Event(id_of(home), n, n - 1, None) for home in c.get("retires") or ()]
            below = -1 if as_of is None else as_of
            events += [Event(id_of(b["home"]), n, below, b["path"], b.get("adopted")) for b in c.get("bases") or ()]
            rewritten = {id_of(b["home"]) for b in c.get("bases") or ()} if as_of is not None else set()
            slices = []
            for number, log in enumerate(c.get("logs") or ()):
                for home, start, end in log["homes"]:
                    counts_as, at_ms = (as_of, 0) if id_of(home) in rewritten else (n, e["committed_at_ms"])
                    slices.append(Slice(id_of(home), counts_as, n, number, log["path"], start, end, at_ms))
            state = State(
                c.get("spec") or state.spec,
                state.counts | (c.get("splits") or {}),
                (*state.events, *events),
                (*state.slices, *slices),
            )
        assert state is not None
        return state

    def groups(self, state: State) -> Iterator[tuple[Id, Event, list[Slice]]]:
        ids: set[Id] = set()
        for partition, bucket, count in {event.id for event in state.events} | {one.id for one in state.slices}:
            now = state.count(partition)
            ids |= {(partition, b, now) for b in range(bucket % math.gcd(count, now), now, math.gcd(count, now))}
        for group_id in ids:
            events = [event for event in state.events if overlap(event.id, group_id)]
            newest = max(events, key=lambda event: (event.slot, event.path is not None), default=Event(group_id, -1, -1, None))
            cut = max((event.as_of for event in events), default=-1)
            slices = [s for s in state.slices if overlap(s.id, group_id) and (s.counts_as > cut or s.named_at == newest.slot)]
            yield group_id, newest, sorted(slices, key=lambda s: (s.counts_as, s.named_at, s.number))

    def merge(self, state: State, group_id: Id, newest: Event, slices: list[Slice]) -> list[Json]:
        spec = state.spec
        rows = [] if newest.path is None else [(row, False, 0) for row in self.base(spec, newest.path, newest.adopted)]
        rows += [(row, row["_objcat_op"] == 1, s.at_ms) for s in slices for row in self.file(s.path)[s.start : s.end]]
        columns = {c["id"]: c for c in spec["table_schema"]["columns"]}
        if not spec.get("key"):
            return [self.shown(spec, row) for row, _, _ in rows]

        def value(row: Json, column: int) -> Any:
            return row.get(columns[column]["physical"])

        kept: dict[Any, tuple[Any, Json | None]] = {}
        for row, is_delete, at_ms in rows:
            hashed = [(columns[column]["type"], value(row, column)) for column in spec["index"].get("columns") or ()]
            if hashed and self.hash_key(hashed) % group_id[2] != group_id[1]:
                continue
            key = tuple(comparable(value(row, column)) for column in spec["key"])
            ordering = [] if spec.get("ordering") is None else [spec["ordering"], *(spec.get("ordering_more") or ())]
            values = [value(row, column) for column in ordering]
            rank = None if not values or None in values else [comparable(one) for one in values]
            if rank is not None:
                if spec.get("lateness_ms") is not None and at_ms:
                    unit = 86_400_000_000 if columns[spec["ordering"]]["type"] == "date" else 1
                    if values[0] * unit < (at_ms - spec["lateness_ms"]) * 1000:
                        continue
                before = kept.get(key, (None, None))[0]
                if before is not None and rank < before:
                    continue
            kept[key] = (rank, None if is_delete else row)
        return [self.shown(spec, row) for _, row in kept.values() if row is not None]

    def base(self, spec: Json, path: str, adopted: Json | None) -> list[Json]:
        if adopted is None:
            return self.file(path)
        names, values = adopted.get("names") or {}, adopted.get("values") or {}
        columns = [(str(c["id"]), c["physical"], c["type"]) for c in spec["table_schema"]["columns"]]

        def row_of(row: Json) -> Json:
            return {p: said(values[i], kind) if i in values else row.get(names.get(i, p)) for i, p, kind in columns}

        return [row_of(row) for row in self.file(path)]

    def file(self, path: str) -> list[Json]:
        table = pq.read_table(io.BytesIO((self.root / path).read_bytes()), coerce_int96_timestamp_unit="us")
        micros = [c.cast(pa.timestamp("us", c.type.tz)) if pa.types.is_timestamp(c.type) else c for c in table.columns]
        numbers = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in micros]
        numbers = [column.cast(pa.int32()) if pa.types.is_date(column.type) else column for column in numbers]
        return pa.table(numbers, table.schema.names).to_pylist()

    def shown(self, spec: Json, row: Json) -> Json:
        columns = spec["table_schema"]["columns"]
        return {c["name"]: self.logical(row[c["physical"]], c["type"]) if c["physical"] in row else default(c) for c in columns}


def said(value: Any, kind: Any) -> Any:
    """A value of a log as the file would have it."""
    if kind == "binary" and value is not None:
        return bytes.fromhex(value)
    return float(value) if kind in ("float", "double") and value is not None else value


def id_of(home: Any) -> Id:
    return str(home[0]), int(home[1]), int(home[2])


def overlap(one: Id, other: Id) -> bool:
    return one[0] == other[0] and (one[1] - other[1]) % math.gcd(one[2], other[2]) == 0


def default(column: Json) -> Any:
    """The value of a column that a file lacks, in the form of spec/README.md."""
    value = column.get("initial_default")
    return f"{value[: -len('+00:00')]}Z" if value is not None and column["type"] == "timestamp" else value


def comparable(value: Any) -> Any:
    """NaN equals NaN and is the greatest; text compares by its bytes; -0.0 is 0.0."""
    if isinstance(value, float) and math.isnan(value):
        return (1, 0)
    return (0, value.encode() if isinstance(value, str) else value)

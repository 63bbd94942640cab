"""Operations that change rows: what is drawn for each, what the model does, and what the table does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import objcat
from objcat.errors import CommitConflict, InvalidBatch
from tests.combinations.filters import compare, literal, quoted
from tests.combinations.model import Draft, State
from tests.combinations.tables import NAME, OTHER, DrawnTable
from tests.combinations.values import FLOATING, WHOLE, Column, Values, accepts, draw, wider


def put(draft: Draft, rows: Sequence[Values], places: Sequence[str]) -> None:
    for row, place in zip(rows, places, strict=True):
        draft.put(row, place)


def check_counts(result: objcat.CommitResult, draft: Draft) -> None:
    """What a write that looks keys up tells of rows that it began and ended."""
    if result.inserted is not None:
        assert result.inserted == len(draft.rows.keys() - draft.before.rows.keys())
    if result.deleted is not None:
        assert result.deleted == len(draft.before.rows.keys() - draft.rows.keys())


def upsert(table: DrawnTable) -> None:
    if not table.key:
        append(table)
        return
    rng, rows, fixed = table.rng, table.rows(8), table.fixed
    columns = [column for column in table.columns if not column.nullable or column.uid in fixed or rng.random() > 0.1]
    rng.shuffle(columns)
    uids = {column.uid for column in columns}
    rows = [{uid: value if uid in uids else None for uid, value in row.items()} for row in rows]
    places, draft = table.places(rows), table.draft()
    operation = rng.choice(["upsert", "upsert", "upsert", "insert", "bulk_insert"])
    table.tell(operation, table.shown(rows, columns))
    result = getattr(table.table, operation)(table.batch(rows, columns))
    put(draft, rows, places)
    if operation == "upsert":
        check_counts(result, draft)
    table.done(result.slot, draft)


def upsert_and_delete(table: DrawnTable) -> None:
    if not table.key:
        return
    rows = table.rows(8)
    gone = [table.rng.random() < 0.3 for _ in rows]
    places, ends, draft = table.places(rows), table.places_of_deletes(rows), table.draft()
    for row, is_gone, place, end in zip(rows, gone, places, ends, strict=True):
        if is_gone:
            draft.delete(row, end, measured=True)
        else:
            draft.put(row, place)
    table.tell("upsert with deletes", list(zip(gone, table.shown(rows), strict=True)))
    data = table.batch(rows).append_column("gone_", pa.array(gone))
    result = table.table.upsert(data, delete_when="gone_")
    check_counts(result, draft)
    table.done(result.slot, draft)


def append(table: DrawnTable) -> None:
    if table.key:
        return
    rows, draft = table.rows(8), table.draft()
    sort = table.rng.choice([None, None, "none", "partition", [table.rng.choice([one.name for one in table.columns if one.is_plain])]])
    table.tell("append", f"sorted by {sort}", table.shown(rows))
    put(draft, rows, table.places(rows))
    result = table.table.insert(table.batch(rows)) if sort is None else table.table.bulk_insert(table.batch(rows), sort=sort)
    table.done(result.slot, draft)


def delete(table: DrawnTable) -> None:
    if not table.key:
        return
    rows, draft = table.rows(5), table.draft()
    measured = table.ordering is not None and table.rng.random() < 0.5
    columns = table.naming(measured=measured)
    for row, place in zip(rows, table.places_of_deletes(rows), strict=True):
        draft.delete(row, place, measured=measured)
    table.tell("delete", table.shown(rows, columns))
    table.done(table.table.delete(table.batch(rows, columns)).slot, draft)


def delete_where(table: DrawnTable) -> None:
    found, sql = table.sql_filter()
    draft = table.draft()
    gone = [ident for ident, row in draft.rows.items() if found(row.values)]
    for ident in gone:
        draft.end(ident)
    how = table.rng.choice(["sql", "sql", "expression", "statement"])
    table.tell("delete where", sql, f"as {how}")
    result: Any
    if how == "statement":
        told = table.lake.sql(f"DELETE FROM {NAME} WHERE {sql}").to_pylist()[0]
        assert (told["deleted"] or 0) == len(gone)
        assert (told["slot"] is None) == (not gone)
        if gone:
            table.done(told["slot"], draft)
        return
    result = table.table.delete(found.expression if how == "expression" and found.expression is not None else sql)
    assert (result is None) == (not gone), f"told {result}, and {len(gone)} rows were to be deleted"
    if result is not None:
        assert result.deleted == len(gone)
        table.done(result.slot, draft)


def as_sql(value: Any, kind: str) -> str | None:
    """A value of a type; None: null, which is also taken for what has no literal."""
    text = literal(value)
    if text is None:
        return None
    if kind.startswith("decimal") or kind in (*FLOATING, *WHOLE):
        return f"cast('{text}' as {kind})"
    prefix = {"date": "DATE ", "timestamp": "TIMESTAMP_LTZ ", "timestamp_ntz": "TIMESTAMP_NTZ "}.get(kind, "")
    return f"{prefix}{text[:-1]}+00:00'" if kind == "timestamp" else prefix + text


def update_where(table: DrawnTable) -> None:
    rng, free = table.rng, table.free
    if not free:
        return
    column = rng.choice(free)
    value = table.value_of(column)
    text = as_sql(value, str(column.type))
    others = [other for other in table.columns if other.type == column.type and other.uid != column.uid]
    source = rng.choice(others) if others and rng.random() < 0.4 else None
    found, sql = table.sql_filter()
    draft = table.draft()
    changed = [ident for ident, row in draft.rows.items() if found(row.values)]
    for ident in changed:
        new = draft.rows[ident].values.get(source.uid) if source is not None else None if text is None else value
        draft.change(ident, {column.uid: new})
    setting = {column.name: quoted(source.name) if source is not None else text}
    table.tell("update", setting, "where", sql)
    result = table.table.update(setting, where=sql)
    assert (result is None) == (not changed), f"told {result}, and {len(changed)} rows were to be changed"
    if result is not None:
        assert result.updated == len(changed)
        table.done(result.slot, draft)


@dataclass(frozen=True)
class Clauses:
    """Of a merge. matched: what becomes of rows that the source matches. column: what is set of them. beside: what is set of the others."""

    matched: str
    column: Column | None
    inserts: bool
    beside: Column | None

    def on(self, merge: Any) -> Any:
        if self.matched == "update":
            merge = merge.when_matched_update()
        elif self.matched == "delete":
            merge = merge.when_matched_delete()
        elif self.column is not None:
            merge = merge.when_matched_update({self.column.name: f"source.{quoted(self.column.name)}"})
        if self.inserts:
            merge = merge.when_not_matched_insert()
        return merge if self.beside is None else merge.when_not_matched_by_source_update({self.beside.name: None})

    def take(self, draft: Draft, row: Values, place: str) -> None:
        """A row of the source."""
        ident = draft.ident(row, place)
        if ident not in draft.before.rows:
            if self.inserts:
                draft.put(row, place)
        elif self.matched == "update":
            draft.put(row, place)
        elif self.matched == "delete":
            draft.end_by(ident, row)
        elif self.column is not None:
            draft.change(ident, {self.column.uid: row[self.column.uid]})


def merge(table: DrawnTable) -> None:
    if not table.key:
        return
    rng, free = table.rng, table.free
    rows = table.distinct(table.rows(6))
    matched = rng.choice(["update", "delete", "nothing", *(["set"] if free else [])])
    clauses = Clauses(
        matched,
        column=rng.choice(free) if matched == "set" else None,
        inserts=rng.random() < 0.7,
        beside=rng.choice(free) if free and rng.random() < 0.3 else None,
    )
    if matched == "nothing" and not clauses.inserts and clauses.beside is None:
        return
    places, draft = table.places(rows), table.draft()
    for row, place in zip(rows, places, strict=True):
        clauses.take(draft, row, place)
    if clauses.beside is not None:
        idents = {draft.ident(row, place) for row, place in zip(rows, places, strict=True)}
        for ident in draft.before.rows.keys() - idents:
            draft.change(ident, {clauses.beside.uid: None})
    names = [column and column.name for column in (clauses.column, clauses.beside)]
    table.tell(f"merge: matched {matched} {names[0]}, inserts {clauses.inserts}, not by source {names[1]},", table.shown(rows))
    _done_if_any(table, clauses.on(table.table.merge(table.batch(rows))).execute(), draft)


def _done_if_any(table: DrawnTable, result: objcat.CommitResult | None, draft: Draft) -> None:
    """Nothing is committed where nothing changes; something may be where all of it is older than what is there."""
    assert result is not None or not draft.is_changed, "the table says that nothing is to be done"
    if result is not None:
        table.done(result.slot, draft)


def upsert_partial(table: DrawnTable) -> None:
    if not table.key:
        return
    rows, parting = table.distinct(table.rows(4)), table.parting
    columns = [one for one in table.columns if not one.nullable or one.uid in parting or table.rng.random() < 0.5]
    places, draft = table.places(rows), table.draft()
    table.tell("upsert_partial", table.shown(rows, columns))
    for row, place in zip(rows, places, strict=True):
        there = draft.before.rows.get(draft.ident(row, place))
        kept = {one.uid: None for one in table.columns} if there is None else there.values
        draft.put({**kept, **{one.uid: row[one.uid] for one in columns}}, place)
    _done_if_any(table, table.table.upsert_partial(table.batch(rows, columns)), draft)


def transaction(table: DrawnTable) -> None:
    if not table.key:
        return
    first, gone, last, draft = table.rows(4), table.rows(2), table.rows(4), table.draft()
    columns = table.naming(measured=table.ordering is not None)
    put(draft, first, table.places(first))
    for row, place in zip(gone, table.places_of_deletes(gone), strict=True):
        draft.delete(row, place, measured=True)
    put(draft, last, table.places(last))
    table.tell("transaction of an upsert", table.shown(first), "a delete", table.shown(gone, columns), "an upsert", table.shown(last))
    with table.lake.transaction() as tx:
        if table.other is not None and table.rng.random() < 0.5:
            tx[OTHER].upsert([{"id": 1}])
        tx[NAME].upsert(table.batch(first))
        tx[NAME].delete(table.batch(gone, columns))
        tx[NAME].upsert(table.batch(last))
    assert tx.result is not None
    table.done(tx.result.slot, draft)


def write_that_alters(table: DrawnTable) -> None:
    """A batch with a column that the table lacks, or with one of a wider type."""
    rng, columns, fixed = table.rng, list(table.columns), table.fixed
    names = [name for name in ("g0", "g1", "v0", "v1", "n") if name not in {column.name.lower() for column in columns}]
    wide = [column for column in columns if column.uid not in fixed and wider(column.type)]
    mode = rng.choice(["add", "widen"])
    rows = table.rows(4)
    places = table.places(rows)
    if mode == "widen" and wide and rng.random() < 0.6:
        column = rng.choice(wide)
        new = Column(column.uid, column.name, rng.choice(wider(column.type)))
        columns[columns.index(column)] = new
    elif names:
        new = table.column(rng.choice(names), table.any_type())
        columns.append(new)
    else:
        return
    rows = [{**row, new.uid: draw(rng, new.type)} for row in rows]
    draft = table.draft()
    draft.columns = tuple(columns)
    put(draft, rows, places)
    operation = "insert" if not table.key or rng.random() < 0.3 else "upsert"
    table.tell(operation, f"with schema_mode={mode}, {new.name} {new.type}", table.shown(rows, columns))
    table.done(getattr(table.table, operation)(table.batch(rows, columns), schema_mode=mode).slot, draft)


def write_by_a_stale_handle(table: DrawnTable) -> None:
    """Through a handle that has not looked for long. Names mean what they meant to it: a write that looks at what is there now is refused
    where one is gone, and one that does not may be, when it has to be done again. That one is refused where the table was restored."""
    rng, handle, base = table.rng, table.stale, table.stale.snapshot.slot
    now = {column.name: column for column in table.columns}
    columns, gone = [], False
    for column in table.at(base).columns:
        same = now.get(column.name)
        taken = False if same is None else None if same.uid != column.uid else accepts(same.type, column.type)
        if taken or (taken is False and rng.random() < 0.5):
            columns.append(column)
            gone |= not taken
    uids = {column.uid for column in columns}
    if not {column.uid for column in table.columns if not column.nullable or column.uid in table.fixed} <= uids:
        table.stale = table.lake.table(NAME)
        return
    rows = table.rows(4, columns)
    full = [{column.uid: row.get(column.uid) for column in table.columns} for row in rows]
    places, draft = table.places(full), table.draft()
    operation = "insert" if not table.key or rng.random() < 0.2 else "upsert"
    is_blind = (not table.key or operation == "upsert") and not table.spec.rewrites and not table.spec.is_located
    is_beaten = is_blind and any(slot > base for slot, _ in table.restores)
    expected: tuple[type[Exception], ...] = (*([InvalidBatch] if gone else []), *([CommitConflict] if is_beaten else []))
    table.tell(operation, f"by a handle that stands at {base}", table.shown(rows, columns))
    try:
        result = getattr(handle, operation)(table.batch(rows, columns))
    except expected:
        assert table.table.refresh().slot == table.newest, "a write that was refused has a slot"
        handle.refresh()
        return
    assert not is_beaten and (is_blind or not gone), "the write was not refused"
    put(draft, full, places)
    table.done(result.slot, draft)
    if rng.random() < 0.5:
        table.stale = table.lake.table(NAME)


def overwrite(table: DrawnTable) -> None:
    rows, draft = table.rows(4), table.draft()
    draft.clear()
    put(draft, rows, table.places(rows, anew=True))
    table.tell("overwrite", table.shown(rows))
    table.done(table.table.overwrite(table.batch(rows)).slot, draft)


def insert_overwrite(table: DrawnTable) -> None:
    if table.spec.former:
        return
    rows, draft = table.rows(4), table.draft()
    places = table.places(rows)
    draft.clear(set(places) if table.spec.partition_columns else None)
    put(draft, rows, places)
    table.tell("insert_overwrite", table.shown(rows))
    table.done(table.table.insert_overwrite(table.batch(rows)).slot, draft)


def delete_partition(table: DrawnTable) -> None:
    spec, draft = table.spec, table.draft()
    names = [spec.table_schema.by_id(field.column).name for field in spec.partitioning.fields if field.transform == "identity"]
    # A delete whose key had no row lies in the partition of nulls where keys move: which ones end is not told.
    if spec.former or not names or not draft.rows or (spec.is_global and table.ordering is not None):
        return
    name = table.rng.choice(names)
    column = next(column for column in table.columns if column.name == name)
    value = table.rng.choice(list(draft.rows.values())).values[column.uid]
    where = f"{quoted(column.name)} {'is null' if value is None else f'= {literal(value)}'}"
    if value is not None and (literal(value) is None or compare("=", value, value) is not True):
        return
    draft.clear({row.place for row in draft.rows.values() if row.values[column.uid] == value})
    table.tell("delete_partition", where)
    result = table.table.delete_partition(where)
    assert result is not None
    table.done(result.slot, draft)


def restore(table: DrawnTable) -> None:
    to = table.rng.choice(table.readable())
    table.tell("restore", to)
    state: State = table.at(to)
    result = table.table.restore(to=to)
    assert result.slot == len(table.states)
    table.restores.append((result.slot, to))
    table.became(state, result.slot)

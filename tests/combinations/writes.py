"""Operations that change rows: what is drawn for each, what the model does, and what the table does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

import objcat
from objcat.errors import CommitConflict, InvalidBatch, InvalidInput
from tests.combinations.filters import compare, literal, quoted
from tests.combinations.model import Draft, State
from tests.combinations.tables import NAME, OTHER, DrawnTable
from tests.combinations.values import FLOATING, WHOLE, Column, Values, accepts, batch_of, draw, wider


def put(draft: Draft, rows: Sequence[Values], places: Sequence[str], *, timed: bool = True) -> None:
    for row, place in zip(rows, places, strict=True):
        draft.put(row, place, timed=timed)


def insert(table: DrawnTable, draft: Draft, rows: Sequence[Values], places: Sequence[str]) -> None:
    """Rows that are declared new: how late they are is not asked where there are none yet."""
    first = [False] * len(rows) if table.lateness is None else table.are_first(rows, places)
    for row, place, is_first in zip(rows, places, first, strict=True):
        draft.put(row, place, timed=not is_first)


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
    operation = rng.choice(["upsert", "upsert", "upsert", "insert", "bulk_insert", "statement"])
    table.tell(operation, table.shown(rows, columns))
    if operation == "upsert":
        put(draft, rows, places)
    else:
        insert(table, draft, rows, places)
    if operation == "statement":
        table.done(_insert_by_statement(table, rows, columns), draft)
        return
    result = getattr(table.table, operation)(table.batch(rows, columns))
    if operation == "upsert":
        check_counts(result, draft)
    table.done(result.slot, draft)


def _insert_by_statement(table: DrawnTable, rows: Sequence[Values], columns: Sequence[Column]) -> int:
    """INSERT INTO by the names of columns, or by a list of them; the slot of it."""
    source, names = table.beside(rows, columns), ", ".join(quoted(column.name) for column in columns)
    how = table.rng.choice([f"({names}) SELECT *", "BY NAME SELECT *", f"({names}) SELECT {names}"])
    told = table.sql(f"INSERT INTO {NAME} {how} FROM {source}")
    return int(told["slot"])


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
    result = table.table.upsert(table.batch(rows, marks=gone), delete_when="gone_")
    check_counts(result, draft)
    table.done(result.slot, draft)


def append(table: DrawnTable) -> None:
    if table.key:
        return
    rows, draft = table.rows(8), table.draft()
    sort = table.rng.choice([None, None, "none", "partition", [table.rng.choice([one.name for one in table.columns if one.is_plain])]])
    table.tell("append", f"sorted by {sort}", table.shown(rows))
    put(draft, rows, table.places(rows))
    if table.rng.random() < 0.2:
        table.done(_insert_by_statement(table, rows, table.columns), draft)
        return
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
        told = table.sql(f"DELETE FROM {NAME} WHERE {sql}")
        assert (told["deleted"] or 0) == len(gone)
        assert (told["slot"] is None) == (not gone)
        if gone:
            table.done(told["slot"], draft)
        return
    result = table.table.delete(found.expression if how == "expression" and found.expression is not None else sql, spark=table.spark())
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


def refused(table: DrawnTable, what: str, call: Callable[[], object]) -> None:
    """What computes rows from those that are there does not work where old ones count for nothing, on neither engine; nothing is drawn."""
    table.tell(what, "which is refused")
    slot = table.table.refresh().slot
    with pytest.raises(InvalidInput, match="does not work on a table with allowed_lateness"):
        call()
    assert table.table.refresh().slot == slot, "what was refused has a slot"


def update_where(table: DrawnTable) -> None:
    rng, free = table.rng, table.free
    if not free:
        return
    if table.lateness is not None:
        name = free[0].name
        if len(table.states) % 2:
            refused(table, "UPDATE", lambda: table.sql(f"UPDATE {NAME} SET {quoted(name)} = NULL"))
        else:
            refused(table, "update", lambda: table.table.update({name: None}, spark=table.spark() if table.key else None))
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
    by_statement = rng.random() < 0.3
    table.tell("UPDATE" if by_statement else "update", setting, "where", sql)
    if by_statement:
        new_value = quoted(source.name) if source is not None else text or "NULL"
        told = table.sql(f"UPDATE {NAME} SET {quoted(column.name)} = {new_value} WHERE {sql}")
        assert (told["updated"] or 0) == len(changed)
        assert (told["slot"] is None) == (not changed)
        if changed:
            table.done(told["slot"], draft)
        return
    result = table.table.update(setting, where=sql, spark=table.spark() if table.key else None)
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

    def said(self, source: str, table: DrawnTable) -> str:
        """As a statement."""
        keys = [quoted(column.name) for column in table.columns if column.uid in table.key]
        text = f"MERGE INTO {NAME} USING {source} s ON {' AND '.join(f'{NAME}.{key} = s.{key}' for key in keys)}"
        if self.matched == "update":
            text += " WHEN MATCHED THEN UPDATE SET *"
        elif self.matched == "delete":
            text += " WHEN MATCHED THEN DELETE"
        elif self.column is not None:
            text += f" WHEN MATCHED THEN UPDATE SET {quoted(self.column.name)} = s.{quoted(self.column.name)}"
        if self.inserts:
            text += " WHEN NOT MATCHED THEN INSERT *"
        return text if self.beside is None else f"{text} WHEN NOT MATCHED BY SOURCE THEN UPDATE SET {quoted(self.beside.name)} = NULL"

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
    if table.lateness is not None:
        clauses, there = Clauses("update", None, inserts=True, beside=None), table.state.values[:3]
        if not there:
            return
        if len(table.states) % 2:
            statement = clauses.said(table.beside(there, table.columns), table)
            refused(table, "MERGE", lambda: table.sql(statement))
        else:
            refused(table, "merge", lambda: clauses.on(table.table.merge(table.batch(there))).execute())
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
    by_statement = rng.random() < 0.3
    what = "MERGE" if by_statement else "merge"
    table.tell(f"{what}: matched {matched} {names[0]}, inserts {clauses.inserts}, not by source {names[1]},", table.shown(rows))
    if by_statement:
        told = table.sql(clauses.said(table.beside(rows, table.columns), table))
        assert told["slot"] is not None or not draft.is_changed, "the statement says that nothing is to be done"
        if told["slot"] is not None:
            table.done(told["slot"], draft)
        return
    _done_if_any(table, clauses.on(table.table.merge(table.batch(rows))).execute(), draft)


def _done_if_any(table: DrawnTable, result: objcat.CommitResult | None, draft: Draft) -> None:
    """Nothing is committed where nothing changes; something may be where all of it is older than what is there."""
    assert result is not None or not draft.is_changed, "the table says that nothing is to be done"
    if result is not None:
        table.done(result.slot, draft)


def upsert_partial(table: DrawnTable) -> None:
    if not table.key:
        return
    if table.lateness is not None:
        refused(table, "upsert_partial", lambda: table.table.upsert_partial(table.batch(table.state.values[:3])))
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
        new = replace(column, type=rng.choice(wider(column.type)))
        columns[columns.index(column)] = new
    elif names:
        new = table.column(rng.choice(names), table.any_type())
        columns.append(new)
    else:
        return
    rows = [{**row, new.uid: draw(rng, new.type)} for row in rows]
    draft = table.draft()
    draft.columns = tuple(columns)
    operation = "insert" if not table.key or rng.random() < 0.3 else "upsert"
    (put if operation == "upsert" else partial(insert, table))(draft, rows, places)
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
    (put if operation == "upsert" else partial(insert, table))(draft, full, places)
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
    table.done(result.slot, draft)
    if rng.random() < 0.5:
        table.stale = table.lake.table(NAME)


def overwrite(table: DrawnTable) -> None:
    rows, draft = table.rows(4), table.draft()
    draft.clear()
    put(draft, rows, table.places(rows, anew=True), timed=False)
    table.tell("overwrite", table.shown(rows))
    table.done(table.table.overwrite(table.batch(rows)).slot, draft)


def insert_overwrite(table: DrawnTable) -> None:
    """Of the partitions in which the batch has rows, or of those that a filter names."""
    if table.spec.former:
        return
    rows, draft = table.rows(4), table.draft()
    named = _drawn_partitions(table) if table.rng.random() < 0.5 else None
    where = None
    if named is not None:
        column, value, where = named
        rows = [{**row, column.uid: value} for row in rows]
    places = table.places(rows)
    ended = set(places) if named is None else {*places, *table.places_where(lambda row: row[column.uid] == value)}
    draft.clear(ended if table.spec.partition_columns else None)
    put(draft, rows, places, timed=False)
    how = table.rng.choice(["", "", "statement"])
    table.tell("insert_overwrite", table.shown(rows), f"where {where}" if where else "", how)
    if how != "statement":
        table.done(table.table.insert_overwrite(table.batch(rows), where=where).slot, draft)
        return
    source = table.beside(rows, table.columns)
    into = f"OVERWRITE {NAME}" if where is None else f"INTO {NAME} REPLACE WHERE {where}"
    table.done(table.sql(f"INSERT {into} SELECT * FROM {source}")["slot"], draft)


def _drawn_partitions(table: DrawnTable) -> tuple[Column, Any, str] | None:
    """A column that partitions are made of, a value of it, and the filter that names the partitions with it."""
    spec, state = table.spec, table.state
    names = [spec.table_schema.by_id(field.column).name for field in spec.partitioning.fields if field.transform == "identity"]
    if not names or not state.rows:
        return None
    name = table.rng.choice(names)
    column = next(column for column in table.columns if column.name == name)
    value = table.rng.choice(list(state.rows.values())).values[column.uid]
    if value is not None and (literal(value) is None or compare("=", value, value) is not True):
        return None
    return column, value, f"{quoted(column.name)} {'is null' if value is None else f'= {literal(value)}'}"


def delete_partition(table: DrawnTable) -> None:
    named, draft = _drawn_partitions(table), table.draft()
    if table.spec.former or named is None:
        return
    column, value, where = named
    draft.clear(table.places_where(lambda row: row[column.uid] == value))
    table.tell("delete_partition", where)
    result = table.table.delete_partition(where)
    assert result is not None
    table.done(result.slot, draft)


def soft_delete(table: DrawnTable) -> None:
    """Rows that stay, empty or with a flag."""
    fixed = table.fixed
    emptied = [column for column in table.columns if column.uid not in fixed]
    flags = [column for column in table.free if column.type == "boolean"]
    if not emptied or not all(column.nullable for column in emptied):
        return
    if table.lateness is not None:
        spark = table.spark() if table.key else None
        refused(table, "soft_delete", lambda: table.table.soft_delete("true", spark=spark))
        return
    flag = table.rng.choice(flags) if flags and table.rng.random() < 0.5 else None
    found, sql = table.sql_filter()
    draft = table.draft()
    changed = [ident for ident, row in draft.rows.items() if found(row.values)]
    for ident in changed:
        draft.change(ident, {column.uid: None for column in emptied} if flag is None else {flag.uid: True})
    table.tell("soft_delete", sql, "" if flag is None else f"by {flag.name}")
    spark = table.spark() if table.key else None
    result = table.table.soft_delete(sql, flag=None if flag is None else flag.name, spark=spark)
    assert (result is None) == (not changed), f"told {result}, and {len(changed)} rows were to be changed"
    if result is not None:
        assert result.updated == len(changed)
        table.done(result.slot, draft)


def erase(table: DrawnTable) -> None:
    """For good: no slot that can be read then has such rows. Savepoints that hold such rows refuse it, and so they are released before."""
    if table.several:
        # The model does not say which deletes an erasure ends, and such tables have many. `tests/tables/test_ordering_columns.py` erases.
        return
    keys = [column for column in table.columns if column.uid in table.key]
    there = table.state.values
    given = [table.rng.choice(there) for _ in range(table.rng.randint(1, 2))] if there else []
    by_key = keys and given and all(literal(row[column.uid]) is not None for row in given for column in keys)
    what: Any
    if by_key and table.rng.random() < 0.5:
        gone = {tuple(row[uid] for uid in table.key) for row in given}
        what, passes = batch_of(given, keys), lambda row: tuple(row[uid] for uid in table.key) in gone
    else:
        passes, what = table.sql_filter()
    for slot in sorted(table.table._context.timeline.open().log.marks(table.table.id).saved):
        table.table.maintenance.release_savepoint(slot=slot)
    table.stands()
    draft = table.draft()
    ended = [ident for ident, row in draft.rows.items() if passes(row.values)]
    for ident in ended:
        draft.end(ident)
    table.tell("erase", what if isinstance(what, str) else what.to_pylist())
    planned = table.table.plan_erasure(what)
    assert planned.rows == len(ended)
    certificate = table.table.erase(what)
    assert (certificate.deleted or 0) == len(ended)
    assert certificate.found == 0
    assert (certificate.delete_slot is None) == (not ended)
    if certificate.delete_slot is None:
        table.stands()
    else:
        table.done(certificate.delete_slot, draft)
    assert table.bound == certificate.readable_from
    assert table.bound >= (-1 if certificate.delete_slot is None else certificate.delete_slot)
    left = [slot for slot in table.readable() if any(map(passes, table.at(slot).values))]
    assert not left, f"rows that were erased can be read at {left}"


def restore(table: DrawnTable) -> None:
    to = table.rng.choice(table.readable())
    table.tell("restore", to)
    state: State = table.at(to)
    result = table.table.restore(to=to)
    assert result.slot == len(table.states)
    table.restores.append((result.slot, to))
    table.became(state, result.slot)

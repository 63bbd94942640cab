"""The steps of histories: writes, changes of the schema, table services."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import objcat
from tests.engines.histories import BESIDE, NAME, History

WIDER = {
    "int8": pa.int16(),
    "int16": pa.int32(),
    "int32": pa.int64(),
    "float": pa.float64(),
    "decimal128(9, 2)": pa.decimal128(18, 2),
    "decimal128(18, 2)": pa.decimal128(38, 2),
}
"""The widenings that Iceberg has too."""
BEYOND_ICEBERG = [pa.float64(), pa.decimal128(12, 2)]
"""What a column of int32 may become for objcat and Delta, and not for Iceberg."""
ADDED = [pa.string(), pa.int32(), pa.int64(), pa.float32(), pa.decimal128(9, 2), pa.date32(), pa.timestamp("us", "UTC"), pa.bool_()]
NAMES = ["v", "n", "amount", "extra", "Käse x", "old", "new"]
TRANSFORMS = [
    "year(day)",
    "month(day)",
    "day(day)",
    "hour(at)",
    "year(at)",
    "day(at)",
    "month(at)",
    "truncate(n, 10)",
    "truncate(city, 1)",
    "city",
    "n",
    "flag",
]


# ---- writes


def upsert(history: History) -> None:
    rows = history.rows(12)
    history.tell("upsert", rows.num_rows)
    history.table.upsert(rows)


def upsert_many(history: History) -> None:
    rows = history.rows(60)
    history.tell("upsert", rows.num_rows)
    history.table.upsert(rows)


def upsert_known(history: History) -> None:
    rows = history.rows(6, known=True)
    history.tell("upsert of known keys", rows.num_rows)
    history.table.upsert(rows)


def insert(history: History) -> None:
    rows = history.rows(12)
    history.tell("insert", rows.num_rows)
    history.table.insert(rows)


def upsert_partial(history: History) -> None:
    rows = history.rows(6, known=history.rng.random() < 0.8)
    columns = [
        field.name for field in history.table.schema if field.name in history.fixed or not field.nullable or history.rng.random() < 0.4
    ]
    history.tell("upsert_partial", columns, rows.num_rows)
    history.table.upsert_partial(_last_of_each_key(history, rows.select(columns)))


def _last_of_each_key(history: History, rows: pa.Table) -> pa.Table:
    found = {tuple(row[name] for name in _naming(history)): row for row in rows.to_pylist()}
    return pa.Table.from_pylist([*found.values()], rows.schema)


def _naming(history: History) -> list[str]:
    """The columns that say which row is meant."""
    scope = history.partition_names if history.table.key_scope == "partition" else set()
    return [field.name for field in history.table.schema if field.name in {*history.key, *scope}]


def delete(history: History) -> None:
    rows = history.rows(6, known=history.rng.random() < 0.7)
    history.tell("delete", rows.num_rows)
    history.table.delete(rows.select(_naming(history)))


def delete_at_a_time(history: History) -> None:
    """A delete with an event time, which ends only what is older."""
    rows, ordering = history.rows(6, known=history.rng.random() < 0.7), history.table.ordering
    assert ordering is not None
    history.tell("delete at a time", rows.num_rows)
    history.table.delete(rows.select([*_naming(history), ordering]))


def delete_where(history: History) -> None:
    where = history.ids()
    history.tell("delete", where)
    history.table.delete(where)


def update(history: History) -> None:
    texts = [field.name for field in history.table.schema if pa.types.is_string(field.type) and field.name not in history.fixed]
    if texts:
        where, column = history.ids(), history.rng.choice(texts)
        history.tell("update", column, where)
        history.table.update({f"`{column}`" if " " in column else column: "'updated'"}, where=where)


def merge(history: History) -> None:
    rows = _last_of_each_key(history, history.rows(6))
    history.tell("merge", rows.num_rows)
    history.table.merge(rows).when_matched_update().when_not_matched_insert().execute()


def transaction(history: History) -> None:
    first, gone, last = history.rows(5), history.rows(2), history.rows(5)
    history.tell("transaction", first.num_rows, gone.num_rows, last.num_rows)
    with history.lake.transaction() as tx:
        tx[NAME].upsert(first)
        tx[NAME].delete(gone.select(_naming(history)))
        tx[NAME].upsert(last)
        if history.beside is not None:
            tx[BESIDE].upsert([{"id": 1}])


def overwrite(history: History) -> None:
    rows = history.rows(20)
    history.tell("overwrite", rows.num_rows)
    history.table.overwrite(rows)


def insert_overwrite(history: History) -> None:
    if history.table.spec.former:
        return
    rows = history.rows(5)
    history.tell("insert_overwrite", rows.num_rows)
    history.table.insert_overwrite(rows)


def delete_partition(history: History) -> None:
    if "city" in history.partition_names and not history.table.spec.former:
        city = history.rng.choice(history.cell.cities)
        where = "city is null" if city is None else f"city = '{city}'"
        history.tell("delete_partition", where)
        history.table.delete_partition(where)


def nothing(history: History) -> None:
    """A commit that changes no row."""
    if history.key and history.rng.random() < 0.5:
        history.tell("delete of a key that is not there")
        rows = history.rows(1)
        history.table.delete(
            rows.set_column(rows.schema.get_field_index("id"), "id", pa.array([10**9] * rows.num_rows)).select(_naming(history))
        )
    else:
        history.tell("a note")
        history.table.set_properties({"team.note": str(history.newest)})


def beside(history: History) -> None:
    """A commit of another table of the log, and one at a time of both."""
    if history.beside is not None:
        history.tell("upsert to the other table")
        history.beside.upsert([{"id": history.rng.randrange(9)}])


def import_files(history: History) -> None:
    """Files of another tool, with keys that no row has. Each file is a commit."""
    first = 1000 * (history.newest + 1)
    folder = history.outside / f"import-{first}"
    folder.mkdir(parents=True)
    for part in range(history.rng.choice([1, 2])):
        rows = history.new_rows(history.table.schema, range(first + part * 10, first + part * 10 + history.rng.randint(1, 8)))
        pq.write_table(rows, folder / f"{part}.parquet")
    history.tell("import_parquet", folder.name)
    history.lake.import_parquet(folder, NAME, key=history.key, commit_bytes=1)


def pass_time(history: History) -> None:
    """So that rows which were in time then are older than the horizon now."""
    days = history.rng.choice([0.5, 2, 4, 8])
    history.tell(days, "days pass")
    history.env.advance(days * 86_400)


def turn_on_mirrors(history: History) -> None:
    """Of a table that was created without them."""
    history.tell("set", history.properties)
    history.table.set_properties(history.properties)


# ---- services


def compact(history: History) -> None:
    history.tell("compact")
    history.table.maintenance.compact()


def compact_some(history: History) -> None:
    """Of some file groups, so that others keep their log rows."""
    history.tell("compact some")
    history.table.maintenance.compact(strategy=objcat.CompactionStrategy(io_bytes_max=1, order="log_count"))


def compact_late(history: History) -> None:
    """By a plan that is executed after log rows came on top."""
    history.tell("plan a compaction, write, execute the plan")
    if history.table.maintenance.schedule_compaction() is not None:
        upsert(history)
        history.table.maintenance.execute_scheduled()


def split(history: History) -> None:
    snapshot = history.table.refresh()
    live = sorted(snapshot.live_partitions(history.table._context.manifests))
    if live and max(snapshot.table.bucket_counts.values(), default=0) < 16:
        partition = history.rng.choice(live)
        history.tell("split", partition)
        history.table.maintenance.split_buckets(partition=partition)


def cluster(history: History) -> None:
    names = [field.name for field in history.table.schema if not pa.types.is_nested(field.type) and " " not in field.name]
    by = history.rng.sample(names, history.rng.choice([1, 2]))
    history.tell("cluster", by)
    history.table.maintenance.cluster(by=by, zorder=len(by) > 1)


def rewrite_all(history: History) -> None:
    """Every file group gets log rows, and is compacted."""
    history.tell("upsert to every file group, and compact")
    history.table.upsert(history.new_rows(history.table.schema, range(20)))
    history.table.maintenance.compact()


def rewrite_adopted(history: History) -> None:
    """A z-order rewrites all file groups, adopted files too."""
    history.tell("cluster by a z-order")
    history.table.maintenance.cluster(by=["id", "n"], zorder=True)


def restore(history: History) -> None:
    slots = [slot for slot in history.readable() if slot > history.newest - 8]
    to = history.rng.choice(slots)
    history.tell("restore", to)
    history.table.restore(to=to)


def savepoint(history: History) -> None:
    slot = history.rng.choice(history.readable())
    history.tell("savepoint", slot)
    history.table.maintenance.savepoint(slot=slot)


def clean(history: History) -> None:
    keep = history.rng.choice([4, 8, 12])
    history.tell("clean", keep)
    history.mirror(history.table)
    history.table.maintenance.clean(keep_slots=keep)


def archive(history: History) -> None:
    history.tell("archive")
    history.table.maintenance.archive(keep_slots=5)


# ---- the schema


def _free_names(history: History) -> list[str]:
    taken = {name.lower() for name in history.table.schema.names}
    return [name for name in NAMES if name.lower() not in taken]


def _path(name: str) -> str:
    return f"`{name}`" if " " in name else name


def add_column(history: History) -> None:
    """At times by a name that a column had before that was dropped, with another type."""
    if names := _free_names(history):
        gone = [name for name in history.gone if name in names]
        name = history.rng.choice(gone or names)
        kind = history.rng.choice(ADDED)
        where: dict[str, Any] = {"first": True} if history.rng.random() < 0.3 else {}
        history.tell("add", name, kind, where)
        history.table.alter.add_column(_path(name), kind, **where)


def drop_column(history: History) -> None:
    names = [name for name in history.table.schema.names if name not in history.fixed]
    if len(names) > 2:
        name = history.rng.choice(names)
        history.tell("drop", name)
        history.table.alter.drop_column(_path(name))
        history.gone.append(name)


def rename_column(history: History) -> None:
    names = [name for name in history.table.schema.names if name not in history.fixed]
    free = _free_names(history)
    if names and free:
        name, new = history.rng.choice(names), history.rng.choice(free)
        history.tell("rename", name, new)
        history.table.alter.rename_column(_path(name), new)


def move_column(history: History) -> None:
    name = history.rng.choice(history.table.schema.names)
    history.tell("move", name)
    history.table.alter.move_column(_path(name), first=True)


def widen_column(history: History) -> None:
    some = [field for field in history.table.schema if str(field.type) in WIDER and field.name not in history.fixed]
    if some:
        field = history.rng.choice(some)
        history.tell("widen", field.name, WIDER[str(field.type)])
        history.table.alter.widen_column(_path(field.name), WIDER[str(field.type)])


def widen_beyond_iceberg(history: History) -> None:
    """Iceberg reads no file with integers as one of these types."""
    kind = history.rng.choice(BEYOND_ICEBERG)
    history.tell("widen n", kind)
    history.table.alter.widen_column("n", kind)


def change_struct(history: History) -> None:
    """A field within a struct is added, renamed, widened or dropped."""
    structs = [field for field in history.table.schema if pa.types.is_struct(field.type)]
    if not structs:
        return
    struct = history.rng.choice(structs)
    name, names = struct.name, [field.name for field in struct.type]
    free = [one for one in ("x", "y", "z", "w") if one not in names]
    inside = history.rng.choice(names)
    wide = WIDER.get(str(struct.type.field(inside).type))
    alter = history.table.alter
    what = history.rng.choice(["add", "rename", "widen", "drop"])
    history.tell(what, "within", name, inside, free)
    if what == "add" and free:
        alter.add_column(f"{name}.{free[0]}", history.rng.choice(ADDED))
    elif what == "rename" and free:
        alter.rename_column(f"{name}.{inside}", free[0])
    elif what == "widen" and wide is not None:
        alter.widen_column(f"{name}.{inside}", wide)
    elif what == "drop" and len(names) > 1:
        alter.drop_column(f"{name}.{inside}")


def set_partitioning(history: History) -> None:
    by = history.rng.sample(TRANSFORMS, history.rng.choice([0, 1, 1, 2]))
    if len({one.partition("(")[2].split(",")[0].rstrip(")") or one for one in by}) == len(by):
        history.tell("set_partitioning", by)
        history.table.alter.set_partitioning(by)

"""Operations after which the rows are what they were: services, savepoints, partitionings, columns, handles, what happens beside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import objcat
from tests.combinations.filters import quoted
from tests.combinations.tables import NAME, DrawnTable
from tests.combinations.values import Column, Listing, Mapped, Struct, Type, arrow_type, wider


def compact(table: DrawnTable) -> None:
    how = table.rng.choice(["all", "all", "all", "some", "plan"])
    table.tell("compact", how)
    if how == "some":
        strategy = objcat.CompactionStrategy(io_bytes_max=1, log_count_min=table.rng.choice([None, 2]))
        table.table.maintenance.compact(strategy=strategy, spark=table.spark())
    elif how == "plan":
        table.table.maintenance.schedule_compaction()
    else:
        table.table.maintenance.compact(spark=table.spark())
    table.stands()


def execute_plans(table: DrawnTable) -> None:
    table.tell("execute_scheduled")
    table.table.maintenance.execute_scheduled(spark=table.spark())
    table.stands()


def cluster(table: DrawnTable) -> None:
    rng, spec = table.rng, table.spec
    names = [column.name for column in table.columns if column.is_plain]
    by = rng.sample(names, min(len(names), rng.choice([0, 1, 1, 2, 3])))
    if not by and table.key and not spec.is_located:
        return
    where = table.sql_filter()[1] if rng.random() < 0.3 else None
    zorder = len(by) > 1 and rng.random() < 0.5
    table.tell("cluster", by, "in z-order" if zorder else "", "where", where)
    table.table.maintenance.cluster(by=by, zorder=zorder, where=where, spark=table.spark())
    table.stands()


def split(table: DrawnTable) -> None:
    snapshot = table.table.refresh()
    live = sorted(snapshot.live_partitions(table.table._context.manifests))
    if not table.key or snapshot.spec.is_located or not live or max(snapshot.table.bucket_counts.values(), default=0) > 16:
        return
    partition = table.rng.choice(live)
    table.tell("split", partition)
    table.table.maintenance.split_buckets(partition=partition)
    table.stands()


def savepoint(table: DrawnTable) -> None:
    slot = table.rng.choice(table.readable())
    table.tell("savepoint", slot)
    table.table.maintenance.savepoint(slot=slot)
    table.stands()


def release(table: DrawnTable) -> None:
    saved = sorted(table.table._context.timeline.open().log.marks(table.table.id).saved)
    if saved:
        slot = table.rng.choice(saved)
        table.tell("release", slot)
        table.table.maintenance.release_savepoint(slot=slot)
        table.stands()


def clean(table: DrawnTable) -> None:
    slots = table.rng.choice([1, 3, 6, 10])
    table.tell("clean", slots)
    table.table.maintenance.clean(keep_slots=slots)
    table.stands()


def tidy(table: DrawnTable) -> None:
    archived, collected = table.rng.choice([None, 1, 5]), table.rng.random() < 0.5
    table.tell("archive", archived, "collect_checkpoints", collected)
    if archived is not None:
        table.table.maintenance.archive(keep_slots=archived)
    if collected:
        table.table.maintenance.expire_checkpoints(keep=1)
    table.stands()


def maintain(table: DrawnTable) -> None:
    table.tell("maintain")
    table.table.maintenance.run(spark=table.spark())
    table.stands()


def wait(table: DrawnTable) -> None:
    hours = table.rng.choice([1, 5, 30, 24 * 8])
    table.wait(hours)


def open_again(table: DrawnTable) -> None:
    table.tell("open again")
    table.table = table.lake.table(NAME)


def drop_and_bring_back(table: DrawnTable) -> None:
    if table.other is not None:
        return
    state, before = table.state, table.newest
    table.tell("drop and undrop")
    table.lake.drop_table(NAME)
    table.table = table.lake.undrop_table(NAME)
    table.stale = table.lake.table(NAME)
    slot = table.table.refresh().slot
    table.restores.append((slot, before))
    table.became(state, slot)


def work_beside(table: DrawnTable) -> None:
    """To the other table of the log."""
    if table.other is None:
        return
    rng = table.rng
    what = rng.choice(["upsert", "upsert", "compact", "restore"])
    table.tell("to the other table:", what)
    table.other.upsert([{"id": rng.randrange(9)}])
    if what == "compact":
        table.other.maintenance.compact()
    elif what == "restore":
        table.other.restore(to=rng.randint(table.other.snapshot.slot - 1, table.other.snapshot.slot))
    table.stands()


def set_partitioning(table: DrawnTable) -> None:
    rng, spec = table.rng, table.spec
    # Keys that are unique in the table and not looked up in all partitions have partitions that are made of them.
    is_bound = table.key and not table.parted and not spec.is_global
    columns = [column for column in table.columns if column.is_plain and (column.uid in table.key or not is_bound)]
    by = table.partition_fields(rng.sample(columns, min(len(columns), rng.choice([0, 1, 1, 2]))))
    table.tell("set_partitioning", by)
    table.repartitioned = True
    table.table.alter.set_partitioning(by)
    table.stands()


# ---- columns


def alter(table: DrawnTable) -> None:
    """One change of the schema, of a column or of what is in one."""
    columns = _altered(table, table.columns, "")
    if columns is not None:
        table.reshaped(columns)


def _path(within: str, name: str) -> str:
    return within + (name if re.fullmatch(r"\w+", name) else quoted(name))


def _altered(table: DrawnTable, columns: Sequence[Column], within: str) -> tuple[Column, ...] | None:
    """Of the table, or of the struct at a path; None: what was drawn is not possible."""
    rng, fixed, target = table.rng, table.fixed, table.table
    left = list(columns)
    taken = {column.name.lower() for column in columns}
    kind = rng.choice(["add", "add", "drop", "rename", "rename", "move", "widen", "widen", "within", "within"])
    names = ["a", "b", "c", "d"] if within else ["v0", "v1", "v2", "n", "w0", "w1", "old", "k9", "Käse x", "v0.x"]
    free = [name for name in names if name.lower() not in taken]
    column = rng.choice(columns)
    if kind == "add" and free:
        column = table.column(rng.choice(free), table.any_type())
        where = _place(table, left, column)
        table.tell("add", _path(within, column.name), column.type, where)
        target.alter.add_column(_path(within, column.name), arrow_type(column.type), **where)
    elif kind == "move":
        left.remove(column)
        where = _place(table, left, column)
        table.tell("move", _path(within, column.name), where)
        target.alter.move_column(_path(within, column.name), **where)
    elif kind == "drop" and column.uid not in fixed and any(other.is_plain for other in left if other is not column):
        table.tell("drop", _path(within, column.name))
        target.alter.drop_column(_path(within, column.name))
        left.remove(column)
    elif kind == "rename" and free:
        new = rng.choice(free)
        table.tell("rename", _path(within, column.name), "to", new)
        target.alter.rename_column(_path(within, column.name), new)
        left[left.index(column)] = replace(column, name=new)
    elif some := [one for one in columns if _changes(table, one, kind)]:
        column = rng.choice(some)
        changed = _changed_type(table, column.type, _path(within, column.name))
        if changed is None:
            return None
        left[left.index(column)] = replace(column, type=changed)
    else:
        return None
    return tuple(left)


def _place(table: DrawnTable, others: list[Column], column: Column) -> dict[str, Any]:
    """Puts a column somewhere among others, and says where as the table is told."""
    at = table.rng.randint(0, len(others))
    others.insert(at, column)
    return {"after": others[at - 1].name} if at else {"first": True}


def _changes(table: DrawnTable, column: Column, kind: str) -> bool:
    """Whether the type of a column may change in some way."""
    if kind == "widen":
        return bool(wider(column.type)) and column.uid not in {*table.key, *table.parting}
    return kind == "within" and not column.is_plain


def _changed_type(table: DrawnTable, kind: Type, path: str) -> Type | None:
    """A wider type, or a nested one that is changed within; None: what was drawn is not possible."""
    match kind:
        case Struct(fields):
            changed = _altered(table, fields, f"{path}.")
            return None if changed is None else Struct(changed)
        case Listing(inner) | Mapped(inner):
            new = _changed_type(table, inner.type, f"{path}.{inner.name}")
            return None if new is None else type(kind)(replace(inner, type=new))
        case _ if types := wider(kind):
            new = table.rng.choice(types)
            table.tell("widen", path, "to", new)
            table.table.alter.widen_column(path, new)
            return new
    return None

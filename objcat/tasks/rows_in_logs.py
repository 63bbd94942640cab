"""What commits wrote as log rows: the keys that changed, and often the newest rows of them, without a look at base files."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from fileio.store import FileIO
from objcat.datafile.casting import logical, named
from objcat.datafile.merge import OP_COLUMN, merge
from objcat.tasks.changes import ChangeTask, carrier_of
from objcat.tasks.scan import bare, read_logs


@dataclass(frozen=True, slots=True)
class LoggedRows:
    """What the log rows of some commits say.

    Args:
        keys: Of all rows and deletes, under logical names; one may repeat.
        newest: The row of each of these keys after the commits, where there is one. None where log rows do not tell.
    """

    keys: pa.Table
    newest: pa.Table | None


def rows_in_logs(fileio: FileIO, task: ChangeTask, schema: pa.Schema) -> LoggedRows | None:
    """The log rows of the commits of a task. None where they wrote base files, which do not say which of their rows changed.

    A row without an ordering column wins over all before it, so the last one of a key is its newest. With one, an older row may win.

    Args:
        schema: of the newest rows: columns of the task, under logical names.
    """
    spec = task.spec
    steps = [step for changed in task.classes for step in changed.steps]
    if not spec.has_key or any(step.replaces for step in steps):
        return None
    tells = spec.ordering is None and not spec.is_located and not task.met
    keys = [column.physical for column in spec.key_columns]
    shown = [column.physical for column in spec.table_schema.columns if column.name in schema.names] if tells else []
    physical = spec.table_schema.to_arrow_physical(only=list(dict.fromkeys([*keys, *shown])))
    read = read_logs(fileio, [carrier_of(step) for step in steps if step.added], physical.names, spec.table_schema)
    whole = pa.schema([*(pa.field(field.name, field.type) for field in physical), (OP_COLUMN, pa.int8())])
    # Classes share no key, and the steps of each are in the order of their slots.
    parts = [read[rows.object.path, rows.start] for step in steps for rows in step.added]
    rows = pa.concat_tables([whole.empty_table(), *(bare(part.select(whole.names)).cast(whole) for part in parts)])
    names = {column.physical: column.name for column in spec.key_columns}
    found = rows.select(keys).rename_columns([names[name] for name in keys])
    if not tells:
        return LoggedRows(found, None)
    newest = logical(merge(rows, key=keys, ordering=()), spec.table_schema)
    return LoggedRows(found, named(newest, schema))

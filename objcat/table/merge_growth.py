"""The schema of a merge that may change it: what the source brings that the table lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from objcat.dml.program import Clause, ClauseAction, source_keys
from objcat.metadata.properties import SchemaMode
from objcat.metadata.schema_evolution import widened_spec
from objcat.metadata.snapshot import Snapshot


def grown_snapshot(
    snapshot: Snapshot, source: pa.Schema, clauses: Sequence[Clause], on: Any, aliases: tuple[str, str], mode: SchemaMode
) -> Snapshot:
    """A snapshot with the columns and types that a merge brings, of which its files have none yet.

    Clauses bring the columns of the source that they take: all but a key under another name, or those that they name. Raises as
    `Merge.execute`.
    """
    if mode is SchemaMode.STRICT:
        return snapshot
    own = snapshot.spec.table_schema.names
    renamed = source_keys(snapshot.spec, source.names, on, aliases).difference(own)
    takes = [clause for clause in clauses if clause.act is not ClauseAction.DELETE]
    named = {name for clause in takes for name in clause.values or ()}
    if any(clause.values is None for clause in takes):
        named |= set(source.names).difference(renamed)
    spec = widened_spec(snapshot.spec, pa.schema([field for field in source if field.name in named]), mode)
    return snapshot if spec is snapshot.spec else replace(snapshot, table=replace(snapshot.table, spec=spec))

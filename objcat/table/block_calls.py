"""`BlockCalls`: the calls of a transaction's block on one table, in their order, until the block ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from fileio.store import FileIO
from objcat.engine.spooled_batch import Rows, SpooledBatch, joined
from objcat.metadata.manifest import Manifests
from objcat.metadata.table_spec import TableSpec
from objcat.write.block_writer import BlockStep, BlockWriter, RowsStep
from objcat.write.table_part import TablePart
from objcat.write.table_writer import TableWriter, WriteBatch


@dataclass(slots=True)
class _BatchRun:
    """Batches of one kind and one schema that were passed one after another. They are written as one."""

    change: WriteBatch
    rows: list[Rows]

    def takes(self, change: WriteBatch) -> bool:
        """Whether a batch may be written with these, as if its rows came after theirs."""
        mine = self.change
        return (
            isinstance(change.data, (pa.Table, SpooledBatch))
            and (change.operation, change.schema_mode, change.delete_when) == (mine.operation, mine.schema_mode, mine.delete_when)
            and change.data.schema.equals(self.rows[0].schema)
        )

    @property
    def step(self) -> RowsStep:
        """The batches as one step."""
        return RowsStep(self.change if len(self.rows) == 1 else replace(self.change, data=joined(self.rows)))


class BlockCalls:
    """The calls on one table. For one thread.

    spec: of the table after the calls.
    """

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self._calls: list[BlockStep | _BatchRun] = []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, steps: Sequence[BlockStep]) -> None:
        """Add a call. Raises as `BlockStep.spec_after`."""
        spec = self.spec
        for step in steps:
            spec = step.spec_after(spec)
        self.spec = spec
        self._calls += steps

    def add_rows(self, change: WriteBatch) -> None:
        """Add a batch. Raises as `add`."""
        self.spec = change.widened_spec(self.spec)
        last = self._calls[-1] if self._calls else None
        if isinstance(last, _BatchRun) and last.takes(change):
            last.rows.append(change.data)
        elif isinstance(change.data, (pa.Table, SpooledBatch)):
            self._calls.append(_BatchRun(change, [change.data]))
        else:
            self._calls.append(RowsStep(change))

    @property
    def frames(self) -> list[Any]:
        """The batches that another engine holds."""
        batches = [call.change.data for call in self._calls if isinstance(call, RowsStep)]
        return [data for data in batches if not isinstance(data, (pa.Table, SpooledBatch))]

    def part(self, fileio: FileIO, manifests: Manifests, table: str) -> TablePart:
        """What writes the calls."""
        steps = [call.step if isinstance(call, _BatchRun) else call for call in self._calls]
        batches = [step.change for step in steps if isinstance(step, RowsStep)]
        if len(batches) == len(steps):
            return TableWriter(fileio, manifests, table, batches)
        return BlockWriter(fileio, manifests, table, steps)

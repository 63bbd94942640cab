"""What blocks of a transaction do: several calls on one table, of which the later ones go by the rows that the earlier ones left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from objcat.errors import CommitUnknown, ObjcatError
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import snapshot_of
from objcat.metadata.table_spec import TableSpec
from objcat.table.batch_input import prepare_batch
from objcat.table.block_steps import replacing_steps
from objcat.tasks.model import Operation
from objcat.write.block_writer import BlockStep, BlockWriter, RowsStep, TruncateStep
from objcat.write.table_writer import WriteBatch
from objcat.write.transaction import commit_parts
from tests.explorer.actors import Failed, Participant
from tests.explorer.roles import KEYS, SCHEMA, WatchedCommitter, mark_of, means, open_warm, settle, warm_view

FROM = 2
"""Blocks replace the keys from here on. Of those of the explorer, 2 and 3 are in the range, in different buckets, and 0 is not."""
LATER = 3


@dataclass(frozen=True, slots=True)
class RunBlock:
    """Upserts a row outside of the range, and then replaces the range by another row.

    lone: it has no first call, so it writes nothing where it finds nothing. truncates: it ends all rows, and not only those of the range,
    so the first call leaves nothing. resolves: asks for the outcome when nobody knows it.
    """

    lone: bool = False
    truncates: bool = False
    resolves: bool = False

    def __call__(self, me: Participant) -> None:
        timeline, table = open_warm(me)
        view = timeline.refresh(warm_view(me))
        spec = snapshot_of(view, where="explorer").spec
        block = BlockWriter(me.fileio, Manifests(me.fileio), table, self._steps(me, spec))
        committer = WatchedCommitter(me)
        keys = KEYS[:1] if self.lone or self.truncates else KEYS
        meant = means("only" if self.truncates else "range", *keys, mark=mark_of(me))
        try:
            commit_parts(timeline, committer, [block], view, metadata=meant)
        except CommitUnknown as error:
            if self.resolves:
                settle(me, error.txn)
        except ObjcatError:
            if committer.beaten is not None:
                me.note(Failed(committer.beaten))
            raise

    def _steps(self, me: Participant, spec: TableSpec) -> Sequence[BlockStep]:
        def row(key: int) -> WriteBatch:
            return prepare_batch(me.fileio, pa.table({"k": [key], "v": [mark_of(me)]}, schema=SCHEMA), spec, Operation.UPSERT, table="t")

        first = [] if self.lone else [RowsStep(row(KEYS[1]))]
        if self.truncates:
            return [*first, TruncateStep(), RowsStep(row(KEYS[0]))]
        return [*first, *replacing_steps(f"k >= {FROM}", row(KEYS[0]), spec, me.fileio, name="t")]

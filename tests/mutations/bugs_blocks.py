"""Bugs of blocks, each a plausible mistake of whoever changes next which rows they depend on."""

from __future__ import annotations

from typing import Any

import pytest

from objcat.write.block_writer import BlockWriter
from objcat.write.rows_read import RowsRead
from tests.mutations.bugs import bug


@bug("a block that does not say what it has read", "P5", "range, write inside")
def _reads_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockWriter, "depend", lambda *_, **__: None)


@bug("a block that takes any other commit for one of other rows", "P5", "range, write inside")
def _others_are_elsewhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockWriter, "_may_disturb", lambda *_: False)


@bug("a block that looks for new rows only where it wrote itself", "P5", "range, write inside, with bounds")
def _new_rows_overlooked(patch: pytest.MonkeyPatch) -> None:
    may_pass = RowsRead._may_pass

    def near_only(read: RowsRead, files: Any, *, only: Any = None) -> bool:
        return only is not None and may_pass(read, files, only=only)

    patch.setattr(RowsRead, "_may_pass", near_only)


@bug("a block that holds the bounds of keys against its own rows", "P5", "range, write inside, with bounds")
def _bounds_of_the_block(patch: pytest.MonkeyPatch) -> None:
    """It compares with the row that it put there, and not with the range that it emptied."""

    def beside_the_row(read: RowsRead, delta: Any, *_: Any) -> bool:
        files = (*delta.bases, *delta.logs)
        return any(1 not in file.bounds or file.bounds[1][0] <= 2 <= file.bounds[1][1] for file in files)

    patch.setattr(RowsRead, "may_change", beside_the_row)


@bug("a truncation that ends what was there when the block began", "P5", "truncating block, first write elsewhere")
def _ends_what_was(patch: pytest.MonkeyPatch) -> None:
    rewrite = BlockWriter.rewrite

    def as_it_was(block: BlockWriter, *arguments: Any) -> bool:
        if not block._ends_all:
            return rewrite(block, *arguments)
        ended = block._ended
        repeated = rewrite(block, *arguments)
        block._ended = ended
        return repeated

    patch.setattr(BlockWriter, "rewrite", as_it_was)

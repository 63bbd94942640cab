"""A second reader, written from the pages of the specification alone, finds the same rows in slots that hold several changes of a table."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fileio.contract import GetResult
from tests.effort import few
from tests.protocol.test_second_reader import compare
from tests.tables.test_block_calls import KINDS, run_blocks


@pytest.mark.parametrize("kind", few(KINDS, 1, integration=len(KINDS)))
def test_every_slot_of_blocks_is_read_from_the_pages(tmp_path: Path, kind: str) -> None:
    lake = run_blocks(kind, random.Random(kind), count=5)[0].lake
    for key in lake.fileio.list_keys():
        found = lake.fileio.get(key)
        assert isinstance(found, GetResult)
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(found.data)
    assert compare(lake, tmp_path) > 8

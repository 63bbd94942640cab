"""Slots in which a block changed a table several times have the rows of a scan in a mirror too, for each kind of table."""

from __future__ import annotations

import random

import pytest

from objcat.mirror.mirror import TableMirrors
from tests.effort import few
from tests.mirror.plain_mirror import PlainMirror, in_order, rows_of
from tests.tables.test_block_calls import KINDS, Side, run_blocks


@pytest.mark.parametrize("kind", few(KINDS, 2, integration=len(KINDS)))
@pytest.mark.parametrize("seed", few(range(3), 1, integration=3))
def test_every_slot_of_blocks_has_the_rows_of_a_scan(monkeypatch: pytest.MonkeyPatch, kind: str, seed: int) -> None:
    followers: list[TableMirrors] = []
    plain = PlainMirror()
    monkeypatch.setattr("objcat.mirror.mirror.formats_of", lambda properties, folder: (plain,))
    monkeypatch.setattr("objcat.mirror.mirror.mirrors_of", lambda properties: (plain.format,))

    def follow(side: Side) -> None:
        if side.name == "a":
            context = side.table._context
            followers.append(TableMirrors(context.timeline, context.id, context.name, context.manifests))
            followers[-1].catch_up()

    sides = run_blocks(kind, random.Random(f"{kind} {seed}"), begin=follow, count=6)
    (report,) = followers[0].catch_up()
    table = sides[0].table
    # Later slots are of the other table.
    assert report.slot == table.inspect.history()[-1].slot and len(plain.states) > 2
    for slot in sorted(plain.states):
        assert in_order(rows_of(table, plain.states[slot])) == in_order(table.scan(as_of=slot).to_arrow()), slot

"""Makes the golden lake of positions: `./dev run python -m tests.golden.make_positions` writes format-1-positions.zip anew.

As `make.py`: to be run by hand, and only while format 1 may still change.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

import objcat
from objcat.timeline.archive import archive
from objcat.timeline.position import STATE_INLINE_BYTES_MAX
from tests.golden.make import Maker, objects_of

ARCHIVE = Path(__file__).parent / "format-1-positions.zip"
ORDERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("what", pa.string())])
LARGE = "x" * STATE_INLINE_BYTES_MAX
RESTORED = 41
"""The slot of the RESTORE."""


def make() -> objcat.Lake:
    """Two sources in one log: a checkpoint, archived slots, a RESTORE, states of both kinds, and a table that moved."""
    maker = Maker()
    lake, tick = maker.lake, maker.tick

    def read(source: str, since: int, state: Mapping[str, Any], *ids: int, resumed_after: int | None = None) -> None:
        tick()
        own = objcat.SourcePosition(source=source, state=state, since=since, resumed_after=resumed_after)
        with lake.transaction(shared_log="shop", position=own) as tx:
            if ids:
                tx["shop.orders"].upsert([{"id": number, "what": f"{source} {since + 1}"} for number in ids])

    orders = lake.create_table("shop.orders", ORDERS, key=["id"], shared_log="shop", index=objcat.BucketIndex(1))
    for since in range(-1, 36):
        read("mysql-eu", since, {"gtid": f"0-1-{since + 2}", "todo": [["shop.orders", since, None]]}, since + 2)
    read("orders", -1, {"offsets": {"0": 2**60}, "seen": LARGE}, 100)
    read("orders", 0, {"offsets": {"0": 2**60 + 1}, "seen": LARGE, "größe": True})
    tick()
    lake.create_table("alone", ORDERS, key=["id"]).upsert([{"id": 1, "what": "alone"}], app=objcat.AppVersion(app="feed", version=7))
    tick()
    lake.move_to_shared_log("alone", shared_log="shop")
    tick()
    orders.restore(to=38)
    read("mysql-eu", 36, {"gtid": "0-1-99"}, 99)
    tick()
    archive(orders._context.timeline, keep_slots=8)
    return lake


def main() -> None:
    """Write the archive."""
    with zipfile.ZipFile(ARCHIVE, "w", zipfile.ZIP_DEFLATED) as packed:
        for key, data in sorted(objects_of(make().fileio).items()):
            packed.writestr(zipfile.ZipInfo(key, (2026, 11, 21, 9, 0, 0)), data, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()

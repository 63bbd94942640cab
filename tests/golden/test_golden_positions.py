"""A golden lake with positions of sources: this client, and every later one, reads them as they were meant, and goes on from them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import objcat
from objcat.errors import InvalidInput, PositionConflict, StreamRewound
from objcat.inspection.doctor import examine_lake
from tests.golden.make_positions import ARCHIVE, LARGE, RESTORED


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    with zipfile.ZipFile(ARCHIVE) as packed:
        packed.extractall(tmp_path)
    return objcat.connect(tmp_path)


def test_the_newest_positions_are_there(lake: objcat.Lake) -> None:
    mysql, orders = lake.source_positions(shared_log="shop")
    assert (mysql.source, mysql.version, mysql.state, mysql.slot, mysql.rewound_at) == ("mysql-eu", 37, {"gtid": "0-1-99"}, 42, None)
    assert (orders.source, orders.version, orders.slot, orders.rewound_at) == ("orders", 1, 39, RESTORED)
    assert orders.state == {"offsets": {"0": 2**60 + 1}, "seen": LARGE, "größe": True}


def test_so_are_earlier_ones(lake: objcat.Lake) -> None:
    assert lake.source_position("mysql-eu", shared_log="shop", as_of=0) is None
    for slot in (1, 20, 37):
        found = lake.source_position("mysql-eu", shared_log="shop", as_of=slot)
        assert found is not None
        assert (found.version, found.slot, found.state["gtid"]) == (slot - 1, slot, f"0-1-{slot}")
    with pytest.raises(InvalidInput, match="no slot 43"):
        lake.source_position("mysql-eu", shared_log="shop", as_of=43)


def test_rows_and_the_table_that_moved(lake: objcat.Lake) -> None:
    rows = {row["id"]: row["what"] for row in lake.table("shop.orders").scan().to_arrow().to_pylist()}
    assert rows == {number: f"mysql-eu {number - 1}" for number in range(1, 38)} | {100: "orders 0", 99: "mysql-eu 37"}
    alone = lake.table("alone")
    assert alone.scan().to_arrow().to_pylist() == [{"id": 1, "what": "alone"}]
    assert (alone.app_version("feed"), alone.url) == (7, lake.table("shop.orders").url)
    assert lake.undrop_table("alone", new_name="before").scan(as_of=1).count() == 1


def test_readers_go_on(lake: objcat.Lake) -> None:
    def read(source: str, since: int, resumed_after: int | None = None) -> None:
        own = objcat.SourcePosition(source=source, state={}, since=since, resumed_after=resumed_after)
        with lake.transaction(shared_log="shop", position=own):
            pass

    with pytest.raises(PositionConflict):
        read("mysql-eu", 36)
    with pytest.raises(StreamRewound):
        read("orders", 1)
    read("mysql-eu", 37)
    read("orders", 1, RESTORED)
    assert [(one.version, one.rewound_at) for one in lake.source_positions(shared_log="shop")] == [(38, None), (2, None)]


def test_nothing_is_wrong_with_it(lake: objcat.Lake) -> None:
    reports = list(examine_lake(lake.fileio, deep=True))
    assert [finding for report in reports for finding in report.findings] == []
    assert sum(report.counts["positions"] for report in reports) == 40
    assert ARCHIVE.stat().st_size < 200_000

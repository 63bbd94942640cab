"""Errors over objects of the log say in which store these are, whoever comes upon them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from objcat.errors import CorruptTable, UnsupportedFormat
from objcat.inspection.doctor import examine

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    table = objcat.create_table_at(tmp_path / "one of many", SCHEMA, key=["id"], index=objcat.BucketIndex(1))
    for number in range(3):
        table.upsert([{"id": number, "text": "x"}])
    return tmp_path / "one of many"


def slot(place: Path, number: int) -> Path:
    return place / "log" / f"{number:020d}.json"


def url(place: Path) -> str:
    return objcat.connect(place).fileio.url


@pytest.mark.parametrize("damage", ["gone", "garbage", "of another slot"])
def test_an_entry_that_cannot_be_read_is_named_with_its_table(place: Path, damage: str) -> None:
    table = objcat.table_at(place)
    match damage:
        case "gone":
            slot(place, 1).unlink()
        case "garbage":
            slot(place, 1).write_bytes(b"{")
        case _:
            slot(place, 1).write_bytes(slot(place, 2).read_bytes())
    # Whoever opens a table whose slot is gone takes the one before for the newest.
    reads: list[Callable[[], object]] = [table.inspect.history]
    if damage != "gone":
        reads += [lambda: table.scan(as_of=1), lambda: objcat.table_at(place).inspect.history(limit=9)]
    for read in reads:
        with pytest.raises(CorruptTable) as raised:
            read()
        said = str(raised.value)
        assert url(place) in said and said.count(url(place)) == 1
        assert slot(place, 1).name in said and "\n" not in said


def test_a_newer_format_is_named_with_its_table(place: Path) -> None:
    slot(place, 3).write_bytes(slot(place, 3).read_bytes().replace(b'"format": 1', b'"format": 99'))
    with pytest.raises(UnsupportedFormat) as raised:
        objcat.table_at(place)
    assert url(place) in str(raised.value)


def test_the_error_is_the_one_that_was_raised(place: Path) -> None:
    """Its cause and its traceback are kept, and a doctor reports it as before."""
    slot(place, 2).write_bytes(b"{")
    with pytest.raises(CorruptTable) as raised:
        objcat.table_at(place).inspect.history()
    assert raised.value.__cause__ is not None
    assert "decode_entry" in {frame.name for frame in raised.traceback}
    report = examine(objcat.create_table_at(place.parent / "other", SCHEMA, key=["id"])._context.timeline)
    assert report.healthy

"""What a notebook shows of tables and scans."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from fileio import ByteRange, Version
from fileio.contract import GetResult, NotModified
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from objcat.table.notebook import PREVIEW_ROWS, VALUE_CHARACTERS_MAX

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])


class Cells(HTMLParser):
    """The texts of the cells of all tables, by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self._is_in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._is_in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._is_in_cell = self._is_in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._is_in_cell:
            self.rows[-1][-1] += data


class Reads(MemoryBackend):
    """Notes which data files are read."""

    def __init__(self) -> None:
        super().__init__()
        self.data: set[str] = set()

    def get(self, key: str, byte_range: ByteRange | None, if_none_match: Version | None) -> GetResult | NotModified:
        if "/data/" in key:
            self.data.add(key)
        return super().get(key, byte_range, if_none_match)


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    return objcat.connect(tmp_path).create_table("shop.notes", SCHEMA, key=["id"], properties={"owner": "<i>us</i>"})


def test_a_scan_shows_its_columns_and_first_rows(table: objcat.Table) -> None:
    table.upsert([{"id": number, "note": None if number % 2 else "x" * 200} for number in range(PREVIEW_ROWS + 5)])
    html = table.scan()._repr_html_()
    head, *rows = Cells(html).rows
    assert head == ["idint64", "notestring"]
    assert len(rows) == PREVIEW_ROWS and {note for _, note in rows} == {"null", "x" * VALUE_CHARACTERS_MAX + "…"}
    assert f"the first {PREVIEW_ROWS} rows" in html


def test_a_preview_that_is_whole_says_so(table: objcat.Table) -> None:
    assert "0 rows" in table.scan()._repr_html_()
    table.upsert([{"id": 1, "note": "a"}, {"id": 2, "note": "b"}])
    assert "2 rows" in table.scan()._repr_html_() and "first" not in table.scan()._repr_html_()
    assert len(Cells(table.scan(limit=1)._repr_html_()).rows) == 2


def test_a_preview_reads_the_files_of_its_rows_alone() -> None:
    """A table of many file groups is not read whole to show ten rows."""
    backend = Reads()
    table = objcat.Lake(FileIO(backend)).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(64))
    table.bulk_insert([{"id": number, "note": "n"} for number in range(64_000)])
    scan = table.scan()
    assert len(scan.plan.groups) == 64
    backend.data.clear()
    scan._repr_html_()
    assert 1 <= len(backend.data) <= 4


def test_a_table_shows_what_it_is_and_its_newest_commits(table: objcat.Table) -> None:
    for number in range(7):
        table.upsert([{"id": number, "note": "n"}])
    rows = Cells(table._repr_html_()).rows
    assert ["key", "['id']"] in rows and ["table_type", "merge_on_read"] in rows
    assert ["id", "bigint", "key"] in rows and ["note", "string", ""] in rows
    assert [row[0] for row in rows if "DELTA_COMMIT" in row] == ["3", "4", "5", "6", "7"]


def test_no_text_of_users_is_markup(table: objcat.Table) -> None:
    table.upsert([{"id": 1, "note": "<script>alert(1)</script>\x1b[31m"}])
    for html in (table._repr_html_(), table.scan(where="note <> '<b>'")._repr_html_()):
        assert Cells(html).tags <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td", "small", "br"}
        assert "\x1b" not in html


def test_completion_shows_what_users_need(table: objcat.Table, tmp_path: Path) -> None:
    lake = objcat.connect(tmp_path)
    shown = {name for owner in (lake, table, table.scan()) for name in dir(owner) if not name.startswith("_")}
    assert not shown & {"catalog", "timeline", "manifests", "context", "committer"}

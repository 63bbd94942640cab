"""`objcat report`: one page that needs nothing else, and says what the table says."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest

import objcat
from tests.cli.commands import run


@pytest.fixture
def table(tmp_path: Path) -> objcat.Table:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string(), nullable=False)])
    table = objcat.connect(tmp_path / "lake").create_table("trips", schema, key=["id", "city"], partition_by=["city"])
    table.insert([{"id": i, "city": city} for i in range(30) for city in ("Rome", "<b>&")], metadata={"by": "<script>"})
    table.upsert([{"id": 1, "city": "Rome"}])
    return table


class Seen(HTMLParser):
    """Every tag, and what would be loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "action")]


def test_the_page_stands_alone_and_shows_every_commit(table: objcat.Table, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    done = run("report", f"{tmp_path}/lake/trips", str(target))
    assert (done.returncode, done.stdout) == (0, f"{target} tells of trips at slot 2: open it in a browser\n")
    page = target.read_text()
    seen = Seen()
    seen.feed(page)
    assert not seen.loaded and not {"script", "link", "img", "b"} & set(seen.tags) and "url(" not in page and "@import" not in page
    (svg,) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    titles = [title.text or "" for title in ET.fromstring(svg).iter("title")]
    assert [title.partition(" at ")[0] for title in titles] == ["slot 0: CREATE", "slot 1: DELTA_COMMIT", "slot 2: DELTA_COMMIT"]
    words = " ".join(re.sub(r"<style>.*</style>|<[^>]*>", " ", page, flags=re.DOTALL).split())
    for part in ("at most 61", "city=Rome", "partitions 2", "slots lost, together 0", "put_create"):
        assert part in words, words


def test_json_a_file_that_is_there_and_one_that_cannot_be(table: objcat.Table, tmp_path: Path) -> None:
    url, target = f"{tmp_path}/lake/trips", tmp_path / "page.html"
    told = json.loads(run("report", url, str(target), "--json").stdout)
    assert (told["slot"], told["bytes"]) == (2, target.stat().st_size)
    again = run("report", url, str(target))
    assert again.returncode == 2 and "--overwrite" in again.stderr
    assert run("report", url, str(target), "--overwrite").returncode == 0
    nowhere = run("report", url, str(tmp_path / "no" / "page.html"))
    assert nowhere.returncode == 2 and "name another place" in nowhere.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "page.html"]


def test_a_table_without_rows_has_a_page(tmp_path: Path) -> None:
    objcat.connect(tmp_path).create_table("empty", pa.schema([("id", pa.int64())]), key=["id"])
    assert run("report", f"{tmp_path}/empty", str(tmp_path / "page.html")).returncode == 0

"""`objcat report`: one page that needs nothing else, and says what the table says."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import math
import os
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest

import objcat
from fileio.env import default_env
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
    (svg,) = re.findall(r'<svg class="plot".*?</svg>', page, re.DOTALL)
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
    assert nowhere.returncode == 2 and "Choose another folder" in nowhere.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "page.html"]


def test_a_table_without_rows_has_a_page(tmp_path: Path) -> None:
    objcat.connect(tmp_path).create_table("empty", pa.schema([("id", pa.int64())]), key=["id"])
    assert run("report", f"{tmp_path}/empty", str(tmp_path / "page.html")).returncode == 0


def page_of(tmp_path: Path, *, name: str = "trips") -> str:
    target = tmp_path / "page.html"
    done = run("report", f"{tmp_path}/lake/{name}", str(target), "--overwrite")
    assert done.returncode == 0, done.stderr
    return target.read_text()


def words_of(page: str) -> str:
    return unescape(" ".join(re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL).split()))


def test_a_browser_may_use_the_one_style_sheet_and_nothing_else(table: objcat.Table, tmp_path: Path) -> None:
    page = page_of(tmp_path)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert page.index("Content-Security-Policy") < page.index("<style>") and not re.search(r"\s(style|on\w+)=", page)
    assert "prefers-color-scheme: dark" in style and "color-scheme" in page


def test_nothing_in_it_is_markup_or_turns_text(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>\"'><img src=x onerror=y>\u202e\x1b[31m&amp;${x}"
    schema = pa.schema(
        [pa.field("id", pa.string()), pa.field(f"c{hostile}", pa.string()), pa.field("s", pa.struct([(hostile, pa.int64())]))]
    )
    lake = objcat.connect(tmp_path / "lake")
    table = lake.create_table("trips", schema, key=["id"], partition_by=["id"], properties={f"p{hostile}": hostile})
    table.upsert([{"id": hostile, f"c{hostile}": hostile, "s": None}], metadata={hostile: hostile})
    table.maintenance.savepoint(name=hostile)
    intent = {**INTENT, "host": hostile, "engine": hostile}
    leave(tmp_path, intent, silent_s=7300)
    page = page_of(tmp_path)
    seen = Seen()
    seen.feed(page)
    assert not {"script", "img"} & set(seen.tags) and not seen.loaded and "\u202e" not in page and "\x1b" not in page
    shown = words_of(page)
    assert shown.count("<script>alert(1)</script>\"'><img src=x onerror=y>\\u202e\\x1b[31m&amp;${x}") >= 6


INTENT = {"format": 1, "txn": "20260101T080000000Z-0100000000000001", "action": "COMMIT", "base": 1}


def leave(tmp_path: Path, intent: dict[str, object], *, silent_s: float, state: str = "inflight") -> None:
    """An intent, as a writer leaves it that died."""
    (place,) = (tmp_path / "lake" / "tables").iterdir()
    path = place / "intents" / f"{intent['txn']}.{state}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(intent))
    seen_s = default_env().now_ms() / 1000 - silent_s
    os.utime(path, (seen_s, seen_s))


def test_it_says_what_to_do(table: objcat.Table, tmp_path: Path) -> None:
    url = f"{tmp_path}/lake/trips"
    table.upsert([{"id": i, "city": city} for i in range(30) for city in ("Rome", "<b>&")])
    shown = words_of(page_of(tmp_path))
    groups = table.inspect.stats().groups
    assert f"{groups} of {groups} file groups are unmerged: objcat compact {url}" in shown
    assert "ALTER TABLE `trips` SET TBLPROPERTIES ('compact_after_commits' = '20')" in shown and "Nobody is at work." in shown
    assert "rollback" not in shown
    intent = {
        "format": 1,
        "txn": "20260101T080000000Z-0100000000000001",
        "action": "COMMIT",
        "base": 1,
        "host": "node-7",
        "engine": "spark",
    }
    leave(tmp_path, intent, silent_s=3 * 86400)
    leave(tmp_path, {**intent, "txn": "20260101T080000000Z-0200000000000001", "host": "node-8"}, silent_s=1)
    leave(tmp_path, {**intent, "txn": "20260101T080000000Z-0300000000000001", "action": "COMPACTION"}, silent_s=1, state="requested")
    shown = words_of(page_of(tmp_path))
    assert f"1 writer has given no sign of life for up to 3 d: objcat rollback {url} --older-than 600" in shown
    assert "20260101T080000000Z-0100000000000001 no sign of life COMMIT spark on node-7" in shown
    assert "20260101T080000000Z-0200000000000001 at work COMMIT spark on node-8" in shown
    assert "1 plan waits" in shown and "20260101T080000000Z-0300000000000001 a plan COMPACTION" in shown
    table.maintenance.compact()
    table.set_properties({"compact_after_commits": "7"})
    for path in (tmp_path / "lake").rglob("intents/*"):
        path.unlink()
    shown = words_of(page_of(tmp_path))
    assert "Nothing to do." in shown and "compacted by writers after 7 commits" in shown


def test_it_tells_what_the_table_is_and_what_can_be_read(table: objcat.Table, tmp_path: Path) -> None:
    table.maintenance.savepoint(name="before the move", slot=1)
    table.maintenance.compact()
    table.upsert([{"id": 1, "city": "Rome"}])
    table.maintenance.clean(keep_slots=2)
    bound = table.snapshot.log.marks(table.id).bound
    shown = words_of(page_of(tmp_path))
    times = {entry.slot: f"{entry.committed_at_ms // 1000}" for entry in table.inspect.history()}
    assert bound > 1 and set(times) >= {1, bound}
    said = {slot: dt.datetime.fromtimestamp(int(at), dt.UTC).strftime("%Y-%m-%d %H:%M:%S") for slot, at in times.items()}
    assert f"every slot from {bound} {said[bound]}" in shown and f"savepoint 1 {said[1]} before the move" in shown
    for part in ("id bigint no key", "city string no key, partition", "index bucket of id, city", "partitioned by city", "cleaning keeps"):
        assert part in shown, shown
    assert re.search(r"DELTA_COMMIT 3 [\d,]+ m?s [\d,]+ m?s [\d,]+ m?s", shown)


def test_bytes_are_on_a_logarithmic_axis(tmp_path: Path) -> None:
    table = objcat.connect(tmp_path / "lake").create_table(
        "trips", pa.schema([("id", pa.int64())]), key=["id"], index=objcat.BucketIndex(1)
    )
    for count in (1, 20_000, 400_000):
        table.insert(pa.table({"id": pa.array(range(count * 10, count * 11))}))
    page = page_of(tmp_path)
    (svg,) = re.findall(r'<svg class="plot".*?</svg>', page, re.DOTALL)
    sizes = [one["bytes"] for one in map(json.loads, run("log", f"{tmp_path}/lake/trips", "--json").stdout.splitlines())]
    heights = [float(rect.attrib["height"]) for rect in ET.fromstring(svg).iter("rect")]
    assert sizes[0] == 0 and heights[0] == 3.0
    scale = [height / math.log10(size / sizes[1]) for height, size in zip([h - heights[1] for h in heights[2:]], sizes[2:], strict=True)]
    assert scale[0] == pytest.approx(scale[1], rel=0.01)
    ticks = [text.text for text in ET.fromstring(svg).iter("text")]
    assert {"1.0 kB", "10.0 kB"} <= set(ticks) or {"100 B", "1.0 kB"} <= set(ticks), ticks


@pytest.mark.parametrize(
    "settings",
    [
        {"key": None},
        {"key": ["id"], "index": objcat.SimpleIndex()},
        {"key": ["id"], "index": objcat.BloomIndex()},
        {"key": ["id"], "index": objcat.RecordIndex()},
        {"key": ["id"], "table_type": "copy_on_write"},
        {"key": ["id"], "ordering": "at", "partition_by": ["day(at)"], "key_scope": "partition"},
    ],
    ids=str,
)
def test_every_kind_of_table_has_one(tmp_path: Path, settings: dict[str, Any]) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    table = objcat.connect(tmp_path / "lake").create_table("trips", schema, **settings)
    table.insert([{"id": 1, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}])
    shown = words_of(page_of(tmp_path))
    assert "id bigint" in shown and f"table type {table.spec.table_type}" in shown and "Nobody is at work." in shown

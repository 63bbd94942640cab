"""Who may write to the bucket may say anything in an entry; but no path in it leads out of the table's own log."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from fileio import FileIOError
from objcat.errors import ObjcatError

PATHS = {
    "above": "../../outside.parquet",
    "far above": "data/../../../outside.parquet",
    "sibling": "../{other}",
    "absolute": "{outside}",
    "url": "file://{outside}",
    "store": "s3://bucket/outside.parquet",
    "dot": "./{own}",
    "empty": "",
    "nul": "data/\0/x.parquet",
    "backslash": "..\\..\\outside.parquet",
    "encoded": "%2e%2e/%2e%2e/outside.parquet",
}


def leads_out(table: objcat.Table, tmp_path: Path, said: str = "../../../outside.parquet", *, other: str = "") -> Path:
    """Forge the entry of slot 1 so that it names another file instead of its own; returns the one outside."""
    root, own = Path(table._context.fileio.url[7:]), table.inspect.files()["path"][0].as_py()
    outside = tmp_path / "outside.parquet"
    shutil.copy(root / own, outside)
    entry = root / "log" / f"{1:020}.json"
    forged = json.loads(entry.read_text())
    # Who writes to the bucket leaves it out, as writers did that knew none, or computes it anew.
    forged.pop("digest", None)
    ((_, delta),) = forged["changes"].items()
    files = next(value for value in delta.values() if isinstance(value, list) and "path" in value[0])
    files[0]["path"] = said.format(outside=outside, own=own, other=other)
    entry.write_text(json.dumps(forged))
    (root / own).unlink()
    return outside


@pytest.mark.parametrize("what", PATHS)
@pytest.mark.parametrize("kind", ["logs", "bases"])
def test_a_path_of_an_entry_stays_below_its_log(tmp_path: Path, what: str, kind: str) -> None:
    lake = objcat.connect(tmp_path / "lake")
    table, other = (
        lake.create_table(name, pa.schema([("id", pa.int64())]), key=["id"], index=objcat.BucketIndex(1)) for name in ("t", "u")
    )
    for one in (table, other):
        (one.insert if kind == "bases" else one.upsert)([{"id": 1}])
    root = Path(table._context.fileio.url[7:])
    place = Path(other._context.fileio.url[7:]).relative_to(root.parent)
    leads_out(table, tmp_path, PATHS[what], other=f"{place}/{other.inspect.files()['path'][0].as_py()}")
    before = {path for path in tmp_path.rglob("*") if path.is_file() and root not in path.parents}
    fresh = objcat.connect(tmp_path / "lake")
    for work in (
        lambda: fresh.table("t").scan().to_arrow(),
        lambda: fresh.sql("SELECT * FROM t").num_rows,
        lambda: fresh.table("t").update({"id": "id"}, where="id % 2 = 1"),
        lambda: fresh.table("t").erase("id = 1", older_than_s=0),
    ):
        with pytest.raises((ObjcatError, FileIOError)):
            work()
    for tidy in (
        lambda: fresh.table("t").maintenance.clean(keep_slots=1),
        lambda: fresh.drop_table("t"),
        lambda: fresh.purge_table("t", older_than_s=0),
    ):
        with contextlib.suppress(ObjcatError, FileIOError):
            tidy()
    assert {path for path in tmp_path.rglob("*") if path.is_file() and root not in path.parents} >= before

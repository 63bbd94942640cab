"""A table in a folder that other programs write to as well: what they leave there is neither read, nor deleted, nor in the way."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import objcat
from fileio.errors import InvalidKey
from objcat.inspection.doctor import examine, examine_names
from objcat.inspection.findings import Severity
from objcat.timeline.entry import log_key

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())])
LITTER = (".DS_Store", "._x", ".part.crc", "x.json~", "#x#", ".x.swp", "Thumbs.db", "_SUCCESS", ".nfs0001", "copy of 1.json")


def table_at(root: Path) -> objcat.Table:
    table = objcat.connect(root).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(2))
    table.upsert([{"id": number, "value": "first"} for number in range(5)])
    table.upsert([{"id": 1, "value": "second"}])
    return table


def rows_of(table: objcat.Table) -> dict[int, str]:
    return {row["id"]: row["value"] for row in table.scan().to_arrow().to_pylist()}


def litter(root: Path) -> set[Path]:
    """Other people's files, copies of ours and odd entries in every directory below the root; all that is there."""
    ours = [Path(level) for level, _, _ in os.walk(root) if ".objcat" not in level]
    theirs = []
    for directory in ours:
        for path in [path for path in directory.iterdir() if path.is_file()]:
            theirs += [shutil.copy(path, path.with_name(name)) for name in (f"._{path.name}", f"{path.name}~", f".{path.name}.crc")]
        for name in LITTER:
            (directory / name).write_bytes(b"{}")
            theirs.append(directory / name)
        (directory / "__MACOSX").mkdir()
        (directory / "__MACOSX/._y").write_bytes(b"junk")
        (directory / "circle").symlink_to("circle")
        (directory / "nowhere").symlink_to("away")
        os.mkfifo(directory / "pipe")
        theirs += [directory / name for name in ("__MACOSX/._y", "circle", "nowhere", "pipe")]
    return {Path(path) for path in theirs}


def test_what_others_put_into_the_folders_of_a_lake_changes_nothing(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    theirs = litter(tmp_path)
    kept = next(tmp_path.glob("tables/*/data/2*"))
    shutil.copytree(kept, kept.with_name(f"{kept.name}.bak"), symlinks=True, ignore=shutil.ignore_patterns("pipe"))
    assert objcat.connect(tmp_path).tables() == ["t"]
    for handle in (table, objcat.connect(tmp_path).table("t")):
        handle.upsert([{"id": number, "value": "third"} for number in range(3, 7)])
        handle.delete([{"id": 0}])
    assert table.maintenance.compact() is not None
    assert table.maintenance.clean(keep_slots=1).files > 0
    assert not [step for step in table.maintenance.run().steps if step.failed]
    table.maintenance.rollback_failed_writes(older_than_s=0)
    expected = {1: "second", 2: "first", 3: "third", 4: "third", 5: "third", 6: "third"}
    assert rows_of(table) == rows_of(objcat.connect(tmp_path).table("t")) == expected
    report = examine(table._context.timeline, deep=True)
    assert report.healthy and {finding.severity for finding in report.findings} == {Severity.LEFTOVER}
    assert not [finding for finding in report.findings if "its writer may still be at work" in finding.says]
    assert examine_names(objcat.connect(tmp_path).fileio).healthy
    # What lies in the folder of one of our transactions is ours to remove; all else stays.
    assert [path for path in theirs if "/data/2" not in str(path) and not os.path.lexists(path)] == []
    assert kept.with_name(f"{kept.name}.bak").is_dir() and any(kept.with_name(f"{kept.name}.bak").glob("*.parquet"))


@pytest.mark.parametrize("full", [False, True], ids=["empty", "with a file"])
def test_a_directory_in_the_place_of_the_next_slot(tmp_path: Path, full: bool) -> None:
    """Without a file in it it is no object, and gives way; with one the write is refused, and comes once it is gone."""
    table = table_at(tmp_path)
    [log] = tmp_path.glob("tables/*/log")
    slot = log.parent / log_key(3)
    (slot / "deeper").mkdir(parents=True)
    if full:
        (slot / "deeper/x").write_bytes(b"")
        with pytest.raises(InvalidKey, match="Other keys begin with it"):
            table.upsert([{"id": 9, "value": "refused"}])
        assert rows_of(objcat.connect(tmp_path).table("t")).keys() == set(range(5))
        shutil.rmtree(slot)
    assert table.upsert([{"id": 8, "value": "third"}]).slot == 3
    assert rows_of(table).keys() == rows_of(objcat.connect(tmp_path).table("t")).keys() == {*range(5), 8}
    assert examine(table._context.timeline, deep=True).healthy

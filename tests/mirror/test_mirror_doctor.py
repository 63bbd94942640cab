"""`objcat doctor --deep` finds damage of each kind in a mirror, names the object and says what to do. A healthy mirror has no finding."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import objcat
from objcat.inspection.doctor import examine
from objcat.inspection.findings import Finding, Severity
from objcat.inspection.mirror_slots import FOREIGN, REMADE
from objcat.mirror.iceberg.avro import decode_avro, encode_avro
from objcat.mirror.iceberg.vectors import decode_vector, encode_vector
from tests.effort import effort, few
from tests.mirror.histories import check_caught_up, folder, make_table, mirrors_by_hand, people

Edit = Callable[[list[dict[str, Any]]], None]


@dataclass(frozen=True)
class Mirrored:
    """A table with mirrors of all its slots, and a copy of them as they should be. newest: its slot. checkpoint: of Delta."""

    table: objcat.Table
    where: Path
    saved: Path
    version: str
    newest: int
    checkpoint: int

    def examine(self) -> list[Finding]:
        return examine(self.table._context.timeline, deep=True).findings

    def heal(self) -> None:
        for name in ("metadata", "_delta_log", "deltavectors"):
            shutil.rmtree(self.where / name)
            shutil.copytree(self.saved / name, self.where / name)


@cache
def mirrored(version: str) -> Mirrored:
    """The table with an Iceberg mirror of a version, made once."""
    directory = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory)
    with mirrors_by_hand(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("objcat.mirror.delta.state.VERSIONS_MIN", 4)
        table = make_table(objcat.connect(directory / "lake"), mirror_iceberg_version=version)
        for write in (
            lambda: table.upsert(people(*range(8))),
            lambda: table.upsert(people(1, 2, value=1)),
            lambda: table.delete([{"id": 3}]),
            table.maintenance.compact,
            lambda: table.upsert(people(4, value=2)),
            lambda: table.upsert(people(6, value=2)),
            lambda: table.upsert(people(5, value=2)),
        ):
            write()
            table.maintenance.mirror()
        where = folder(table)
        checkpoints = sorted(where.glob("_delta_log/*.checkpoint.parquet"))
        found = Mirrored(table, where, directory / "saved", version, table.snapshot.slot, int(checkpoints[-1].name[:20]))
        assert found.newest == 7 and 1 < found.checkpoint < 6
        shutil.copytree(where, found.saved)
        return found


# ---- damage: each does it, and returns the object that must be named


def delete(pattern: str) -> Callable[[Mirrored], str]:
    def damage(mirror: Mirrored) -> str:
        path = last(mirror, pattern)
        path.unlink()
        return path.name

    return damage


def cut(pattern: str) -> Callable[[Mirrored], str]:
    def damage(mirror: Mirrored) -> str:
        path = last(mirror, pattern)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        return path.name

    return damage


def flip(pattern: str, *, at: float = 0.5) -> Callable[[Mirrored], str]:
    def damage(mirror: Mirrored) -> str:
        path = last(mirror, pattern)
        data = bytearray(path.read_bytes())
        data[int(len(data) * at)] ^= 0x5A
        path.write_bytes(data)
        return path.name

    return damage


def put_over(source: str, target: str) -> Callable[[Mirrored], str]:
    def damage(mirror: Mirrored) -> str:
        shutil.copy(last(mirror, source), last(mirror, target))
        return last(mirror, target).name

    return damage


def write(pattern: str, data: bytes) -> Callable[[Mirrored], str]:
    def damage(mirror: Mirrored) -> str:
        last(mirror, pattern).write_bytes(data)
        return last(mirror, pattern).name

    return damage


def last(mirror: Mirrored, pattern: str) -> Path:
    found = sorted(mirror.where.glob(pattern))
    assert found, pattern
    return found[-1]


def edit_manifests(kind: str, edit: Edit) -> Callable[[Mirrored], str]:
    """Change entries of a manifest of the newest slot, and its length in the manifest list, so that nothing else is wrong."""

    def damage(mirror: Mirrored) -> str:
        name = last(mirror, f"metadata/{kind}-7-*.avro")
        edit_avro(name, edit)
        manifests = last(mirror, "metadata/snap-7-*.avro")

        def measure(records: list[dict[str, Any]]) -> None:
            for record in records:
                if record["manifest_path"].endswith(name.name):
                    record["manifest_length"] = name.stat().st_size

        edit_avro(manifests, measure)
        return name.name

    return damage


def edit_avro(path: Path, edit: Edit) -> None:
    data = path.read_bytes()
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        schema: Any = reader.writer_schema
        metadata = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
    records = decode_avro(data)
    edit(records)
    path.write_bytes(encode_avro(schema, records, metadata, sync="0123456789abcdef"))


def count_wrong(records: list[dict[str, Any]]) -> None:
    records[0]["data_file"]["record_count"] += 3


def measure_wrong(records: list[dict[str, Any]]) -> None:
    records[0]["data_file"]["file_size_in_bytes"] -= 1


def edit_document(slot: int, edit: Callable[[dict[str, Any]], None]) -> Callable[[Mirrored], str]:
    def damage(mirror: Mirrored) -> str:
        path = mirror.where / f"metadata/v{slot + 1}.metadata.json"
        document = json.loads(path.read_bytes())
        edit(document)
        path.write_text(json.dumps(document))
        return path.name

    return damage


def other_txn(document: dict[str, Any]) -> None:
    document["properties"]["objcat.txn"] = "20200101T000000000Z-0000000000000001"


def wrong_total(document: dict[str, Any]) -> None:
    document["snapshots"][-1]["summary"]["total-records"] = "4"


def mask_another_row(mirror: Mirrored) -> str:
    """Another position in place of the right one. Lengths, counts and checksums are as they should be."""
    if mirror.version == "2":
        path = last(mirror, "metadata/pos-7-*.parquet")
        rows, before = pq.read_table(path), path.stat().st_size
        right = rows.column("pos").to_pylist()
        for other in (position for position in range(8) if position not in right):
            changed = rows.set_column(1, rows.schema.field(1), pa.array([other] * rows.num_rows, pa.int64()))
            pq.write_table(changed, path, compression="zstd", store_schema=False, use_dictionary=["file_path"], row_group_size=250_000)
            if path.stat().st_size == before:
                break
        assert path.stat().st_size == before
    else:
        path = last(mirror, "metadata/dv-7-*.puffin")
        data = path.read_bytes()
        footer = int.from_bytes(data[-12:-8], "little")
        blob = json.loads(data[-12 - footer : -12])["blobs"][0]
        begin, end = blob["offset"], blob["offset"] + blob["length"]
        right = decode_vector(data[begin:end], where="")
        others = np.setdiff1d(np.arange(8), right)[: len(right)]
        made = encode_vector(others)
        assert len(made) == end - begin
        path.write_bytes(data[:begin] + made + data[end:])
    return ".parquet"


def edit_commit(version: int, edit: Callable[[list[dict[str, Any]]], object]) -> Callable[[Mirrored], str]:
    def damage(mirror: Mirrored) -> str:
        path = mirror.where / f"_delta_log/{version:020d}.json"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        edit(lines)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path.name

    return damage


def adds_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line["add"] for line in lines if "add" in line]


def count_wrong_in_stats(lines: list[dict[str, Any]]) -> None:
    add = adds_of(lines)[-1]
    add["stats"] = json.dumps({**json.loads(add["stats"]), "numRecords": 99})


def measure_wrong_in_add(lines: list[dict[str, Any]]) -> None:
    adds_of(lines)[-1]["size"] += 1


def lose_an_add(lines: list[dict[str, Any]]) -> None:
    lines.remove(next(line for line in reversed(lines) if "add" in line))


def miscount_a_vector(lines: list[dict[str, Any]]) -> None:
    next(add for add in adds_of(lines) if "deletionVector" in add)["deletionVector"]["cardinality"] += 1


def name_another_txn(lines: list[dict[str, Any]]) -> None:
    lines[0]["commitInfo"]["txnId"] = "20200101T000000000Z-0000000000000001"


def forget_a_vector(lines: list[dict[str, Any]]) -> None:
    del next(add for add in adds_of(lines) if "deletionVector" in add)["deletionVector"]


def at_a_data_file(does: Callable[[Mirrored], str]) -> Callable[[Mirrored], str]:
    """Damage that is seen by the rows of a data file."""

    def damage(mirror: Mirrored) -> str:
        does(mirror)
        return ".parquet"

    return damage


def mistake_masks(mirror: Mirrored) -> str:
    edit_manifests("m1", count_wrong)(mirror)
    return ".parquet" if mirror.version == "2" else ".puffin"


def miscount_vectors(mirror: Mirrored) -> str:
    edit_commit(7, miscount_a_vector)(mirror)
    return ".bin"


def swap_vectors(mirror: Mirrored) -> str:
    """The vectors of an earlier slot, as long as the right ones."""
    shutil.copy(last(mirror, "deltavectors/*0002-*.bin"), last(mirror, "deltavectors/*0007-*.bin"))
    return ".parquet"


def damage_the_checkpoint(mirror: Mirrored) -> str:
    """A checkpoint that lacks a file, and is otherwise whole."""
    path = last(mirror, "_delta_log/*.checkpoint.parquet")
    rows = pq.read_table(path)
    pq.write_table(rows.slice(0, rows.num_rows - 1), path)
    return ".parquet"


def lose_a_version(mirror: Mirrored) -> str:
    path = mirror.where / f"_delta_log/{mirror.checkpoint - 1:020d}.json"
    path.unlink()
    return path.name


def lose_a_version_that_the_newest_needs(mirror: Mirrored) -> str:
    path = mirror.where / f"_delta_log/{mirror.newest - 1:020d}.json"
    assert mirror.newest - 1 > mirror.checkpoint
    path.unlink()
    return path.name


@dataclass(frozen=True)
class Damage:
    """does: it, and returns how the subject of a finding ends. says: what the finding says. only: in this format version."""

    name: str
    does: Callable[[Mirrored], str]
    says: str
    only: str = "23"
    remedy: str = REMADE


DAMAGE = [
    # What is lost of an Iceberg mirror.
    Damage("the manifest list is lost", delete("metadata/snap-7-*.avro"), "is missing, and slot 7 names it"),
    Damage("a manifest of data files is lost", delete("metadata/m0-7-*.avro"), "is missing, and slot 7 names it"),
    Damage("a manifest of deletes is lost", delete("metadata/m1-7-*.avro"), "is missing, and slot 7 names it"),
    Damage("a manifest that an earlier slot alone names is lost", delete("metadata/m1-3-*.avro"), "is missing, and slot 3 names it"),
    Damage("a position file is lost", delete("metadata/pos-7-*.parquet"), "is missing", "2"),
    Damage("a Puffin file is lost", delete("metadata/dv-7-*.puffin"), "is missing", "3"),
    Damage("the metadata file of a slot is lost", delete("metadata/v4.metadata.json"), "is missing: the metadata file of slot 3"),
    # What is of another slot.
    Damage(
        "a metadata file of an earlier slot", put_over("metadata/v4.metadata.json", "metadata/v6.metadata.json"), "slot 5", remedy=FOREIGN
    ),
    Damage("the newest one of another slot", put_over("metadata/v6.metadata.json", "metadata/v8.metadata.json"), "slot 7", remedy=FOREIGN),
    Damage("a metadata file of another transaction", edit_document(5, other_txn), "slot 5 of the log is of"),
    Damage("a position file of another slot", put_over("metadata/pos-2-*.parquet", "metadata/pos-7-*.parquet"), "slot 7 names it", "2"),
    Damage("a Puffin file of another slot", put_over("metadata/dv-2-*.puffin", "metadata/dv-7-*.puffin"), "slot 7 names it", "3"),
    Damage("another row is masked", mask_another_row, "shows other rows in the iceberg mirror"),
    # What says something else.
    Damage("a wrong row count", edit_manifests("m0", count_wrong), "rows, and it has"),
    Damage("a wrong size", edit_manifests("m0", measure_wrong), "bytes, and it has"),
    Damage("a wrong count of masked rows", mistake_masks, "entry says"),
    Damage("a wrong total", edit_document(7, wrong_total), "says total-records 4"),
    Damage("the hint names nothing", write("metadata/version-hint.text", b"77"), "which is no metadata file"),
    Damage("the hint is no number", write("metadata/version-hint.text", b"v8"), "which is no metadata file"),
    # What is cut or changed.
    Damage("the manifest list is cut", cut("metadata/snap-7-*.avro"), "cannot be read"),
    Damage("a manifest is cut", cut("metadata/m0-7-*.avro"), "slot 7 names it with"),
    Damage("a manifest has another byte", flip("metadata/m0-7-*.avro", at=0.75), "cannot be read"),
    Damage("a manifest list has another byte", flip("metadata/snap-7-*.avro", at=0.997), "cannot be read"),
    Damage("a position file is cut", cut("metadata/pos-7-*.parquet"), "slot 7 names it with", "2"),
    Damage("a position file has another byte", flip("metadata/pos-7-*.parquet", at=0.99), "cannot be read", "2"),
    Damage("a Puffin file is cut", cut("metadata/dv-7-*.puffin"), "slot 7 names it with", "3"),
    Damage("a vector has another byte", flip("metadata/dv-7-*.puffin", at=0.06), "cannot be read", "3"),
    Damage("the footer of a Puffin file has another byte", flip("metadata/dv-7-*.puffin", at=0.995), "cannot be read", "3"),
    Damage("the newest metadata file is cut", cut("metadata/v8.metadata.json"), "is not the metadata of slot 7"),
    Damage("an earlier metadata file is cut", cut("metadata/v3.metadata.json"), "is not the metadata of slot 2"),
]
DELTA_DAMAGE = [
    Damage("a version is lost", lose_a_version, "is missing: the commit of slot"),
    Damage("a version that the newest needs is lost", lose_a_version_that_the_newest_needs, "is missing: the commit of slot 6"),
    Damage("the newest vectors are lost", delete("deltavectors/*0007-*.bin"), "cannot be used"),
    Damage("vectors of an earlier slot are lost", delete("deltavectors/*0002-*.bin"), "cannot be used"),
    Damage("vectors of another slot", swap_vectors, "shows other rows in the delta mirror"),
    Damage("vectors have another byte", flip("deltavectors/*0007-*.bin", at=0.9), "cannot be used"),
    Damage("vectors are cut", cut("deltavectors/*0007-*.bin"), "cannot be used"),
    Damage("a wrong row count", edit_commit(7, count_wrong_in_stats), "rows, and it has"),
    Damage("a wrong size", edit_commit(7, measure_wrong_in_add), "bytes, and it has"),
    Damage("a wrong count of masked rows", miscount_vectors, "cannot be used"),
    Damage(
        "a commit of an earlier slot", put_over("_delta_log/*3.json", "_delta_log/*2.json"), "is not the commit of slot 2", remedy=FOREIGN
    ),
    Damage("the newest one of another slot", put_over("_delta_log/*6.json", "_delta_log/*7.json"), "of slot 7", remedy=FOREIGN),
    Damage("a commit of another transaction", edit_commit(3, name_another_txn), "slot 3 of the log is of"),
    Damage("a file is not added", at_a_data_file(edit_commit(7, lose_an_add)), "lacks it"),
    Damage("masked rows are not masked", at_a_data_file(edit_commit(7, forget_a_vector)), "shows other rows in the delta mirror"),
    Damage("a commit is cut", cut("_delta_log/*7.json"), "is not the commit of slot 7"),
    Damage("an earlier commit is cut", cut("_delta_log/*2.json"), "is not the commit of slot 2"),
    Damage("the checkpoint is cut", cut("_delta_log/*.checkpoint.parquet"), "cannot be read"),
    Damage("the checkpoint lacks a file", damage_the_checkpoint, "lacks it"),
    Damage("the hint names nothing", write("_delta_log/_last_checkpoint", b'{"version":77,"size":3}'), "which is missing"),
]
EVERY = [*(("iceberg", one) for one in DAMAGE), *(("delta", one) for one in DELTA_DAMAGE)]
CASES = [
    pytest.param(version, form, damage, id=f"{form} {version}-{damage.name}" if form == "iceberg" else f"delta-{damage.name}")
    for version in "23"
    for form, damage in EVERY
    if version in damage.only and (form == "iceberg" or version == "2")
]
HEALED = (
    "a manifest of data files is lost",
    "the newest one of another slot",
    "a version is lost",
    "vectors of another slot",
    "a manifest is cut",
)


@pytest.fixture
def healed(request: pytest.FixtureRequest) -> Iterator[Mirrored]:
    found = mirrored(request.param)
    yield found
    found.heal()


@pytest.mark.parametrize("version", ["2", "3"])
def test_a_healthy_mirror_gives_no_finding(version: str) -> None:
    report = examine(mirrored(version).table._context.timeline, deep=True)
    assert report.findings == []
    assert report.counts["mirrored files"] > 4


@pytest.mark.parametrize(("healed", "form", "damage"), CASES, indirect=["healed"])
def test_damage_is_found_and_named(healed: Mirrored, form: str, damage: Damage) -> None:
    subject = damage.does(healed)
    findings = healed.examine()
    told = [f"{finding.subject} {finding.says}" for finding in findings]
    fits = [finding for finding in findings if finding.subject.endswith(subject) and damage.says in finding.says]
    assert fits, told
    assert all(finding.severity is Severity.BROKEN and finding.invariant == "P7" for finding in findings), told
    assert {finding.remedy for finding in fits} == {damage.remedy}, told
    # The other mirror is healthy.
    assert all(("_delta_log" in one or "deltavectors" in one or "delta mirror" in one) == (form == "delta") for one in told), told


@pytest.mark.parametrize("case", few([case for case in EVERY if case[1].name in HEALED], 0, integration=9))
def test_the_next_step_heals(tmp_path: Path, case: tuple[str, Damage]) -> None:
    """What the remedy says, done to the letter."""
    _, damage = case
    with mirrors_by_hand(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("objcat.mirror.delta.state.VERSIONS_MIN", 2)
        table = make_table(objcat.connect(tmp_path))
        for number in range(7):
            table.upsert(people(*range(number, number + 4), value=number))
            table.maintenance.mirror()
        damaged = Mirrored(table, folder(table), tmp_path, "2", 7, 5)
        damage.does(damaged)
        findings = damaged.examine()
        assert findings and {finding.remedy for finding in findings} == {damage.remedy}
        fresh = objcat.connect(tmp_path).table("shop.people")
        if damage.remedy == FOREIGN:
            (damaged.where / findings[0].subject).unlink()
        else:
            wanted = fresh.properties["mirrors"]
            fresh.set_properties({"mirrors": "none"})
            fresh.maintenance.mirror()
            fresh.set_properties({"mirrors": wanted})
        fresh.maintenance.mirror()
        assert damaged.examine() == []
        check_caught_up(fresh)


@pytest.mark.parametrize("healed", ["2", "3"], indirect=True)
def test_damage_anywhere_in_a_file_never_breaks_the_examination(healed: Mirrored) -> None:
    """Whatever byte changes, or wherever a file ends: the doctor says so, or the byte means nothing. It never ends in an error."""
    where = healed.where
    names = [name for pattern in ("snap-7-*", "m0-7-*", "m1-7-*", "pos-7-*", "dv-7-*") for name in where.glob(f"metadata/{pattern}")]
    names += [last(healed, "_delta_log/*7.json"), last(healed, "_delta_log/*.checkpoint.parquet"), last(healed, "deltavectors/*0007-*")]
    places = effort(3, with_all=60)
    for path in names:
        whole = path.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // places)):
            path.write_bytes(whole[:at])
            assert healed.examine(), f"{path.name} ends at {at}"
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
            healed.examine()
        path.write_bytes(whole)
    assert healed.examine() == []

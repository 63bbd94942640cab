"""The first mirror of a table with many files: what it holds in memory at once does not grow with their number."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.mirror_tables import FORMATS, REAL_GROUPS, Follower, make_mirrored, opened, places, some_rows
from objcat.metadata.files import FileGroup
from objcat.mirror.delta.actions import DeltaAdd
from objcat.mirror.iceberg.objects import Uploads
from objcat.mirror.model import MirroredFile
from objcat.mirror.spooled_records import BLOCK_BYTES, SpooledRecords
from objcat.mirror.whole_table import WholeTable

GROUPS = 500
"""File groups that are read at once here, in place of thousands."""
SIZES = (2_000, 8_000)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """The URL of a table of so many files, some of them with masked rows, which is made once."""
    known: dict[int, str] = {}

    def at(files: int) -> str:
        if files not in known:
            known[files] = str(tmp_path_factory.mktemp(f"files-{files}"))
            make_mirrored(known[files], files=files, ids=20, say=lambda _: None)
            opened(known[files]).upsert(some_rows(places(files), 40, ids=20, seed=4))
        return known[files]

    return at


class Peak:
    """The most objects of each kind that were alive at the moments that were looked at, without those that were there at the beginning."""

    KINDS = (MirroredFile, FileGroup, DeltaAdd)

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        gc.collect()
        self._before = self._counts()
        self.most = dict.fromkeys(self.KINDS, 0)
        self.moments = 0

    def look(self) -> None:
        counts = self._counts()
        self.most = {kind: max(most, counts[kind] - self._before[kind]) for kind, most in self.most.items()}
        self.moments += 1

    def _counts(self) -> dict[type, int]:
        counts: dict[type, int] = dict.fromkeys(self.KINDS, 0)
        for one in gc.get_objects():
            if type(one) in counts:
                counts[type(one)] += 1
        return counts


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch) -> Peak:
    """It looks while the table is read, while files are gone through, and at every upload."""
    found = Peak()
    store, stored, put = WholeTable._store, WholeTable._stored, Uploads.put

    def storing(self: WholeTable, files: Any) -> Any:
        found.look()
        return store(self, files)

    def going(self: WholeTable, begin: int, end: int) -> Iterator[MirroredFile]:
        for number, file in enumerate(stored(self, begin, end)):
            if number % 400 == 399:
                found.look()
            yield file

    def uploading(self: Uploads, key: str, data: bytes) -> None:
        found.look()
        put(self, key, data)

    monkeypatch.setattr("objcat.mirror.whole_table.GROUPS_AT_ONCE", GROUPS)
    monkeypatch.setattr("objcat.mirror.iceberg.slot_writer.ENTRIES_MAX", GROUPS)
    monkeypatch.setattr("objcat.mirror.delta.restarts.ROW_GROUP_ROWS", GROUPS)
    monkeypatch.setattr("objcat.mirror.delta.restarts.PART_LINES", GROUPS)
    monkeypatch.setattr(WholeTable, "_store", storing)
    monkeypatch.setattr(WholeTable, "_stored", going)
    monkeypatch.setattr(Uploads, "put", uploading)
    return found


@pytest.mark.parametrize("form", FORMATS)
def test_objects_in_memory_are_those_of_a_part(made: Callable[[int], str], peak: Peak, form: str) -> None:
    most = []
    for files in SIZES:
        table = opened(made(files))
        table.set_properties({"mirrors": "none"})
        table.maintenance.mirror()
        table.set_properties(FORMATS[form])
        peak.begin()
        follower = Follower(made(files))
        follower.catch_up()
        assert peak.moments > files // GROUPS
        most.append(peak.most)
        # All files, and the rows of those that are real: 16 base files and one log file.
        assert follower.live_files() == files + 1
    for found, files in zip(most, SIZES, strict=True):
        parts = files // GROUPS + 2
        assert found[MirroredFile] <= GROUPS + REAL_GROUPS + 2 * parts, most
        assert found[FileGroup] <= GROUPS + REAL_GROUPS, most
        assert found[DeltaAdd] <= 2 * GROUPS + parts, most


def test_records_on_disk_come_back_in_order_from_any_place() -> None:
    records = SpooledRecords()
    places = []
    sizes = [0, 1, 5, BLOCK_BYTES - 4, BLOCK_BYTES, 3 * BLOCK_BYTES + 1, 2] * 3
    written = [bytes([number]) * size for number, size in enumerate(sizes)]
    for record in written:
        places.append(records.bytes)
        records.add(record)
    assert list(records.read()) == written
    for first, last in ((0, 3), (2, 9), (5, 6), (20, 21), (7, 7)):
        end = records.bytes if last == len(places) else places[last]
        assert list(records.read(places[first], end)) == written[first:last]
    # Readers beside each other do not disturb each other, and neither does a record that is added meanwhile.
    one, other = records.read(), records.read(places[2])
    assert [next(one), next(other), next(one), next(other)] == [written[0], written[2], written[1], written[3]]
    records.add(b"later")
    assert list(other) == written[4:]

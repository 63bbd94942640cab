"""A mirror that begins late, or begins again after a gap: readers start at its checkpoint, and whoever finds it half done finishes it."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fileio.errors import MissingDependency
from fileio.registry import open_store
from fileio.store import FileIO
from fileio.testing.faults import Crash, Fault, FaultyBackend, Rule
from objcat.mirror.delta import state
from objcat.mirror.delta.actions import checkpoint_key, commit_key, hint_key
from objcat.mirror.delta.mirror import DeltaMirror
from objcat.mirror.model import CorruptMirror, ForeignMetadata, MirrorSlotTaken
from tests.mirror.delta.synthetic import History, read_by_deltalake, rows_of


def grown(table: History, steps: int, rng: random.Random) -> None:
    mirror = table.mirror()
    for _ in range(steps):
        mirror.write(table.draw(rng))


def begun(path: Path, slot: int) -> History:
    table = History(open_store(path.as_uri()))
    one = table.file([{"id": number, "v": "a"} for number in range(10)], masked={1, 2})
    table.files = {one.file.path: one}
    table.mirror().write(table.begin(slot=slot))
    return table


def test_a_mirror_that_begins_late_is_read_from_its_checkpoint(tmp_path: Path) -> None:
    table = begun(tmp_path, 7)
    assert table.fileio.exists(checkpoint_key(table.place, 7)) and table.fileio.exists(hint_key(table.place))
    grown(table, 5, random.Random(1))
    for slot in range(7, 13):
        assert read_by_deltalake(table.url, slot) == table.rows_at[slot]


def test_after_a_gap_readers_begin_at_the_checkpoint_of_the_restart(tmp_path: Path) -> None:
    table = begun(tmp_path, 0)
    grown(table, 6, random.Random(2))
    table.mirror().write(table.begin(slot=17))
    grown(table, 4, random.Random(3))
    for slot in [*range(7), *range(17, 22)]:
        assert read_by_deltalake(table.url, slot) == table.rows_at[slot]
    assert read_by_deltalake(table.url) == table.rows_at[21]
    # A reader without the hint finds the checkpoint by its name.
    table.fileio.delete([hint_key(table.place)])
    assert read_by_deltalake(table.url) == table.rows_at[21]
    newest = table.mirror().newest()
    assert newest is not None and newest.slot == 21


def death_at(ending: str) -> Rule:
    return Rule(fault=Fault.CRASH_BEFORE, kinds=frozenset({"put"}), key=lambda key: key.endswith(ending))


@pytest.mark.parametrize("slot", [7, 12])
def test_a_restart_without_its_checkpoint_gets_it_from_the_next_process(tmp_path: Path, slot: int) -> None:
    table = begun(tmp_path, 0)
    grown(table, 6, random.Random(2))
    for ending in (".checkpoint.parquet", "_last_checkpoint"):
        dying = DeltaMirror(replace(table.place, fileio=FileIO(FaultyBackend(open_store(tmp_path.as_uri())._bare, [death_at(ending)]))))
        with pytest.raises(Crash):
            dying.write(table.begin(slot=slot))
        if slot == 7:
            # It follows the version before, so readers replay it without a checkpoint.
            assert read_by_deltalake(table.url) == table.rows_at[slot]
        newest = table.mirror().newest()
        assert newest is not None and newest.slot == slot
        assert table.fileio.exists(checkpoint_key(table.place, slot))
        assert read_by_deltalake(table.url) == table.rows_at[slot]
        grown(table, 2, random.Random(4))
        assert read_by_deltalake(table.url) == table.rows_at[slot + 2]
        slot += 10


def test_a_reader_that_knows_the_version_before_a_restart_goes_on_from_it(tmp_path: Path) -> None:
    table = begun(tmp_path, 0)
    grown(table, 12, random.Random(9))
    known = deltalake.DeltaTable(table.url)
    # The restart has other files, other masked rows, and files that are the same.
    for stored in list(table.files.values())[::2]:
        stored.masked ^= {0, 1}
    table.files.pop(min(table.files))
    one = table.file([{"id": 5000}])
    table.files[one.file.path] = one
    table.mirror().write(table.begin(slot=13))
    known.update_incremental()
    assert known.version() == 13
    found = pa.table(deltalake.QueryBuilder().register("t", known).execute("SELECT * FROM t").read_all())
    assert rows_of(found) == table.rows_at[13] == read_by_deltalake(table.url)


def test_nothing_restarts_over_metadata_of_others(tmp_path: Path) -> None:
    table = begun(tmp_path, 0)
    table.fileio.put(commit_key(table.place, 1), b'{"commitInfo":{"timestamp":1,"operation":"WRITE"}}\n')
    before = sorted(table.fileio.list_keys())
    with pytest.raises(ForeignMetadata):
        table.mirror().write(table.begin(slot=2))
    assert sorted(table.fileio.list_keys()) == before


def test_a_restart_replaces_a_log_that_cannot_be_read(tmp_path: Path) -> None:
    table = begun(tmp_path, 0)
    grown(table, 6, random.Random(2))
    table.fileio.put(commit_key(table.place, 5), b"{ this is no JSON")
    with pytest.raises(CorruptMirror, match=r"05\.json.*cannot be read"):
        table.mirror().newest()
    table.mirror().write(table.begin(slot=7))
    grown(table, 3, random.Random(4))
    assert read_by_deltalake(table.url) == table.rows_at[10]
    newest = table.mirror().newest()
    assert newest is not None and newest.slot == 10


def test_a_slot_that_is_taken_cannot_be_restarted_and_neither_can_one_below(tmp_path: Path) -> None:
    table = begun(tmp_path, 0)
    grown(table, 3, random.Random(2))
    for slot in (3, 2, 0):
        with pytest.raises(MirrorSlotTaken):
            table.mirror().write(table.begin(slot=slot))


def test_a_restarted_mirror_lists_only_features_that_the_table_needs_now(tmp_path: Path) -> None:
    table = begun(tmp_path, 0)
    mirror = table.mirror()
    assert "deletionVectors" in (deltalake.DeltaTable(table.url).protocol().reader_features or ())
    table.files.clear()
    mirror.write(table.begin(slot=1))
    protocol = deltalake.DeltaTable(table.url).protocol()
    assert (protocol.min_reader_version, protocol.reader_features) == (1, None)
    assert set(protocol.writer_features or ()) == {"inCommitTimestamp", "objcatMirror"}


@pytest.mark.usefixtures("_never_whole")
@pytest.mark.parametrize("masks", [True, False])
def test_a_checkpoint_that_is_damaged_inside_is_noticed_and_healed(tmp_path: Path, masks: bool) -> None:
    table = begun(tmp_path, 7)
    key = checkpoint_key(table.place, 7)
    data = table.fileio.read(key)
    group = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(1)
    begin = next(group.column(at).data_page_offset for at in range(group.num_columns) if group.column(at).path_in_schema == "add.path")
    table.fileio.put(key, data[:begin] + b"damaged " * 5 + data[begin + 40 :])
    mirror = table.mirror()
    # A file of the checkpoint is looked up, or all of them are merged into the next one.
    changes = [table.mask({path: {7} for path in table.files})] if masks else [table.nothing() for _ in range(33)]
    for change in changes[:-1]:
        mirror.write(change)
    with pytest.raises(CorruptMirror, match="cannot be read"):
        mirror.write(changes[-1])
    with pytest.raises(CorruptMirror, match="cannot be read"):
        mirror.newest()
    mirror.write(table.begin(slot=table.slot))
    assert read_by_deltalake(table.url) == table.rows_at[table.slot]
    newest = mirror.newest()
    assert newest is not None and newest.slot == table.slot


@pytest.fixture
def _never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "WHOLE_ROWS_MAX", 0)


def test_without_the_library_of_bitmaps_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroaring", None)
    with pytest.raises(MissingDependency, match=r"pip install 'objcat\[mirrors\]'"):
        History(open_store(tmp_path.as_uri())).mirror()

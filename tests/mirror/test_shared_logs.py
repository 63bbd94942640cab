"""Tables that share a busy log: most slots are of others, and a mirror writes little or nothing for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import objcat
from objcat.inspection.doctor import examine
from tests.mirror.histories import MIRRORS, READERS, SCHEMA, Rows, mirrors_by_hand, people, rows_at


@pytest.fixture(autouse=True)
def by_hand() -> Iterator[None]:
    with mirrors_by_hand():
        yield


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    return objcat.connect(tmp_path)


@pytest.fixture
def quiet(lake: objcat.Lake) -> objcat.Table:
    """The first table of a log, which is written rarely."""
    table = lake.create_table("shop.quiet", SCHEMA, key=["id"], index=objcat.BucketIndex(1), shared_log="shop", properties=MIRRORS)
    table.upsert(people(1, 2, 3))
    table.maintenance.mirror()
    return table


@pytest.fixture
def busy(lake: objcat.Lake, quiet: objcat.Table) -> objcat.Table:
    return lake.create_table("shop.busy", SCHEMA, key=["id"], index=objcat.BucketIndex(1), shared_log="shop")


def where(table: objcat.Table) -> Path:
    return Path(table._context.fileio.url.removeprefix("file://"))


def iceberg_slots(table: objcat.Table) -> list[int]:
    return sorted(int(path.name[1:].partition(".")[0]) - 1 for path in where(table).glob("metadata/v*.metadata.json"))


def delta_slots(table: objcat.Table) -> list[int]:
    return sorted(int(path.name.partition(".")[0]) for path in where(table).glob("_delta_log/*.json"))


def puts(table: objcat.Table) -> int:
    sent = table._context.fileio.metrics.snapshot().requests
    return sum(number for kind, number in sent.items() if kind.startswith("put"))


def read(table: objcat.Table, form: str, slot: int) -> Rows:
    return READERS[form](where(table), slot)


def test_slots_of_other_tables_write_nothing_until_the_table_changes(quiet: objcat.Table, busy: objcat.Table) -> None:
    own = quiet.refresh().slot - 1
    for number in range(5):
        busy.upsert(people(number))
    slot = quiet.refresh().slot
    before = puts(quiet)
    reports = {report.format: report for report in quiet.maintenance.mirror()}
    assert puts(quiet) == before
    assert {(report.slot, report.lag, report.written) for report in reports.values()} == {(own, 0, 0)}
    assert slot - own == 6
    quiet.upsert(people(2, value=7))
    changed = quiet.refresh().slot
    reports = {report.format: report for report in quiet.maintenance.mirror()}
    # Delta's versions have no gaps, and version n is slot n: each slot between is a commit without files.
    assert {form: report.written for form, report in reports.items()} == {"iceberg": 1, "delta": changed - own}
    assert iceberg_slots(quiet) == [own, changed]
    assert delta_slots(quiet) == list(range(own, changed + 1))
    for at in (own, changed):
        assert read(quiet, "iceberg", at) == rows_at(quiet, at)
    for at in range(own, changed + 1):
        assert read(quiet, "delta", at) == rows_at(quiet, at)


def test_commit_times_are_those_of_the_slots(quiet: objcat.Table, busy: objcat.Table) -> None:
    from deltalake import DeltaTable
    from pyiceberg.table import StaticTable

    busy.upsert(people(1))
    quiet.upsert(people(2, value=7))
    slot = quiet.refresh().slot
    quiet.maintenance.mirror()
    log = quiet._context.timeline.log
    table = StaticTable.from_metadata(f"{where(quiet)}/metadata/v{slot + 1}.metadata.json")
    said = {one.snapshot_id - 1: one.timestamp_ms for one in table.metadata.snapshots}
    assert said == {at: log.read_known(at).committed_at_ms for at in said} and slot in said
    times = {entry["version"]: entry["timestamp"] for entry in DeltaTable(str(where(quiet))).history()}
    assert times == {at: log.read_known(at).committed_at_ms for at in delta_slots(quiet)} and slot in times


def test_nothing_lags_where_only_others_were_written(quiet: objcat.Table, busy: objcat.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objcat.inspection.mirror_checks.LAG_SLOTS_MAX", 2)
    for number in range(5):
        busy.upsert(people(number))
    assert 'objcat_mirror_lag_slots{table="shop.quiet",format="iceberg"} 0' in quiet.maintenance.metrics()
    assert not [finding for finding in examine(quiet._context.timeline).findings if "behind" in finding.says]
    quiet.upsert(people(1, value=2))
    behind = quiet.refresh().slot - min(iceberg_slots(quiet)[-1], delta_slots(quiet)[-1])
    assert f'objcat_mirror_lag_slots{{table="shop.quiet",format="delta"}} {behind}' in quiet.maintenance.metrics()


def test_a_process_that_knows_nothing_goes_on_after_many_slots_of_others(
    lake: objcat.Lake, quiet: objcat.Table, busy: objcat.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries after the newest checkpoint are all of others, so what lies below them is looked for once in a while."""
    monkeypatch.setattr("objcat.mirror.mirror.SKIPPED_SLOTS_MAX", 20)
    own = quiet.refresh().slot - 1
    for number in range(70):
        busy.set_properties({"note": str(number)})
    busy._context.timeline.publish(busy._context.view)
    cold = objcat.connect(lake.fileio.url).table("shop.quiet")
    reports = cold.maintenance.mirror()
    assert all(not report.lag for report in reports)
    assert own + 20 in iceberg_slots(quiet) and len(iceberg_slots(quiet)) < 7
    before = puts(cold)
    assert all(not report.written for report in cold.maintenance.mirror()) and puts(cold) == before
    cold.upsert(people(3, value=1))
    slot = cold.refresh().slot
    assert {report.slot for report in cold.maintenance.mirror()} == {slot}
    for form in READERS:
        assert read(quiet, form, slot) == rows_at(quiet, slot)


def test_cleaning_does_not_wait_for_a_mirror_that_lacks_nothing(quiet: objcat.Table, busy: objcat.Table) -> None:
    quiet.maintenance.compact()
    quiet.upsert(people(1, value=1))
    quiet.maintenance.compact()
    quiet.maintenance.mirror()
    own = quiet.refresh().slot
    for number in range(6):
        busy.upsert(people(number))
    cleaned = quiet.maintenance.clean(keep_slots=2)
    assert cleaned.bound > own
    # The newest mirrored slot is below the floor, but the table was the same at both, so the mirror goes on without beginning again.
    quiet.maintenance.mirror()
    quiet.upsert(people(2, value=9))
    slot = quiet.refresh().slot
    quiet.maintenance.mirror()
    for form in READERS:
        assert read(quiet, form, slot) == rows_at(quiet, slot)
    assert delta_slots(quiet) == list(range(1, slot + 1))
    assert not list(where(quiet).glob(f"_delta_log/{slot:020d}.checkpoint.parquet")), "it began again"


def test_a_restart_of_settings_follows_the_slot_before(quiet: objcat.Table, busy: objcat.Table) -> None:
    """The slot at which the table changed its settings is mirrored, so Delta's versions have no gap."""
    busy.upsert(people(1))
    quiet.maintenance.compact()
    quiet.set_properties({"mirror_mode": "read_optimized"})
    changed = quiet.refresh().slot
    quiet.upsert(people(1, value=5))
    quiet.maintenance.mirror()
    slot = quiet.refresh().slot
    assert delta_slots(quiet) == list(range(1, slot + 1)) and {changed, slot} <= set(iceberg_slots(quiet))
    expected = quiet.scan(mode="read_optimized").to_arrow().sort_by("id").to_pylist()
    for form in READERS:
        assert read(quiet, form, slot) == read(quiet, form, changed) == expected == people(1, 2, 3)
    assert read(quiet, "delta", changed - 1) == rows_at(quiet, changed - 1)

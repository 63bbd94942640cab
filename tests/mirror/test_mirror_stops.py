"""Processes that stop at any request, know what is no longer so, or change mirrors beside others. Everything in a mirror reads right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.testing.faults import Crash, Fault
from objcat.mirror.delta.state import VERSIONS_MIN
from objcat.mirror.model import MirrorNotRestarted
from tests.effort import few
from tests.mirror.conftest import tried
from tests.mirror.histories import (
    MIRRORS,
    READERS,
    check_caught_up,
    check_each,
    folder,
    make_table,
    mirrors_by_hand,
    objects_of_mirrors,
    people,
    rows_at,
    slots_of,
)
from tests.mirror.stages import Prepare, Run, Stage


@pytest.fixture(autouse=True)
def by_hand() -> Iterator[None]:
    with mirrors_by_hand():
        yield


@pytest.fixture
def lake(tmp_path: Path) -> objcat.Lake:
    return objcat.connect(tmp_path)


# ---- a mirror process that stops at each request -------------------------------------------------------------------


def begin(table: objcat.Table) -> None:
    table.upsert(people(*range(8)))


def after_masks(table: objcat.Table) -> None:
    begin(table)
    table.maintenance.mirror()
    table.upsert(people(1, 2, value=1))
    table.delete([{"id": 3}])


def after_compaction(table: objcat.Table) -> None:
    after_masks(table)
    table.maintenance.mirror()
    table.maintenance.compact()


def after_restore(table: objcat.Table) -> None:
    after_compaction(table)
    table.maintenance.mirror()
    table.restore(to=1)


def after_schema_change(table: objcat.Table) -> None:
    after_masks(table)
    table.maintenance.mirror()
    table.alter.rename_column("value", "worth")
    table.alter.add_column("more", pa.int32())
    table.upsert([{"id": 5, "name": "x", "worth": 1, "more": 7}])


def begins_late(table: objcat.Table) -> None:
    wanted = table.properties["mirrors"]
    table.set_properties({"mirrors": "none"})
    begin(table)
    table.upsert(people(4, 5, value=3))
    table.set_properties({"mirrors": wanted})


def before_erasure(table: objcat.Table) -> None:
    after_compaction(table)
    table.upsert(people(4, 5, value=3))
    table.maintenance.mirror()
    table.maintenance.compact()
    table.maintenance.clean(keep_slots=1)


def before_removal(table: objcat.Table) -> None:
    after_compaction(table)
    table.maintenance.mirror()
    table.set_properties({"mirrors": "none"})


def before_expiry(table: objcat.Table) -> None:
    after_restore(table)
    table.maintenance.mirror()
    # Delta's log can lose what came before a checkpoint, and nothing else.
    for value in range(VERSIONS_MIN):
        table.upsert(people(6, value=value))
        table.maintenance.mirror()
    table.maintenance.compact()
    table.maintenance.clean(keep_slots=1)
    table.maintenance.mirror()


def mirror(table: objcat.Table) -> object:
    return table.maintenance.mirror()


def start_over(table: objcat.Table) -> object:
    return table._context.mirrors_start_over()


def expire(table: objcat.Table) -> object:
    context = table._context
    forms = context.auto_maintenance.mirrors._following(context.timeline, context.id, context.name, context.manifests).mirrors
    return [form.expire(modified_before_ms=1 << 60) for form in forms.formats(context.view)]


def erase(table: objcat.Table) -> object:
    return table.erase([{"id": 3}], older_than_s=0)


CASES: dict[str, tuple[Prepare, Run]] = {
    "masked rows": (after_masks, mirror),
    "first slot": (begin, mirror),
    "compaction": (after_compaction, mirror),
    "restore": (after_restore, mirror),
    "schema change": (after_schema_change, mirror),
    "begins late": (begins_late, mirror),
    "start over": (before_erasure, start_over),
    "removal": (before_removal, mirror),
    "expiry": (before_expiry, expire),
    "erasure": (after_compaction, erase),
}
FORMS = {
    "iceberg 2": {"mirrors": "iceberg", "mirror_iceberg_version": "2"},
    "iceberg 3": {"mirrors": "iceberg", "mirror_iceberg_version": "3"},
    "delta": {"mirrors": "delta"},
}
LONG = 40
"""Requests that one fault hits in a row, so that retries end."""
STOPS = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
LOST = (Fault.AFTER, Fault.LATER)


@pytest.mark.parametrize("case", few(CASES, 2, integration=10))
def test_a_process_that_stops_at_some_requests(tmp_path: Path, case: str) -> None:
    for form in FORMS:
        assert strike_some(tmp_path / form.replace(" ", ""), case, form, Fault.CRASH_AFTER, step=17) >= 1


@pytest.mark.parametrize("case", few(CASES, 0, integration=5))
def test_answers_that_are_lost(tmp_path: Path, case: str) -> None:
    for form in FORMS:
        assert strike_some(tmp_path / form.replace(" ", ""), case, form, Fault.AFTER, step=29, length=LONG) >= 1


@pytest.mark.tier("all")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fault", STOPS)
def test_a_process_that_stops_at_every_request(tmp_path: Path, case: str, form: str, fault: Fault) -> None:
    assert strike_some(tmp_path, case, form, fault) > 2


@pytest.mark.tier("all")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("length", [1, LONG])
def test_answers_that_are_lost_at_every_request(tmp_path: Path, case: str, form: str, fault: Fault, length: int) -> None:
    # A slot of Delta is one put, if it needs no masks: only that has an answer that tells of an effect.
    assert strike_some(tmp_path, case, form, fault, length=length) >= 1


@pytest.mark.tier("all")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.TWICE, Fault.PARTIAL])
def test_other_faults_at_every_third_request(tmp_path: Path, case: str, form: str, fault: Fault) -> None:
    strike_some(tmp_path, case, form, fault, step=3, length=LONG)


def strike_some(path: Path, case: str, form: str, fault: Fault, *, step: int = 1, length: int = 1) -> int:
    """Strike each of the requests, or some, until there is no such request. Returns how many processes met the fault."""
    path.mkdir(exist_ok=True)
    stage = Stage(path, *CASES[case], FORMS[form])
    first = 1
    while stage.strike(fault, first, length):
        first += step
    counts = stage.counts
    late = f"; {counts['without a checkpoint']} reads of a Delta restart without its checkpoint ended in errors" if form == "delta" else ""
    lost = f", {length} in a row" if length > 1 else ""
    told = f"{counts['requests']} processes struck, every {step} requests{lost}; {counts['reads']} slots read, all equal{late}"
    tried.append(f"{case}, {form}, {fault.value}: {told}")
    return counts["requests"]


# ---- processes that know what is no longer so ----------------------------------------------------------------------


def test_a_mirror_that_was_removed_and_begins_again_beside_a_process_that_knew_it(lake: objcat.Lake, tmp_path: Path) -> None:
    table = make_table(lake)
    table.upsert(people(1, 2, 3))
    table.upsert(people(1, value=1))
    table.maintenance.mirror()
    other = objcat.connect(tmp_path).table("shop.people")
    other.set_properties({"mirrors": "none"})
    other.maintenance.mirror()
    assert not objects_of_mirrors(folder(table))
    other.set_properties(MIRRORS)
    table.upsert(people(2, value=5))
    check_caught_up(table)
    assert slots_of(folder(table)) == {"iceberg": [5], "delta": [5]}
    other.upsert(people(3, value=5))
    check_caught_up(other)
    check_caught_up(table)


def test_rows_of_another_mode_begin_a_mirror_again(lake: objcat.Lake) -> None:
    table = make_table(lake)
    table.upsert(people(1, 2, 3))
    table.maintenance.compact()
    table.upsert(people(2, value=2))
    table.maintenance.mirror()
    table.set_properties({"mirror_mode": "read_optimized"})
    table.upsert(people(3, value=3))
    table.maintenance.mirror()
    slot = table.refresh().slot
    expected = table.scan(mode="read_optimized").to_arrow().sort_by("id").to_pylist()
    assert expected == people(1, 2, 3)
    for read in READERS.values():
        assert read(folder(table), slot) == expected
    table.set_properties({"mirror_mode": "snapshot"})
    table.maintenance.compact()
    table.maintenance.mirror()
    for read in READERS.values():
        assert read(folder(table), table.refresh().slot) == rows_at(table, table.refresh().slot)


def test_a_restart_that_follows_a_version_reads_right_without_its_checkpoint(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers apply its commit to the version before it, whose files it names again."""
    table = make_table(lake, mirrors="delta")
    table.upsert(people(1, 2, 3))
    table.maintenance.compact()
    table.maintenance.mirror()
    table.upsert(people(2, value=2))
    table.maintenance.mirror()
    table.upsert(people(3, value=6))

    def stop(*_: object, **__: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("objcat.mirror.delta.mirror.write_checkpoint", stop)
        with pytest.raises(Crash):
            table._context.mirrors_start_over()
    assert check_each(table)["delta"][-1] == table.refresh().slot
    check_caught_up(objcat.connect(lake.fileio.url).table("shop.people"))


@pytest.mark.parametrize("at", ["before", "beside"])
def test_an_erasure_beside_a_process_that_mirrors_every_slot(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    table = make_table(lake)
    table.upsert([*people(*range(9)), {"id": 77, "name": "Quartz-Nightingale", "value": 7}])
    table.maintenance.mirror()
    table.upsert(people(3, value=2))
    table.maintenance.mirror()
    watcher = objcat.connect(lake.fileio.url).table("shop.people")
    real, rounds = type(table._context).mirrors_start_over, []

    def follow(_: object) -> object:
        rounds.append(watcher.maintenance.mirror())
        return real(table._context)

    def of_slots(self: Any, *arguments: Any, **named: Any) -> Any:
        done = submit(self, *arguments, **named)
        watcher.maintenance.mirror()
        return done

    monkeypatch.setattr(type(table._context), "mirrors_start_over", follow)
    if at == "beside":
        submit = type(table._context).after_service
        monkeypatch.setattr(type(table._context), "after_service", of_slots)
    certificate = table.erase([{"id": 77}])
    assert certificate.found == 0 and rounds
    held = [path for path in folder(table).rglob("*") if path.is_file() and b"Nightingale" in path.read_bytes()]
    assert not held
    check_caught_up(table)
    check_caught_up(watcher)


def test_a_slot_mirrored_upon_earlier_metadata_is_never_what_an_erasure_leaves(lake: objcat.Lake) -> None:
    """The newest slot is mirrored, and carries manifests of earlier ones: forgetting these would take them from under it."""
    table = make_table(lake)
    for number in range(3):
        table.upsert(people(number, value=number))
        table.maintenance.mirror()
    table.maintenance.compact()
    table.maintenance.mirror()
    assert table.maintenance.clean(keep_slots=1).bound == 4
    table.maintenance.mirror()
    with pytest.raises(MirrorNotRestarted):
        table._context.mirrors_start_over()
    check_caught_up(table)
    table.upsert(people(3))
    table._context.mirrors_start_over()
    assert slots_of(folder(table)) == {"iceberg": [6], "delta": [6]}
    check_caught_up(table)


def test_an_unexpected_error_ends_a_round_and_not_all_of_them(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(lake)
    table.maintenance.mirror()
    context = table._context
    mirrors = context.auto_maintenance.mirrors
    following = mirrors._following(context.timeline, context.id, context.name, context.manifests)

    def fail(*_: object) -> None:
        raise ValueError("what nobody thought of")

    with monkeypatch.context() as patch:
        patch.setattr("objcat.mirror.mirror.TableMirrors.catch_up", fail)
        assert following.ask()
        mirrors._quietly(context.timeline, following)
    assert following.ask()
    mirrors._quietly(context.timeline, following)
    check_caught_up(table)

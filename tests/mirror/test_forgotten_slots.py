"""A process mirrors a slot while an erasure runs, and puts it after the erasure has deleted everything of that slot.

The slot has bounds of the erased row. The process goes on, or dies as soon as the object that makes the slot visible is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.contract import OutcomeUnknown, PutOutcome
from fileio.errors import Unavailable
from fileio.registry import open_store
from fileio.store import FileIO
from fileio.testing.faults import Crash
from objcat.errors import NotErased
from objcat.mirror.delta.mirror import DeltaMirror
from objcat.mirror.forgotten_slots import FORGOTTEN, forget_slots, forgotten_before
from objcat.mirror.formats import folder_of
from objcat.mirror.iceberg.avro import decode_avro
from objcat.mirror.iceberg.mirror import IcebergMirror
from objcat.mirror.iceberg.pointers import HINT, Pointers
from objcat.table.erase import ErasureCertificate
from tests.effort import few
from tests.mirror.histories import check_caught_up, folder, make_table, mirrors_by_hand, objects_of_mirrors, people, slots_of

FORMS = {
    "iceberg": {"mirrors": "iceberg"},
    "delta": {"mirrors": "delta"},
    "iceberg 3": {"mirrors": "iceberg", "mirror_iceberg_version": "3"},
}
BEFORE: dict[str, tuple[type, str]] = {"iceberg": (IcebergMirror, "_prepare"), "delta": (DeltaMirror, "_put_vectors")}
"""What runs before anything of a slot is put."""
AFTER: dict[str, tuple[type, str]] = {"iceberg": (Pointers, "put_hint"), "delta": (DeltaMirror, "_settle")}
"""What runs after the put that makes a slot visible."""
MENDED: dict[str, Callable[[objcat.Table], object]] = {
    "maintenance": lambda table: table.maintenance.run(),
    "erasure": lambda table: table.erase([{"id": 77}]),
}
ERASED = {"id": 77, "name": "Quartz-Nightingale", "value": 7}


@pytest.fixture(autouse=True)
def by_hand() -> Iterator[None]:
    with mirrors_by_hand():
        yield


@pytest.fixture(params=few(FORMS, 2, integration=3))
def table(request: pytest.FixtureRequest, tmp_path: Path) -> objcat.Table:
    """Its newest slot, which is not mirrored, has a file with the row to erase."""
    made = make_table(objcat.connect(tmp_path / "lake"), **FORMS[request.param])
    made.upsert(people(*range(9)))
    made.maintenance.mirror()
    made.upsert(people(3, value=2))
    made.maintenance.mirror()
    made.upsert([ERASED])
    return made


@pytest.fixture
def other(table: objcat.Table, tmp_path: Path) -> objcat.Table:
    """The table in another process."""
    return objcat.connect(tmp_path / "lake").table("shop.people")


def holding(table: objcat.Table) -> list[str]:
    """The objects of the mirror that hold the erased value. Avro is packed."""
    said = {}
    for name in objects_of_mirrors(folder(table)):
        data = (folder(table) / name).read_bytes()
        said[name] = str(decode_avro(data)).encode() if name.endswith(".avro") else data
    return sorted(name for name, data in said.items() if b"Nightingale" in data)


def is_there(table: objcat.Table, slot: int) -> bool:
    return slot in slots_of(folder(table))[table.properties["mirrors"]]


def mirror_late(table: objcat.Table, other: objcat.Table, *, dies: bool) -> int:
    """Mirror the newest slot, and let another process erase the row just before something of that slot is put. Returns the slot."""
    slot, form = table.refresh().slot, table.properties["mirrors"]
    begun: list[bool] = []
    ended: list[ErasureCertificate] = []
    (before, first), (after, then) = BEFORE[form], AFTER[form]
    real_before, real_after = getattr(before, first), getattr(after, then)

    def erase_first(*arguments: Any, **named: Any) -> Any:
        if not begun:
            begun.append(True)
            ended.append(other.erase([{"id": 77}]))
        return real_before(*arguments, **named)

    def die_then(*arguments: Any, **named: Any) -> Any:
        if ended and dies:
            raise Crash
        return real_after(*arguments, **named)

    died = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(before, first, erase_first)
        patch.setattr(after, then, die_then)
        try:
            table.maintenance.mirror()
        except Crash:
            died = True
    assert died is dies
    assert ended[0].found == 0
    return slot


@pytest.mark.parametrize("mended", few(MENDED, 1, integration=2))
def test_what_a_process_put_that_died_goes_with_the_next(table: objcat.Table, other: objcat.Table, mended: str) -> None:
    slot = mirror_late(table, other, dies=True)
    assert is_there(other, slot) and holding(other)
    MENDED[mended](other)
    assert not is_there(other, slot) and not holding(other)
    check_caught_up(other)
    other.upsert(people(4, value=4))
    check_caught_up(other)


def test_a_process_that_goes_on_deletes_what_it_put(table: objcat.Table, other: objcat.Table) -> None:
    slot = mirror_late(table, other, dies=False)
    assert not is_there(other, slot) and not holding(other)
    check_caught_up(table)
    other.upsert(people(4, value=4))
    check_caught_up(other)


@pytest.mark.tier("integration")
def test_the_hint_of_a_mirror_that_began_again_is_there_before_anything_goes(
    table: objcat.Table, other: objcat.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that knows an earlier slot looks at the hint only. If the hint of the erasure was lost, it would go on from there."""
    table.maintenance.mirror()
    with monkeypatch.context() as patch:
        patch.setattr(Pointers, "put_hint", lambda *_: True)
        other.erase([{"id": 77}])
    if table.properties["mirrors"] == "iceberg":
        newest = slots_of(folder(table))["iceberg"][-1]
        assert (folder(table) / "metadata" / "version-hint.text").read_text() == str(newest + 1)
    check_caught_up(table)
    assert not holding(table)


def test_nothing_goes_before_the_hint_is_surely_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(objcat.connect(tmp_path), **FORMS["iceberg"])
    table.upsert(people(1))
    table.maintenance.mirror()
    context, real = table._context, FileIO.put

    def put(store: FileIO, key: str, *arguments: Any, **named: Any) -> PutOutcome:
        return OutcomeUnknown(Unavailable("away")) if key.endswith(HINT) else real(store, key, *arguments, **named)

    where = folder_of(context.timeline, context.id, context.name)
    (folder(table) / "metadata" / HINT).unlink()
    before = objects_of_mirrors(folder(table))
    mirror = IcebergMirror(where)
    with monkeypatch.context() as patch:
        patch.setattr(FileIO, "put", put)
        with pytest.raises(Unavailable, match=rf"whether .*{HINT} was put.*Nothing was deleted"):
            mirror.forget_before(0)
    assert set(before) <= set(objects_of_mirrors(folder(table)))
    mirror.forget_before(0)
    assert (folder(table) / "metadata" / HINT).exists()


def test_an_erasure_says_that_a_mirror_cannot_begin_again_and_goes_on_when_it_can(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("name", pa.string())])
    table = objcat.connect(tmp_path).create_table("t", schema, key=["id"], index=objcat.BucketIndex(4), properties=FORMS["iceberg"])
    table.upsert([{"id": at, "n": at, "name": f"name-of-{at}"} for at in range(20)])
    table.maintenance.compact()
    table.maintenance.mirror()
    table.alter.widen_column("n", pa.float64())
    with pytest.raises(NotErased, match=r"No reader of t finds the rows.*cannot begin again.*cluster.*Then erase again"):
        table.erase([{"id": 7}])
    assert table.scan(where="id = 7").count() == 0
    table.maintenance.cluster(["name"])
    assert table.erase([{"id": 7}]).found == 0


def test_the_greatest_slot_counts(tmp_path: Path) -> None:
    fileio = open_store(tmp_path.as_uri())
    assert forgotten_before(fileio, FORGOTTEN) == 0
    for slot, expected in ((7, 7), (3, 7), (12, 12)):
        forget_slots(fileio, FORGOTTEN, slot)
        assert forgotten_before(fileio, FORGOTTEN) == expected
    (tmp_path / FORGOTTEN).write_text("no number")
    assert forgotten_before(fileio, FORGOTTEN) == 0
    forget_slots(fileio, FORGOTTEN, 2)
    assert forgotten_before(fileio, FORGOTTEN) == 2

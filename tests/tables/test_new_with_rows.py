"""Tables that must be new get their name after their rows: whoever dies or fails before that leaves nothing that has the name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import objcat
from fileio.errors import FileIOError
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend
from fileio.write_outcomes import RetryPolicy
from objcat.engine import spooled_batch
from objcat.errors import CommitUnknown, NullKey, ObjcatError, TableExists
from objcat.inspection.doctor import examine_lake
from objcat.inspection.findings import Severity
from objcat.maintenance.auto import AutoMaintenance
from objcat.maintenance.auto_mirror import AutoMirror
from tests.effort import effort
from tests.services.world import At

REQUESTS_MAX = 400
ROWS = {0: "a", 1: "b", 2: "c"}
BATCH = pa.table({"id": [*ROWS], "value": [*ROWS.values()]})


def made(memory: MemoryBackend) -> objcat.Lake:
    """A lake with a table to select from, and one in the log `shop`."""
    lake = objcat.Lake(FileIO(memory, env=FakeEnv(1)))
    lake.write(BATCH, "source", key=["id"])
    lake.create_table("other", BATCH.schema, key=["id"], shared_log="shop").upsert(BATCH)
    return lake


def written(**settings: Any) -> Callable[[objcat.Lake], object]:
    return lambda lake: lake.write(BATCH, "city.made", key=["id"], if_exists="error", **settings)


def by_sql(lake: objcat.Lake) -> object:
    return lake.sql("CREATE TABLE city.made TBLPROPERTIES ('key' = 'id') AS SELECT id, value FROM source")


def derived(lake: objcat.Lake) -> object:
    return lake.create_derived("city.made", "SELECT id, value FROM source", key=["id"])


WAYS = {
    "write": written(),
    "write in the log of others": written(shared_log="shop"),
    "write in a new shared log": written(shared_log="bank"),
    "write with a mirror": written(properties={"mirrors": "iceberg"}),
    "create table as select": by_sql,
    "derived": derived,
}
every_way = pytest.mark.parametrize("create", WAYS.values(), ids=[*WAYS])


@contextlib.contextmanager
def dying() -> Iterator[None]:
    """Of what dies under DuckDB, which reads rows by our functions, the error is another one."""
    try:
        yield
    except Crash:
        return
    except Exception as error:
        if "crash before" not in str(error) and "crash after" not in str(error):
            raise


def another(memory: MemoryBackend, seed: int) -> objcat.Lake:
    return objcat.Lake(FileIO(memory, env=FakeEnv(seed)))


def rows(lake: objcat.Lake, name: str = "city.made") -> dict[int, str]:
    found = lake.table(name).scan().to_arrow().to_pylist()
    known = {row["id"]: row["value"] for row in found}
    assert len(known) == len(found), "a key is there twice"
    return known


def check_whole_or_absent(lake: objcat.Lake) -> bool:
    """Whether the table is there, with all its rows. What is about is what the doctor calls left over."""
    assert rows(lake, "source") == rows(lake, "other") == ROWS
    assert [one for report in examine_lake(lake.fileio, deep=True) for one in report.findings if one.severity is Severity.BROKEN] == []
    if "city.made" not in lake.tables():
        return False
    assert rows(lake) == ROWS
    return True


@every_way
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_who_dies_at_any_request_leaves_a_whole_table_or_none(create: Callable[[objcat.Lake], object], fault: Fault) -> None:
    step = effort(5, with_all=1)
    for at in range(1, REQUESTS_MAX, step):
        memory = MemoryBackend("killed")
        made(memory)
        script = At(at, fault)
        with dying():
            create(objcat.Lake(FileIO(FaultyBackend(memory, script), env=FakeEnv(2))))
        fresh = another(memory, 3)
        if not check_whole_or_absent(fresh):
            assert script.hit, at
            create(fresh)  # As whoever runs the job again.
        assert check_whole_or_absent(another(memory, 4)), at
        if not script.hit:
            assert at > 8
            return
    pytest.fail("it asks for too much")


@every_way
@pytest.mark.parametrize("fault", [Fault.AFTER, Fault.BEFORE, Fault.LATER])
def test_whose_requests_get_lost_has_a_whole_table_or_none(create: Callable[[objcat.Lake], object], fault: Fault) -> None:
    """Without retries. What it says is true: after an error there is no table, but after one of an unknown outcome."""
    for at in range(1, REQUESTS_MAX, effort(5, with_all=1)):
        memory = MemoryBackend("lost")
        made(memory)
        script = At(at, fault)
        faulty = FaultyBackend(memory, script)
        said: Exception | None = None
        try:
            create(objcat.Lake(FileIO(faulty, env=FakeEnv(2), policy=RetryPolicy(attempts_max=1))))
        except (ObjcatError, FileIOError) as error:
            said = error
        exists = check_whole_or_absent(another(memory, 3))
        assert exists or said is not None, at
        assert not exists or said is None or isinstance(said, CommitUnknown), (at, said)
        faulty.release()
        check_whole_or_absent(another(memory, 4))
        if not script.hit:
            return
    pytest.fail("it asks for too much")


@every_way
def test_of_two_the_second_is_told_and_leaves_nothing(create: Callable[[objcat.Lake], object], monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemoryBackend("two")
    made(memory)
    lake, rival = another(memory, 2), another(memory, 3)
    bind = lake._context.catalog.change

    def after_rival(*arguments: Any, **settings: Any) -> Any:
        if "city.made" not in rival.tables() and "binding" in getattr(arguments[0], "keywords", {}):
            rival.write(BATCH, "city.made", key=["id"])
        return bind(*arguments, **settings)

    monkeypatch.setattr(lake._context.catalog, "change", after_rival)
    with pytest.raises(TableExists, match=r"city\.made"):
        create(lake)
    fresh = another(memory, 4)
    assert check_whole_or_absent(fresh)
    assert [one for report in examine_lake(fresh.fileio, deep=True) for one in report.findings] == []
    assert fresh.dropped_tables() == []


@pytest.mark.parametrize("shared_log", [None, "shop", "bank"])
def test_rows_that_are_refused_late_leave_nothing(shared_log: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows on disk are not looked at before the table is created."""
    monkeypatch.setattr(spooled_batch, "SPOOL_BYTES_MAX", 0)
    lake = made(MemoryBackend("refused"))
    before = {key for key in lake.fileio.list_keys() if key.startswith("tables/")}
    unkeyed = pa.table({"id": pa.array([1, None], pa.int64()), "value": ["a", "b"]})
    stream = pa.RecordBatchReader.from_batches(unkeyed.schema, iter(unkeyed.to_batches()))
    with pytest.raises(NullKey):
        lake.write(stream, "city.made", key=["id"], if_exists="error", shared_log=shared_log)
    assert not check_whole_or_absent(lake)
    assert lake.dropped_tables() == []
    if shared_log is None:
        assert {key for key in lake.fileio.list_keys() if key.startswith("tables/")} == before
    WAYS["write"](lake)
    assert check_whole_or_absent(lake)


def test_services_and_mirrors_wait_for_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would work on a table that may never have one."""
    lake = made(MemoryBackend("mirrored"))
    begun: list[tuple[str, bool]] = []
    for kind in (AutoMaintenance, AutoMirror):
        monkeypatch.setattr(kind, "after", lambda *_, **__: begun.append((kind.__name__, "city.made" in lake.tables())))  # noqa: B023
    WAYS["write with a mirror"](lake)
    assert begun
    assert all(has_name for _, has_name in begun)

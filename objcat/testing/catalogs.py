"""The conformance suite of catalogs of names. Import everything, and define a fixture `subject`:

    from objcat.testing.catalogs import *
    from objcat.testing.catalogs import CatalogSubject

    @pytest.fixture
    def subject() -> CatalogSubject:
        return CatalogSubject("sql", options={"uri": "..."})

The catalog must be installed, since it is found by its entry point. `objcat.catalog.names_plugin` has the contract.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from fileio.env import SystemEnv, default_env
from objcat.catalog.names_plugin import CATALOG_OPTION, NameRecord, NamesPlugin, open_plugin
from objcat.errors import ObjcatError, TableExists
from objcat.lake.lake import Lake, connect

R = TypeVar("R")
CLIENTS = 6
INCREMENTS = 5
SEEDS = range(3)
STEPS = 40
NAMES = ("t", "T2", "city.trips", "city.north.trips", "City", "\u00fcber", "city.Z")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@dataclass(frozen=True, slots=True)
class CatalogSubject:
    """A catalog of names to test.

    Args:
        name: of its entry point.
        options: without the prefix `catalog.`.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)

    def connect_options(self) -> dict[str, str]:
        """The options of a lake with this catalog."""
        return {CATALOG_OPTION: self.name, **{f"{CATALOG_OPTION}.{key}": value for key, value in self.options.items()}}

    def open(self, lake_url: str) -> NamesPlugin:
        """Another client of the names of a lake."""
        return open_plugin(self.name, lake_url, self.options)

    def connect(self, url: str) -> Lake:
        """Another client of a lake with these names."""
        return connect(url, self.connect_options())


@pytest.fixture
def lake_url() -> str:
    """The URL of a lake that no other test uses."""
    return f"memory://{default_env().new_id()}"


def table_record(key: str, value: str = "{}") -> NameRecord:
    """A record of a table."""
    return NameRecord(kind="table", key=key, name=key.title(), url=f"memory://x/{key}", value=value)


def state_of(plugin: NamesPlugin) -> tuple[int, dict[tuple[str, str], NameRecord]]:
    """The newest version, and its records by kind and key."""
    found = plugin.read(-1)
    assert found is not None, "read(-1) must give the records: no version is -1"
    version, records = found
    by_place = {(record.kind, record.key): record for record in records}
    assert len(by_place) == len(records), "a kind and key came twice"
    return version, by_place


def race(act: Callable[[int], R]) -> list[R]:
    """The results of clients that start at once, each in a thread of its own."""
    gate = threading.Barrier(CLIENTS)

    def start(number: int) -> R:
        gate.wait(timeout=60)
        return act(number)

    return list(SystemEnv(parallelism=CLIENTS).map(start, range(CLIENTS)))


def test_a_new_lake_has_version_0_without_names(subject: CatalogSubject, lake_url: str) -> None:
    plugin = subject.open(lake_url)
    assert state_of(plugin) == (0, {})
    assert plugin.read(0) is None
    assert plugin.find("no-such-txn") is None


def test_a_commit_adds_replaces_and_removes(subject: CatalogSubject, lake_url: str) -> None:
    plugin, other = subject.open(lake_url), subject.open(lake_url)
    long = table_record("k" * 255, value="\u00fc\U0001f986'\"%;\\" * 5000)
    namespace = NameRecord(kind="namespace", key="\u65e5\u672c", name="\u65e5\u672c", url="", value="[1]")
    assert plugin.commit(0, "txn-1", [table_record("a"), table_record("b"), long, namespace], [])
    expected = {("table", "a"): table_record("a"), ("table", "b"): table_record("b"), ("table", long.key): long}
    assert state_of(other) == (1, {**expected, ("namespace", namespace.key): namespace})
    assert other.read(1) is None and other.read(0) is not None
    same_key = NameRecord(kind="dropped", key="a", name="a", url="", value="1")
    assert other.commit(1, "txn-2", [table_record("b", value="2"), same_key], [("table", "a"), ("table", long.key), ("table", "absent")])
    left = {("table", "b"): table_record("b", value="2"), ("dropped", "a"): same_key, ("namespace", namespace.key): namespace}
    assert state_of(plugin) == (2, left)


def test_a_commit_of_an_older_version_is_refused_and_changes_nothing(subject: CatalogSubject, lake_url: str) -> None:
    plugin = subject.open(lake_url)
    assert plugin.commit(0, "txn-1", [table_record("a")], [])
    before = state_of(plugin)
    assert not plugin.commit(0, "txn-2", [table_record("b")], [("table", "a")])
    assert state_of(plugin) == before
    assert plugin.find("txn-1") == 1 and plugin.find("txn-2") is None
    assert plugin.commit(1, "txn-3", [], [])
    assert plugin.find("txn-1") == 1 and plugin.find("txn-3") == 2


def test_lakes_are_apart(subject: CatalogSubject, lake_url: str) -> None:
    first, second = subject.open(lake_url), subject.open(f"{lake_url}/below")
    assert first.commit(0, "txn-1", [table_record("a")], [])
    assert state_of(second) == (0, {})
    assert second.commit(0, "txn-2", [table_record("a", value="2")], [])
    assert state_of(first) == (1, {("table", "a"): table_record("a")})
    assert first.find("txn-2") is None


def test_of_commits_at_once_one_wins(subject: CatalogSubject, lake_url: str) -> None:
    def client(number: int) -> bool:
        return subject.open(lake_url).commit(0, f"txn-{number}", [table_record("a", value=str(number))], [])

    won = [number for number, done in enumerate(race(client)) if done]
    assert len(won) == 1, f"{len(won)} commits of one version were confirmed"
    plugin = subject.open(lake_url)
    assert state_of(plugin) == (1, {("table", "a"): table_record("a", value=str(won[0]))})
    assert [plugin.find(f"txn-{number}") for number in range(CLIENTS)] == [1 if number == won[0] else None for number in range(CLIENTS)]


def test_no_change_is_lost_and_every_state_is_whole(subject: CatalogSubject, lake_url: str) -> None:
    """Each commit writes its number into three records; a reader never sees two numbers."""

    def client(number: int) -> int:
        plugin, done = subject.open(lake_url), 0
        while done < INCREMENTS:
            version, records = state_of(plugin)
            values = {record.value for record in records.values()}
            assert len(values) <= 1, f"version {version} has records of several versions: {values}"
            assert values in (set(), {str(version)}), f"version {version} has the records of another one: {values}"
            puts = [table_record(key, value=str(version + 1)) for key in "abc"]
            done += plugin.commit(version, f"txn-{number}-{done}", puts, [])
        return done

    total = sum(race(client))
    version, records = state_of(subject.open(lake_url))
    assert version == total == CLIENTS * INCREMENTS
    assert {record.value for record in records.values()} == {str(total)}


def test_of_tables_created_at_once_one_has_the_name(subject: CatalogSubject, lake_url: str) -> None:
    def client(_: int) -> str | None:
        try:
            return subject.connect(lake_url).create_table("city.trips", SCHEMA, key=["id"]).id
        except TableExists:
            return None

    made = [table for table in race(client) if table is not None]
    assert len(made) == 1, f"{len(made)} tables of one name were created"
    lake = subject.connect(lake_url)
    assert lake.tables() == ["city.trips"] and lake.table("city.trips").id == made[0]
    lake.table("city.trips").upsert([{"id": 1}])
    assert subject.connect(lake_url).table("city.trips").scan().count() == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lake_is_as_one_with_a_log_of_names(subject: CatalogSubject, lake_url: str, seed: int) -> None:
    """The same calls, drawn by a seed, have the same results and leave the same names. Two clients take turns."""
    rng = random.Random(seed)
    other_url = f"memory://{default_env().new_id()}"
    ours = [subject.connect(lake_url) for _ in range(2)]
    plain = [connect(other_url) for _ in range(2)]
    for step in range(STEPS):
        name, new_name, client = rng.choice(NAMES), rng.choice(NAMES), rng.randrange(2)
        call = rng.choice([_create, _create, _rename, _drop, _undrop, _namespace, _drop_namespace, _properties])
        said = [_outcome(call, lakes[client], name, new_name) for lakes in (ours, plain)]
        assert said[0] == said[1], f"step {step}, {call.__name__}({name!r}, {new_name!r}) ended in {said[0]} instead of {said[1]}"
        assert _seen(ours[1 - client]) == _seen(plain[1 - client]), f"after step {step}, {call.__name__}({name!r}, {new_name!r})"


def _create(lake: Lake, name: str, _: str) -> None:
    lake.create_table(name, SCHEMA, key=["id"]).upsert([{"id": 1}])


def _rename(lake: Lake, name: str, new_name: str) -> None:
    lake.rename_table(name, new_name)


def _drop(lake: Lake, name: str, _: str) -> None:
    lake.drop_table(name)


def _undrop(lake: Lake, name: str, new_name: str) -> None:
    lake.undrop_table(name, new_name=new_name)


def _namespace(lake: Lake, name: str, _: str) -> None:
    lake.namespaces.create(name, {"owner": name})


def _drop_namespace(lake: Lake, name: str, _: str) -> None:
    lake.namespaces.drop(name)


def _properties(lake: Lake, name: str, new_name: str) -> None:
    lake.namespaces.set_properties(name, {"seen": new_name}, unset=["owner"])


def _outcome(call: Callable[[Lake, str, str], None], lake: Lake, name: str, new_name: str) -> str:
    try:
        call(lake, name, new_name)
    except ObjcatError as error:
        return type(error).__name__
    return "done"


def _seen(lake: Lake) -> Any:
    return (
        {name: lake.table(name).scan().count() for name in lake.tables()},
        {name: lake.namespaces.properties(name) for name in lake.namespaces.list()},
        [dropped.name for dropped in lake.dropped_tables()],
    )


__all__ = [
    "CatalogSubject",
    "lake_url",
    "test_a_commit_adds_replaces_and_removes",
    "test_a_commit_of_an_older_version_is_refused_and_changes_nothing",
    "test_a_lake_is_as_one_with_a_log_of_names",
    "test_a_new_lake_has_version_0_without_names",
    "test_lakes_are_apart",
    "test_no_change_is_lost_and_every_state_is_whole",
    "test_of_commits_at_once_one_wins",
    "test_of_tables_created_at_once_one_has_the_name",
]

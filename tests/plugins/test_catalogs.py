"""Catalogs of names of other packages: the example, races of processes, lost answers, and what else a lake does with one."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pyarrow as pa
import pytest

import objcat
from devkit.paths import ROOT
from objcat.catalog.names_plugin import NameRecord
from objcat.cli import app
from objcat.errors import CommitUnknown, PluginFailed, PluginMissing, TableNotFound
from objcat.serve.app import create_app
from objcat.serve.settings import ServerSettings
from objcat.testing.catalogs import *  # noqa: F403 - the tests of the suite, here on a catalog in memory
from objcat.testing.catalogs import CatalogSubject
from objcat.timeline.rollback import CommittedAt, RolledBackAt
from tests.plugins.examples import python, run_tests
from tests.serve.http import AppClient
from tests.serve.mirrors import create
from tests.serve.serving import serving_command

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


class MemoryNames:
    """A catalog of names in memory, shared by all that open one lake. `fault` of the class is called around each commit."""

    lakes: ClassVar[dict[str, MemoryNames]] = {}
    fault: ClassVar[Callable[[str, MemoryNames], None] | None] = None

    def __new__(cls, lake_url: str, options: Mapping[str, str]) -> MemoryNames:  # noqa: PYI034 - one for each lake
        return cls.lakes.setdefault(lake_url, super().__new__(cls))

    def __init__(self, lake_url: str, options: Mapping[str, str]) -> None:
        if not hasattr(self, "txns"):
            self.txns: list[str] = []
            self.records: dict[tuple[str, str], NameRecord] = {}
            self.lock = threading.Lock()

    def read(self, known: int) -> tuple[int, Sequence[NameRecord]] | None:
        self._may_fail("read")
        with self.lock:
            return None if known == len(self.txns) else (len(self.txns), list(self.records.values()))

    def commit(self, version: int, txn: str, puts: Sequence[NameRecord], removes: Sequence[tuple[str, str]]) -> bool:
        self._may_fail("before")
        with self.lock:
            if version != len(self.txns):
                return False
            self.txns.append(txn)
            for place in removes:
                self.records.pop(place, None)
            self.records.update({(record.kind, record.key): record for record in puts})
        self._may_fail("after")
        return True

    def find(self, txn: str) -> int | None:
        self._may_fail("find")
        return self.txns.index(txn) + 1 if txn in self.txns else None

    def _may_fail(self, where: str) -> None:
        if MemoryNames.fault is not None:
            MemoryNames.fault(where, self)


class Faults:
    """Fails at some places, the first times."""

    def __init__(self, **times: int) -> None:
        self.left = times

    def __call__(self, where: str, _: MemoryNames) -> None:
        if self.left.get(where, 0):
            self.left[where] -= 1
            raise ConnectionError(f"lost {where}")


@pytest.fixture(autouse=True)
def subject(entry_points: list[EntryPoint]) -> Any:
    entry_points.append(EntryPoint("memory", f"{__name__}:MemoryNames", "objcat.catalogs"))
    yield CatalogSubject("memory")
    MemoryNames.fault = None
    MemoryNames.lakes.clear()


@pytest.fixture
def lake(subject: CatalogSubject, tmp_path: Path) -> objcat.Lake:
    return subject.connect(str(tmp_path / "lake"))


def test_the_example_passes_the_suite(sql_catalog: Path, tmp_path: Path) -> None:
    assert run_tests("objcat-sql-catalog", sql_catalog, cwd=tmp_path) > 10


CLAIM = """
import json, sys, objcat, pyarrow as pa
from objcat.errors import TableExists
lake = objcat.connect("lake", json.loads(sys.argv[1]))
schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
lake.tables()
print("ready", flush=True)
sys.stdin.readline()
won = []
for number in range(5):
    try:
        lake.create_table(f"t{number}", schema, key=["id"]).upsert([{"id": 1}])
        won.append(number)
    except TableExists:
        pass
print(json.dumps(won))
"""


def test_of_processes_that_create_one_name_one_wins_and_the_command_line_sees_it(sql_catalog: Path, tmp_path: Path) -> None:
    options = {"catalog": "sql", "catalog.uri": f"sqlite:///{tmp_path / 'names.db'}"}
    environment = {"PYTHONPATH": f"{sql_catalog}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", CLAIM, json.dumps(options)]
    processes = [
        subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    won = [number for process in processes for number in json.loads(process.communicate("go\n", timeout=120)[0])]
    assert sorted(won) == [0, 1, 2, 3, 4]
    # Tables of losers are gone: nothing is below the lake but five tables.
    assert len(list((tmp_path / "lake" / "tables").glob("*/log"))) == 5
    said = [f"--option={name}={value}" for name, value in options.items()]
    listed = python("-m", "objcat.cli", "ls", str(tmp_path / "lake"), *said, "--json", cwd=tmp_path, sites=[sql_catalog])
    assert [json.loads(line)["name"] for line in listed.stdout.splitlines()] == ["t0", "t1", "t2", "t3", "t4"], listed.stderr
    examined = python("-m", "objcat.cli", "doctor", str(tmp_path / "lake"), *said, cwd=tmp_path, sites=[sql_catalog])
    assert examined.returncode == 0 and "t4" in examined.stdout, examined.stdout + examined.stderr
    with serving_command(str(tmp_path / "lake"), *said, PYTHONPATH=f"{sql_catalog}:{ROOT}") as (url, _):
        (namespace,) = httpx.get(f"{url}/v1/namespaces").json()["namespaces"]
        found = httpx.get(f"{url}/v1/namespaces/{namespace[0]}/tables").json()["identifiers"]
        assert [table["name"] for table in found] == ["t0", "t1", "t2", "t3", "t4"]


FORMAT = """
import json, os, sys, objcat, objcat.spark
from pyspark.sql import SparkSession
os.environ["PYSPARK_PYTHON"] = sys.executable
spark = SparkSession.builder.master("local[2]").config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false").getOrCreate()
options, url = json.loads(sys.argv[1]), os.path.abspath("lake") + "/city.trips"
rows = spark.createDataFrame([(1, "a"), (2, "b")], "id long, name string")
for name in ("city.trips", "city.streamed"):
    rows.write.format("objcat").options(key="id", **options).mode("append").save(url.replace("city.trips", name))
rows.limit(1).selectExpr("id + 4 AS id", "name").write.format("objcat").options(**options).mode("append").save(url)
stream = spark.readStream.format("objcat").options(mode="incremental", **options).load(url).writeStream.format("objcat").options(**options)
stream = stream.option("checkpointLocation", os.path.abspath("checkpoint")).trigger(availableNow=True)
stream.start(url.replace("city.trips", "city.streamed")).awaitTermination()
found = [sorted(map(tuple, spark.read.format("objcat").options(**options).load(each).collect()))
         for each in (url, url.replace("city.trips", "city.streamed"))]
print(json.dumps({"rows": found, "named": objcat.connect("lake", options).tables(), "log": objcat.connect("lake").tables()}))
"""


def test_the_spark_format_finds_and_names_tables_by_the_catalog(sql_catalog: Path, tmp_path: Path) -> None:
    options = {"catalog": "sql", "catalog.uri": f"sqlite:///{tmp_path / 'names.db'}"}
    done = python("-c", FORMAT, json.dumps(options), cwd=tmp_path, sites=[sql_catalog])
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["rows"] == [[[1, "a"], [2, "b"], [5, "a"]]] * 2
    assert said["named"] == ["city.streamed", "city.trips"], "the names are in the catalog"
    assert said["log"] == [], "and nowhere else"


def test_a_lake_without_its_catalog_says_so(tmp_path: Path) -> None:
    with pytest.raises(PluginMissing, match=r"offers the catalog of names 'hive'.*Installed are 'memory'.*'objcat.catalogs'"):
        objcat.connect(tmp_path, {"catalog": "hive", "catalog.uri": "thrift://x"})


def test_commands_find_tables_by_the_catalog_of_a_profile(
    subject: CatalogSubject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    subject.connect(str(tmp_path / "lake")).create_table("city.trips", SCHEMA, key=["id"]).upsert([{"id": 1}])
    objcat.create_table_at(tmp_path / "alone", SCHEMA, key=["id"]).upsert([{"id": 1}, {"id": 2}])
    profiles = tmp_path / "objcat" / "profiles.toml"
    profiles.parent.mkdir()
    options = 'options = {"catalog" = "memory", "catalog.uri" = "with a password"}'
    profiles.write_text(f'[lake]\nurl = "{tmp_path}/lake"\n{options}\n[above]\nurl = "{tmp_path}"\n{options}\n')
    profiles.chmod(0o644)
    app(["--profile", "lake", "query", "SELECT count(*) AS n FROM city.trips", "--json"], standalone_mode=False)
    app(["--profile", "lake", "stats", "city.trips", "--json"], standalone_mode=False)
    # A table without a lake has no name in a catalog, and is found by its URL.
    app(["--profile", "above", "stats", "alone", "--json"], standalone_mode=False)
    said = capsys.readouterr()
    assert [json.loads(line).get("rows", 1) for line in said.out.splitlines()] == [1, 1, 2]
    assert "which has secrets" in said.err and "password" not in said.out + said.err


def test_a_server_shows_the_names_of_the_catalog(lake: objcat.Lake) -> None:
    create(lake, "city.trips")
    client = AppClient(create_app(lake.fileio, ServerSettings(cache_s=0), catalog=lake._context.catalog))
    shown = client.get("/v1/namespaces/city/tables").json()["identifiers"]
    assert shown == [{"namespace": ["city"], "name": "trips"}]
    assert client.get("/v1/namespaces/city/tables/trips").json()["metadata"]["current-snapshot-id"] == 1
    lake.rename_table("city.trips", "city.rides")
    assert client.get("/v1/namespaces/city/tables/trips").status_code == 404
    MemoryNames.fault = Faults(read=1)
    assert client.get("/v1/namespaces/city/tables/rides").status_code == 503
    assert client.get("/v1/namespaces/city/tables/rides").status_code == 200
    below = AppClient(create_app(lake.fileio, ServerSettings(cache_s=0)))
    assert below.get("/v1/namespaces").json()["namespaces"] == [], "names below the lake are others"


def test_an_answer_that_is_lost_after_the_commit_is_found(lake: objcat.Lake) -> None:
    MemoryNames.fault = Faults(after=1)
    lake.create_table("t", SCHEMA, key=["id"]).upsert([{"id": 1}])
    assert lake.tables() == ["t"] and lake.table("t").scan().count() == 1


def test_a_failure_before_the_commit_leaves_no_name_and_no_files(lake: objcat.Lake, tmp_path: Path) -> None:
    MemoryNames.fault = Faults(before=1)
    with pytest.raises(PluginFailed, match=r"failed with ConnectionError: lost before\. The names of .* are unchanged"):
        lake.create_table("t", SCHEMA, key=["id"])
    assert lake.tables() == [] and not list(tmp_path.rglob("*.json"))
    lake.create_table("t", SCHEMA, key=["id"])


@pytest.mark.parametrize("landed", [True, False])
def test_an_unknown_outcome_is_settled_for_ever(lake: objcat.Lake, landed: bool) -> None:
    MemoryNames.fault = Faults(find=1, **{"after" if landed else "before": 1})
    with pytest.raises(CommitUnknown, match=r"It is not known whether .* changed the names") as caught:
        lake.create_table("t", SCHEMA, key=["id"])
    (names,) = MemoryNames.lakes.values()
    version = len(names.txns)
    outcome = lake.resolve(caught.value.txn)
    assert isinstance(outcome, CommittedAt if landed else RolledBackAt)
    assert lake.tables() == (["t"] if landed else [])
    if not landed:
        # What is still under way comes too late: the version that it was planned from is taken.
        assert not names.commit(version, caught.value.txn, [], [])
    assert lake.resolve(caught.value.txn) == outcome or not landed
    assert lake.tables() == (["t"] if landed else [])


def test_a_catalog_that_is_away_changes_nothing(lake: objcat.Lake) -> None:
    lake.create_table("t", SCHEMA, key=["id"])
    MemoryNames.fault = Faults(read=2)
    with pytest.raises(PluginFailed, match="failed with ConnectionError: lost read"):
        lake.drop_table("t")
    with pytest.raises(PluginFailed, match="lost read"):
        lake.table("t")
    assert lake.tables() == ["t"]


def test_everything_else_of_a_lake_works(lake: objcat.Lake, subject: CatalogSubject, tmp_path: Path) -> None:
    for name in ("shop.orders", "shop.items"):
        lake.create_table(name, SCHEMA, key=["id"], shared_log="shop")
    with lake.transaction() as tx:
        tx["shop.orders"].upsert([{"id": 1, "v": "a"}])
        tx["shop.items"].upsert([{"id": 2, "v": "b"}])
    lake.sql("CREATE TABLE alone (id BIGINT NOT NULL, v STRING) USING objcat TBLPROPERTIES ('primaryKey' = 'id')")
    lake.sql("INSERT INTO alone SELECT * FROM shop.orders")
    lake.move_to_shared_log("alone", shared_log="shop")
    again = subject.connect(str(tmp_path / "lake"))
    assert again.tables() == ["alone", "shop.items", "shop.orders"]
    assert again.sql("SELECT count(*) AS n FROM alone JOIN shop.orders USING (id)").to_pylist() == [{"n": 1}]
    assert all(not step.failed for report in again.maintain() for step in report.steps)
    assert all(again.sql("CALL doctor()").column("healthy").to_pylist())
    again.drop_table("alone")
    with pytest.raises(TableNotFound, match="Restore the dropped one"):
        again.table("alone")
    assert again.undrop_table("alone").scan().count() == 1
    assert not (tmp_path / "lake" / "_catalog").exists()

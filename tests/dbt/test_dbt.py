"""dbt builds a shop of customers, orders and payments as objcat tables, and builds it again after changes. It says what it cannot build."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import objcat
from devkit.handle import ServerHandle
from devkit.paths import ROOT
from devkit.prepare import package_builder
from devkit.servers import ServerName
from tests.dbt.dbt_process import Answer, Dbt, environment

SHOP = Path(__file__).parent / "shop"
SPARK = {
    "spark.master": "local[2]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    # One that Spark takes only before it starts.
    "spark.sql.catalogImplementation": "in-memory",
}
HOSTILE = "O'Hara \\' \"?\" %s {{ x }} \u00e7 \u65e5"


class Shop:
    """A copy of the project, its lake, and dbt that builds it."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "shop"
        shutil.copytree(SHOP, self.project)
        self.lake = objcat.connect(folder / "lake")
        self.dbt = Dbt(self.project, folder / "lake", SPARK)
        self.answers: list[Answer] = []
        self.slots: dict[str, int] = {}

    def rows(self, name: str, **more: Any) -> list[dict[str, Any]]:
        """The rows of a table, read by objcat."""
        return self.lake.table(f"jaffle.{name}").scan(**more).to_arrow().to_pylist()

    def add(self, seed: str, *lines: str) -> None:
        """Add lines to a seed."""
        path = self.project / "seeds" / f"{seed}.csv"
        path.write_text(path.read_text() + "".join(f"{line}\n" for line in lines))

    def actions(self, name: str) -> list[str]:
        """What the commits of a table were."""
        return [entry.action for entry in self.lake.table(f"jaffle.{name}").inspect.history()]

    def expected(self, query: str) -> list[dict[str, Any]]:
        """What DuckDB makes of the seeds."""
        connection = duckdb.connect()
        for path in (self.project / "seeds").glob("*.csv"):
            connection.execute(f"CREATE VIEW {path.stem} AS SELECT * FROM read_csv('{path}', header=true)")
        return connection.sql(query).to_arrow_table().to_pylist()


ORDERS = """
SELECT o.id AS order_id, o.user_id AS customer_id, o.order_date, o.status,
       CAST(sum(CASE WHEN payment_method = 'coupon' THEN amount ELSE 0 END) / 100 AS DOUBLE) AS coupon_amount,
       CAST(sum(amount) / 100 AS DOUBLE) AS amount
FROM raw_orders o LEFT JOIN raw_payments p ON p.order_id = o.id GROUP BY ALL ORDER BY 1
"""
CUSTOMERS = """
SELECT c.id AS customer_id, c.first_name, min(o.order_date) AS first_order, count(o.id) AS number_of_orders
FROM raw_customers c LEFT JOIN raw_orders o ON o.user_id = c.id GROUP BY ALL ORDER BY 1
"""
DAYS = "SELECT order_date, status, count(*) AS orders FROM raw_orders GROUP BY ALL ORDER BY 1, 2"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The shop, built, changed and built again."""
    made = Shop(tmp_path_factory.mktemp("dbt"))
    made.add("raw_customers", '11,"' + HOSTILE.replace('"', '""') + '",', "12,,Nullo")
    with made.dbt:
        made.answers.append(made.dbt.run("build"))
        made.slots = {
            name: made.lake.table(f"jaffle.{name}").inspect.history()[-1].slot for name in ("orders", "customers", "order_states")
        }
        made.add("raw_orders", "31,1,2026-03-01,placed", "32,12,2026-03-02,shipped")
        made.add("raw_payments", "41,31,coupon,900", "42,32,coupon,100")
        seed = made.project / "seeds" / "raw_orders.csv"
        before = seed.read_text()
        seed.write_text("\n".join(line.replace("shipped", "returned") if line.startswith("6,") else line for line in before.split("\n")))
        assert seed.read_text() != before
        made.answers.append(made.dbt.run("build", "--vars", '{"with_amount": true}'))
        made.answers.append(made.dbt.run("docs", "generate"))
        yield made


def picked(rows: list[dict[str, Any]], like: list[dict[str, Any]], *by: str) -> list[dict[str, Any]]:
    """Rows with the columns of others, sorted. Decimals as floats."""
    names = list(like[0])
    found = [{name: float(row[name]) if name.endswith("amount") and row[name] is not None else row[name] for name in names} for row in rows]
    return sorted(found, key=lambda row: [str(row[name]).rjust(12) for name in by])


def test_each_build_succeeds(shop: Shop) -> None:
    for answer in shop.answers[:2]:
        assert answer.success, answer.text
        assert len(answer.results) == 18
        assert {status for status, _ in answer.results.values()} == {"success", "pass"}


def test_the_tables_have_the_rows_of_the_changed_seeds(shop: Shop) -> None:
    for name, query, by in (
        ("orders", ORDERS, ["order_id"]),
        ("customers", CUSTOMERS, ["customer_id"]),
        ("orders_by_day", DAYS, ["order_date", "status"]),
    ):
        expected = shop.expected(query)
        assert len(expected) > 10
        assert picked(shop.rows(name), expected, *by) == picked(expected, expected, *by), name


def test_text_of_a_seed_comes_as_it_is(shop: Shop) -> None:
    names = {row["id"]: (row["first_name"], row["last_name"]) for row in shop.rows("raw_customers")}
    assert names[11] == (HOSTILE, None)
    assert names[12] == (None, "Nullo")


def test_a_model_is_a_table_with_its_settings(shop: Shop) -> None:
    orders = shop.lake.table("jaffle.orders")
    assert orders.key == ["order_id"]
    assert "2" in repr(orders.index)
    days = shop.lake.table("jaffle.orders_by_day")
    assert days.key == ["order_date", "status"]
    assert "order_date" in repr(days.partitioning)


def test_a_build_of_a_model_is_one_commit(shop: Shop) -> None:
    """The table that a reader sees is whole at every slot: a table model is replaced, not dropped and made again."""
    for name in ("orders", "customers"):
        assert shop.lake.table(f"jaffle.{name}").inspect.history()[-1].slot == shop.slots[name] + 1, shop.actions(name)
    assert len(shop.rows("orders", as_of=shop.slots["orders"])) == 30
    assert len(shop.rows("orders")) == 32


def test_a_snapshot_keeps_what_was(shop: Shop) -> None:
    of_six = sorted((row["status"], row["dbt_valid_to"] is None) for row in shop.rows("order_states") if row["id"] == 6)
    assert of_six == [("returned", True), ("shipped", False)]
    assert len(shop.rows("order_states")) == 33


def test_an_appended_model_takes_a_new_column(shop: Shop) -> None:
    runs = sorted(shop.rows("runs"), key=lambda row: row["orders"])
    assert [(row["orders"], row["amount"] is None) for row in runs] == [(30, True), (32, False)]


def test_the_catalog_of_the_docs_has_the_columns(shop: Shop) -> None:
    assert shop.answers[2].success, shop.answers[2].text
    catalog = json.loads((shop.project / "target" / "catalog.json").read_text())
    columns = catalog["nodes"]["model.shop.customers"]["columns"]
    assert columns["number_of_orders"]["type"] == "bigint"
    assert list(columns)[:3] == ["customer_id", "first_name", "last_name"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{{ config(materialized='view') }} select 1 as one", "A lake has no views. Set materialized: table"),
        ("{{ config(location_root='/x') }} select 1 as one", "location_root has no meaning for a lake"),
        ("{{ config(materialized='incremental', incremental_strategy='delete+insert') }} select 1 as one", "Use one of append, merge"),
        ("{{ config(materialized='incremental', incremental_strategy='merge') }} select 1 as one", "merge needs unique_key"),
        ("{{ config(key='none') }} select 1 as one", "none"),
    ],
    ids=["a view", "a location", "an unknown strategy", "a merge without a key", "a key that is no column"],
)
def test_what_cannot_be_built_is_said(shop: Shop, text: str, says: str) -> None:
    model = shop.project / "models" / "refused.sql"
    model.write_text(text)
    try:
        answer = shop.dbt.run("run", "--select", "refused")
    finally:
        model.unlink()
    assert not answer.success
    assert says in answer.text
    assert "jaffle.refused" not in shop.lake.tables()


def test_a_table_with_other_columns_is_made_anew(shop: Shop) -> None:
    model = shop.project / "models" / "changing.sql"
    lengths: list[int] = []
    try:
        for text, row in (("1L as one", {"one": 1}), ("2L as one", {"one": 2}), ("'x' as one, 2 as two", {"one": "x", "two": 2})):
            model.write_text(f"{{{{ config(key='one') }}}} select {text}")
            assert shop.dbt.run("run", "--select", "changing").success
            assert shop.rows("changing") == [row]
            lengths.append(len(shop.actions("changing")))
    finally:
        model.unlink()
    assert lengths[1] == lengths[0] + 1
    assert lengths[2] == lengths[0]


def test_targets_of_one_process_have_their_own_lakes(shop: Shop) -> None:
    model = shop.project / "models" / "told.sql"
    lakes = {"dev": shop.lake, "other": objcat.connect(f"{shop.lake.fileio.url}-other")}
    try:
        for number, target in enumerate(("other", "dev", "other", "dev")):
            model.write_text(f"{{{{ config(key='one') }}}} select {number}L as one")
            answer = shop.dbt.run("run", "--select", "told", "--target", target)
            assert answer.success, answer.text
            assert lakes[target].table("jaffle.told").scan().to_arrow().to_pylist() == [{"one": number}]
    finally:
        model.unlink()
    assert lakes["other"].tables() == ["jaffle.told"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"secret_key": "not-the-secret"}, "Check options 'access_key', 'secret_key'"), ({"regoin": "x"}, "did you mean 'region'")],
    ids=["a secret", "an option"],
)
def test_a_target_that_cannot_be_read_is_one_error(
    servers: Callable[[ServerName], ServerHandle], tmp_path: Path, wrong: dict[str, str], says: str
) -> None:
    store = servers("versitygw").fresh_bucket()
    shutil.copytree(SHOP, tmp_path / "shop")
    with Dbt(tmp_path / "shop", f"{store.url}/lake", SPARK, {**store.options, **wrong}) as dbt:
        answer = dbt.run("build")
    assert not answer.success
    assert answer.text.count(says) == 1 and f"The lake {store.url}/lake cannot be used: " in answer.text, answer.text
    assert "Traceback" not in answer.text and "SparkContext" not in answer.text and "not-the-secret" not in answer.text


def test_a_cursor_gives_every_row_once() -> None:
    code = """
from dbt.adapters.objcat.connections import Cursor
class Frame:
    def collect(self): return [1, 2, 3, 4, 5]
    def toLocalIterator(self): return iter(self.collect())
class Spark:
    def sql(self, text): return Frame()
cursor = Cursor(Spark())
assert cursor.fetchall() == [] and cursor.fetchone() is None
cursor.execute("q;")
assert (cursor.fetchone(), cursor.fetchmany(2), cursor.fetchall(), cursor.fetchone()) == (1, [2, 3], [4, 5], None)
cursor.execute("q")
assert (cursor.fetchall(), cursor.fetchall()) == ([1, 2, 3, 4, 5], [])
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_wheel_has_the_adapter_and_its_macros(tmp_path: Path) -> None:
    source = shutil.copytree(ROOT / "dbt-objcat", tmp_path / "source")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(package_builder())}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = {name for name in files.namelist() if ".dist-info/" not in name and not name.endswith(".pyc")}
    assert names == {str(path.relative_to(source)) for path in (source / "dbt").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert "dbt/include/objcat/macros/materializations.sql" in names and "dbt/__init__.py" not in names


@pytest.mark.tier("all")
def test_everything_is_built_afresh(shop: Shop) -> None:
    answer = shop.dbt.run("build", "--full-refresh")
    assert answer.success, answer.text
    expected = shop.expected(ORDERS)
    assert picked(shop.rows("orders"), expected, "order_id") == picked(expected, expected, "order_id")
    assert shop.lake.table("jaffle.orders").inspect.history()[-1].slot < shop.slots["orders"] + 1

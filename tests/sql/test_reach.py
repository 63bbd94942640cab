"""A query reads the tables of its lake, and nothing else of the machine: not a file, a variable, a setting, the network, or Python."""

from __future__ import annotations

import gc
import os
import stat
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import objcat
from objcat.common.duckdb_sandbox import SHARED, SharedDuckdb, connect_duckdb
from objcat.errors import InvalidInput, InvalidPredicate, InvalidSql, ObjcatError
from objcat.predicate.sql_reach import CALLS
from objcat.sql.duckdb_runner import run_in_duckdb

SECRET = "hushHUSH0123"
FILES = (
    *("read_text('{file}')", "read_blob('{file}')", "read_csv('{file}')", "read_csv_auto('{file}')", "read_json('{file}')"),
    *("read_parquet('{file}')", "parquet_scan('{file}')", "parquet_metadata('{file}')", "sniff_csv('{file}')", "read_duckdb('{file}')"),
    *(
        "`glob`('{file}')",
        "`Read_Text`('{file}')",
        "main.read_text('{file}')",
        "a.b.c.d.read_text('{file}')",
        "`{file}`",
        "'{file}'",
        "text.`{file}`",
        "csv.`{file}`",
    ),
    *("query('FROM read_text(''{file}'')')", "query_table('duckdb_settings')", "identifier('text.`{file}`')", "table(read_text('{file}'))"),
)
HOST = (
    *(
        "duckdb_settings()",
        "duckdb_secrets()",
        "duckdb_extensions()",
        "duckdb_functions()",
        "duckdb_logs()",
        "which_secret('s3://x', 's3')",
    ),
    *("pragma_database_size()", "duckdb_settings", "information_schema.tables", "pg_catalog.pg_settings", "sqlite_master", "outside"),
    *("enable_logging()", "duckdb_temporary_files()", "python_arrow_scan(1)", "pandas_scan(1)"),
)
PLACES = {
    "from": "SELECT * FROM {source}",
    "join": "SELECT * FROM trips t JOIN {source} AS x ON true",
    "with": "WITH x AS (SELECT * FROM {source}) SELECT * FROM x",
    "subquery": "SELECT (SELECT count(*) FROM {source}) AS n",
    "exists": "SELECT id FROM trips WHERE EXISTS (SELECT 1 FROM {source})",
    "in": "SELECT id FROM trips WHERE id IN (SELECT 1 FROM {source})",
    "union": "SELECT city FROM trips UNION ALL SELECT 'x' FROM {source}",
    "lateral": "SELECT * FROM trips t, LATERAL (SELECT * FROM {source}) x",
    "insert": "INSERT INTO trips SELECT 9, 'x' FROM {source}",
    "create": "CREATE TABLE other AS SELECT * FROM {source}",
    "merge": "MERGE INTO trips t USING (SELECT 1 AS id FROM {source}) s ON t.id = s.id WHEN MATCHED THEN DELETE",
}
STATEMENTS = (
    *("COPY (SELECT 1) TO '{file}'", "COPY trips FROM '{file}'", "EXPORT DATABASE '{file}'", "IMPORT DATABASE '{file}'", "ATTACH '{file}'"),
    *("INSTALL httpfs", "LOAD httpfs", "LOAD '{file}'", "SET threads = 1", "RESET lock_configuration", "PRAGMA threads = 1", "USE main"),
    *("CREATE SECRET (TYPE s3)", "CREATE VIEW v AS SELECT 1", "CREATE MACRO m() AS 1", "CREATE FUNCTION f AS 'x' USING JAR '{file}'"),
    *(
        "ADD JAR '{file}'",
        "ADD FILE '{file}'",
        "EXECUTE IMMEDIATE 'SELECT 1'",
        "CACHE TABLE trips",
        "SELECT 1; SELECT 2",
        "DESCRIBE '{file}'",
    ),
    *(
        "CREATE TABLE x (id BIGINT) LOCATION '{file}'",
        "CREATE TABLE x USING csv OPTIONS (path '{file}')",
        "CHECKPOINT",
        "CALL enable_logging()",
    ),
    *("SHOW TABLES FROM '{file}'", "EXPLAIN SELECT 1", "SUMMARIZE trips", "SELECT TRANSFORM(id) USING 'cat {file}' FROM trips"),
)
CALLED = (
    *("current_setting('temp_directory')", "`current_setting`('home_directory')", "'home_directory'.current_setting()", "getenv('HUSH')"),
    *(
        "getvariable('x')",
        "write_log('x')",
        "reflect('java.lang.System', 'getenv', 'HUSH')",
        "builtin.reflect('java.lang.System', 'getenv')",
    ),
    *("java_method('java.lang.System', 'exit', 0)", "try_reflect('java.lang.System', 'getenv')", "${{env:HUSH}}", "$x", ":x", "@@x", "?"),
    *("system.builtin.reflect('java.lang.System', 'getenv')", "upper(lower(current_setting('TimeZone')))"),
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> objcat.Lake:
    lake = objcat.connect(tmp_path_factory.mktemp("lake"))
    lake.create_table("trips", pa.schema([("id", pa.int64()), ("city", pa.string())]), key=["id"]).upsert([{"id": 1, "city": "Rome"}])
    return lake


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "secret.csv"
    found.write_text(f"a,b\n{SECRET},2\n")
    return found


def refused(lake: objcat.Lake, text: str, told: type[Exception] = InvalidInput) -> None:
    before = sorted(Path(".").iterdir())
    with pytest.raises((told, ObjcatError)) as caught:
        lake.sql(text)
    assert SECRET not in repr(caught.value) and SECRET not in str(caught.value)
    assert sorted(Path(".").iterdir()) == before
    assert lake.sql("SELECT * FROM trips").to_pylist() == [{"id": 1, "city": "Rome"}] and lake.tables() == ["trips"]


@pytest.mark.parametrize("source", FILES)
def test_no_query_reads_a_file(lake: objcat.Lake, file: Path, source: str) -> None:
    refused(lake, PLACES["from"].format(source=source.format(file=file)))


@pytest.mark.parametrize("place", PLACES)
def test_no_query_reads_a_file_from_anywhere_in_it(lake: objcat.Lake, file: Path, place: str) -> None:
    refused(lake, PLACES[place].format(source=f"read_text('{file}')"))


@pytest.mark.parametrize("source", HOST)
def test_no_query_reads_what_the_engine_knows_of_its_host(lake: objcat.Lake, source: str) -> None:
    outside = pa.table({"x": [SECRET]})
    refused(lake, PLACES["from"].format(source=source))
    assert outside.num_rows == 1


@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_statement_leaves_the_lake(lake: objcat.Lake, file: Path, statement: str) -> None:
    refused(lake, statement.format(file=file))


@pytest.mark.parametrize("called", CALLED)
def test_no_expression_reaches_beyond_its_row(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch, called: str) -> None:
    monkeypatch.setenv("HUSH", SECRET)
    called = called.format()
    refused(lake, f"SELECT {called} AS x", InvalidSql)
    refused(lake, f"SELECT id FROM trips WHERE city = {called}")
    refused(lake, f"UPDATE trips SET city = {called}")
    refused(lake, f"DELETE FROM trips WHERE city = {called}")
    with pytest.raises(InvalidPredicate):
        lake.table("trips").update({"city": called})
    with pytest.raises(InvalidPredicate):
        lake.table("trips").scan(where=f"city = {called}")


def test_no_name_of_a_query_stands_before_a_table(lake: objcat.Lake) -> None:
    refused(lake, "WITH _objcat_0 AS (SELECT 9 AS id) SELECT * FROM trips", InvalidSql)
    assert lake.sql("SELECT '`_objcat_0`' AS a FROM trips").to_pylist() == [{"a": "`_objcat_0`"}]


def test_text_with_a_variable_of_spark_in_it_is_text(lake: objcat.Lake) -> None:
    assert lake.sql("SELECT '${env:HOME}' AS x").to_pylist() == [{"x": "${env:HOME}"}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM range(2)", 2),
        ("SELECT x FROM trips LATERAL VIEW explode(array(1, 2)) y AS x", 2),
        ("SELECT * FROM explode(array(1, 2, 3))", 3),
        ("WITH read_text AS (SELECT 1 AS a) SELECT * FROM read_text", 1),
        ("SELECT * FROM trips a, trips b", 1),
        ("SELECT * FROM VALUES (1), (2) AS t(a)", 2),
    ],
)
def test_rows_that_are_made_of_values_are_there(lake: objcat.Lake, text: str, expected: int) -> None:
    assert lake.sql(text).num_rows == expected


def test_the_engine_is_closed_by_itself_too(file: Path) -> None:
    """What a check of the text overlooks meets an engine that cannot do it."""
    outside = pa.table({"x": [1]})
    connection = connect_duckdb(needed_by="a test needs")
    connection.register("inside", outside)
    assert connection.sql("SELECT * FROM inside").fetchall() == [(1,)]
    refusals = (
        *(
            f"SELECT * FROM read_text('{file}')",
            f"SELECT * FROM '{file}'",
            f"SELECT * FROM glob('{file}')",
            f"SELECT * FROM sniff_csv('{file}')",
        ),
        *("SELECT * FROM read_text('/proc/self/environ')", "SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')", "SELECT * FROM outside"),
        *(f"COPY (SELECT 1) TO '{file}.out'", f"ATTACH '{file}.db'", f"EXPORT DATABASE '{file}.d'", "INSTALL httpfs", "LOAD httpfs"),
        *(
            "SET enable_external_access = true",
            "SET threads = 1",
            "RESET lock_configuration",
            "PRAGMA threads = 1",
            "SELECT getenv('HOME')",
        ),
        *("CREATE PERSISTENT SECRET s (TYPE s3)", "SET lock_configuration = false", "SET python_enable_replacements = true"),
        *("SET temp_directory = '/tmp'", f"SET allowed_paths = ['{file}']", f"LOAD '{file}'", "CALL enable_logging()"),
        *("CALL import_files('{file}', 'x')", "CALL sql('SELECT 1')", "CALL scan(table => 'trips')"),
    )
    for refusal in refusals:
        with pytest.raises(duckdb.Error):
            connection.sql(refusal).fetchall()
    assert sorted(file.parent.iterdir()) == [file]


def test_every_function_of_the_engine_that_is_more_than_its_arguments_was_judged() -> None:
    """A new version of DuckDB may bring more of them: look at each, and refuse it in `predicate/sql_reach` or add it here."""
    judged = {
        *("current_connection_id", "current_query", "current_query_id", "current_transaction_id", "txid_current", "currval", "nextval"),
        *("setval", "error", "gen_random_uuid", "uuid", "uuidv4", "uuidv7", "random", "setseed", "sleep_ms", "stats", "vector_type"),
        *("current_database", "current_date", "current_schema", "current_schemas", "in_search_path"),
        *("get_current_time", "get_current_timestamp", "now", "today", "transaction_timestamp"),
    }
    connection = connect_duckdb(needed_by="a test needs")
    text = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT' OR has_side_effects"
    found = {name for (name,) in connection.sql(text).fetchall()}
    assert found - judged - CALLS == set()
    assert {"current_setting", "getvariable", "write_log"} <= found & CALLS


def test_what_does_not_fit_into_memory_waits_where_nobody_else_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    connection = connect_duckdb(needed_by="a test needs", settings={"memory_limit": "100MB", "threads": "1"})
    text = "SELECT i, (i * 7919)::VARCHAR AS b FROM range(3000000) t(i) ORDER BY hash(i)"
    reader = connection.sql(text).to_arrow_reader(1000)
    reader.read_next_batch()
    (private,) = tmp_path.iterdir()
    assert stat.S_IMODE(os.stat(private).st_mode) == 0o700
    assert sum(path.stat().st_size for path in private.rglob("*.tmp")) > 10_000_000
    del reader
    connection.close()
    del connection
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_queries_share_a_database_and_see_nothing_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TZ", "America/New_York")
    shared = SharedDuckdb()
    first, second = (shared.connect(needed_by="a test needs") for _ in range(2))
    (private,) = tmp_path.iterdir()
    first.register("rows", pa.table({"a": [1]}))
    first.execute("SET VARIABLE told = 1")
    with pytest.raises(duckdb.CatalogException):
        second.sql("SELECT * FROM rows")
    assert second.sql("SELECT getvariable('told'), current_setting('TimeZone')").fetchall() == [(None, "UTC")]
    with pytest.raises(duckdb.InvalidInputException, match="locked"):
        second.execute("SET threads = 1")
    shared.forget()
    assert first.sql("SELECT * FROM rows").fetchall() == [(1,)] and private.exists(), "a query goes on in the database that it began in"
    third = shared.connect(needed_by="a test needs")
    assert len(list(tmp_path.iterdir())) == 2
    shared.forget()
    del first, second, third
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_queries_of_many_threads_have_their_own_answers(lake: objcat.Lake) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda number: lake.sql(f"SELECT count(*) + {number} AS n FROM trips").to_pylist(), range(40)))
    least = lake.table("trips").scan().count()
    assert answers == [[{"n": least + number}] for number in range(40)]


def test_a_forked_process_asks_too(lake: objcat.Lake) -> None:
    before = lake.sql("SELECT count(*) AS n FROM trips").to_pylist()
    child = os.fork()
    if not child:
        # pytest must not go on in the child.
        os._exit(0 if lake.sql("SELECT count(*) AS n FROM trips").to_pylist() == before else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert lake.sql("SELECT count(*) AS n FROM trips").to_pylist() == before


def test_an_error_that_ends_a_database_does_not_meet_the_next_query(lake: objcat.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(SHARED, "forget", lambda: told.append("forgotten"))

    def fail() -> None:
        raise duckdb.FatalException("FATAL Error: the database has been invalidated")

    with pytest.raises(InvalidSql, match="invalidated"):
        run_in_duckdb(fail, [], what="the query", then="Correct it.")
    with pytest.raises(InvalidSql):
        lake.sql("SELECT no_such_function(1) FROM trips")
    assert told == ["forgotten"]


def test_without_a_place_for_it_everything_fits_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    assert connect_duckdb(needed_by="a test needs").sql("SELECT 1").fetchall() == [(1,)]


def test_no_module_makes_a_connection_by_itself() -> None:
    root = Path(objcat.__file__).parent
    makers = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "duckdb.connect(" in path.read_text().replace("Give duckdb.connect(", "")
    ]
    assert makers == ["common/duckdb_sandbox.py"]

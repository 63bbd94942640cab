"""dbt as a side of `./dev bench derived`: its models are tables of a lake of objcat, or of Delta Lake by dbt-spark.

`python -m benchmarks.peers.derived_dbt FOLDER SETTINGS`. dbt runs in this process, and its session of Spark stays, so that a run takes
neither the start of Python nor that of Java.

The author of an incremental model says which rows are new. Here each trip has the number of the change that brought it, so he knows them
exactly. For a join he also deletes the rows that no longer fit the filter. The group that a changed row left is in no table any more, so
incremental aggregates forget it; the model with `table` computes them as a whole.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.derived_worker import serve
from benchmarks.peers.configuration import DELTA_SESSION, spark_session
from benchmarks.works import BUCKETS

NEWEST = "BENCH_SINCE"
"""The variable with the number of the last change that a model has seen. A variable of dbt would have it read all files again."""
_SINCE = "{{ env_var('" + NEWEST + "') }}"
_IF_LATER, _END = "{% if is_incremental() %}", "{% endif %}"


def merge_model(query: str, key: list[str]) -> str:
    """An incremental model with `merge`, of a query whose first table is `trips t`."""
    head, grouped, tail = query.partition(" GROUP BY ")
    also = "AND" if " WHERE " in head else "WHERE"
    if grouped:
        names = ", ".join(key)
        new = f"({', '.join(f't.{name}' for name in key)}) IN (SELECT {names} FROM {_sources('trips')} WHERE batch > {_SINCE})"
        hook = ""
    else:
        new = f"t.batch > {_SINCE}"
        gone = f"SELECT id FROM {_sources('trips')} WHERE batch > {_SINCE} AND km <= 0"
        hook = f', post_hook="MERGE INTO {{{{ this }}}} t USING ({gone}) s ON t.id = s.id WHEN MATCHED THEN DELETE"'
    config = f"{{{{ config(materialized='incremental', incremental_strategy='merge', unique_key={key}{hook}) }}}}"
    return f"{config}\n{_named(head)} {_IF_LATER}{also} {new}{_END}{grouped}{tail}\n"


def table_model(query: str, key: list[str]) -> str:
    """A model whose run computes the whole query."""
    return f"{{{{ config(materialized='table', unique_key={key}) }}}}\n{_named(query)}\n"


def _sources(name: str) -> str:
    return f"{{{{ var('sources') }}}}{name}"


def _named(query: str) -> str:
    """The query over the sources, wherever they are."""
    for name in ("trips", "drivers", "cities"):
        query = query.replace(f" {name} ", f" {_sources(name)} ")
    return query


class DbtSide:
    """A project of dbt. settings: `kind` is objcat or delta; `queries`, by name a text and its key; `url` of the lake; `jars`, `memory`."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        self._is_delta = settings["kind"] == "delta"
        session = dict(spark_session(folder, cores=settings["cores"], memory=settings["memory"]))
        if self._is_delta:
            session |= {**DELTA_SESSION, "spark.jars": ",".join(settings["jars"])}
            session["spark.databricks.delta.properties.defaults.enableDeletionVectors"] = "true"
            profile = {"type": "spark", "method": "session", "host": "none", "schema": "made", "threads": 1}
        else:
            profile = {"type": "objcat", "url": settings["url"], "schema": "made", "threads": 1, "spark": session}
        self._write_project(profile, settings["queries"])
        if self._is_delta:
            self._spark = _started(session)

    def _write_project(self, profile: Mapping[str, Any], queries: Mapping[str, tuple[str, list[str]]]) -> None:
        models = self._folder / "models"
        models.mkdir(parents=True)
        for name, (query, key) in queries.items():
            (models / f"{name}_merge.sql").write_text(merge_model(query, key))
            (models / f"{name}_table.sql").write_text(table_model(query, key))
        project: dict[str, Any] = {"name": "bench", "version": "1.0.0", "profile": "bench", "model-paths": ["models"]}
        project["vars"] = {"sources": "default." if self._is_delta else "lake."}
        project["flags"] = {"send_anonymous_usage_stats": False}
        if self._is_delta:
            project["models"] = {"bench": {"+file_format": "delta"}}
        (self._folder / "dbt_project.yml").write_text(json.dumps(project))
        (self._folder / "profiles.yml").write_text(json.dumps({"bench": {"target": "dev", "outputs": {"dev": profile}}}))

    def load(self, sources: Mapping[str, str]) -> None:
        """Make the sources from Parquet files, in the order of their keys. Those of a lake are there already."""
        if self._is_delta:
            for name, path in sources.items():
                frame = self._spark.read.parquet(path).repartitionByRange(BUCKETS, "id").sortWithinPartitions("id")
                frame.write.format("delta").saveAsTable(f"default.{name}")

    def change(self, path: str) -> None:
        """Upsert trips, from a Parquet file. Those of a lake have changed already."""
        if self._is_delta:
            self._spark.read.parquet(path).createOrReplaceTempView("batch")
            matched = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            self._spark.sql(f"MERGE INTO default.trips t USING batch s ON t.id = s.id {matched}").collect()

    def run(self, model: str, since: int) -> float:
        """The seconds of a run of a model. since: the number of the last change that it has seen."""
        os.environ[NEWEST] = str(since)
        runner: Any = importlib.import_module("dbt.cli.main").dbtRunner()
        folder = str(self._folder)
        command = ["run", "--quiet", "--select", model, "--project-dir", folder, "--profiles-dir", folder]
        began = time.perf_counter()
        ended = runner.invoke(command)
        seconds = time.perf_counter() - began
        if not ended.success:
            said = [str(one.message) for one in getattr(ended.result, "results", []) or []]
            raise RuntimeError(f"dbt failed: {said or ended.exception}")
        return seconds

    def rows(self, model: str, path: str) -> str:
        """Write the rows of a model of Delta to a folder of Parquet files. Those of a lake are read from there."""
        self._spark.table(f"made.{model}").write.mode("overwrite").parquet(path)
        return path

    def about(self) -> dict[str, str]:
        """Versions."""
        version: Any = importlib.import_module("dbt.version")
        return {"dbt": version.__version__, "pyspark": importlib.import_module("pyspark").__version__}


def _started(settings: Mapping[str, str]) -> Any:
    """The session, which dbt-spark finds in this process."""
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.sql("CREATE DATABASE IF NOT EXISTS made")
    return spark


def main() -> None:
    """Serve requests until the pipe closes."""
    side = DbtSide(Path(sys.argv[1]), json.loads(sys.argv[2]))
    serve({name: getattr(side, name) for name in ("load", "change", "run", "rows", "about")})


if __name__ == "__main__":
    main()

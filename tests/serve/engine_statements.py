"""Statements for an engine that reads the catalog, as a process in the engine's own environment. It knows nothing of objcat.

`python engine_statements.py ENGINE FOLDER < request`: the request is a JSON object of `settings` (text to text), `begin` (statements whose
failure ends the process) and `statements`. Prints a JSON array with `{"rows": ...}` or `{"error": ...}` for each statement.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

Run = Callable[[str], list[Any]]


def duckdb_engine(_folder: str, _settings: Mapping[str, str]) -> Run:
    from tests.engines.readers.read_duckdb import _connect

    connection = _connect()
    return lambda statement: connection.execute(statement).fetchall()


def spark_engine(folder: str, settings: Mapping[str, str]) -> Run:
    from pyspark.sql import SparkSession

    own = {
        "spark.jars": os.environ["OBJCAT_JARS"],
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": folder,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in {**own, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return lambda statement: [tuple(row) for row in session.sql(statement).collect()]


def trino_engine(folder: str, settings: Mapping[str, str]) -> Run:
    from pathlib import Path

    import trino

    from tests.engines.readers.read_trino import start_server

    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    port = start_server(Path(folder, "server"), {"lake": text})
    connection = trino.dbapi.connect(host="127.0.0.1", port=port, user="reader", timezone="UTC")

    def run(statement: str) -> list[Any]:
        cursor = connection.cursor()
        cursor.execute(statement)
        return cursor.fetchall()

    return run


ENGINES = {"duckdb": duckdb_engine, "spark": spark_engine, "trino": trino_engine}


def main(engine: str, folder: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    run = ENGINES[engine](folder, request["settings"])
    for statement in request["begin"]:
        run(statement)
    found: list[dict[str, Any]] = []
    for statement in request["statements"]:
        try:
            found.append({"rows": [list(row) for row in run(statement)]})
        except Exception as error:  # noqa: BLE001 - a test compares what engines say
            found.append({"error": f"{type(error).__name__}: {error}"})
    json.dump(found, answers, default=str)
    answers.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

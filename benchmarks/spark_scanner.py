"""Writes a table by Iceberg's own code, and times scans of it and of a mirrored table in turns.

Runs in the environment of Spark, see `benchmarks.mirror_spark`: `python -m benchmarks.spark_scanner REQUEST`. It knows nothing of objcat.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

SIDES = ("mirror", "own table")
OWN = "local.db.own"


def main() -> None:
    """Do what the file of the command line asks for, and print the samples as the last line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.loads(Path(sys.argv[1]).read_text())
    session = _session(request["folder"])
    own_files = _write_own(session, request)
    places = {SIDES[0]: request["mirror"], SIDES[1]: f"{request['folder']}/iceberg/db/own"}
    for number, place in enumerate(places.values()):
        session.read.format("iceberg").load(place).createOrReplaceTempView(f"t{number}")
    jvm: Any = session._jvm
    process = int(jvm.java.lang.ProcessHandle.current().pid())
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in request["queries"]}
    for turn in range(request["warm_ups"] + request["rounds"]):
        for name, (count, sql) in request["queries"].items():
            pair: dict[str, Any] = {}
            for number in (0, 1) if turn % 2 else (1, 0):
                pair[SIDES[number]] = _sample(session, process, sql.format(t=f"t{number}"), count)
            if turn >= request["warm_ups"]:
                found[name].append(pair)
    print(json.dumps({"pairs": found, "own_files": own_files}, default=str), file=answers, flush=True)


def _sample(session: SparkSession, process: int, sql: str, count: int) -> dict[str, Any]:
    """Seconds, CPU seconds and the answer of a query that runs so many times."""
    began_s, began_cpu_s = time.perf_counter(), _cpu_s(process)
    answers = [session.sql(sql).collect() for _ in range(count)]
    return {
        "seconds": (time.perf_counter() - began_s) / count,
        "CPU seconds": (_cpu_s(process) - began_cpu_s) / count,
        "answer": str(answers[0]),
    }


def _cpu_s(process: int) -> float:
    """CPU of all threads of a process, with those of its compiler and of its garbage collection."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _write_own(session: SparkSession, request: Mapping[str, Any]) -> list[str]:
    """A table of the rows of some Parquet files: each becomes a file of this one, in the same order. Returns its files."""
    frames = [session.read.parquet(file).select(*request["columns"]) for file in request["files"]]
    whole: DataFrame = reduce(DataFrame.union, frames)
    kinds = ", ".join(f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' not null'}" for field in whole.schema)
    properties = {
        "format-version": "2",
        "write.parquet.compression-codec": request["codec"],
        "write.parquet.compression-level": str(request["level"]),
        "write.distribution-mode": "none",
        "write.target-file-size-bytes": str(1 << 32),
    }
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    session.sql(f"create table {OWN} ({kinds}) using iceberg partitioned by ({request['partitions']}) tblproperties ({listed})")
    # Spark sorts by partition otherwise, and each file has one anyway.
    whole.writeTo(OWN).option("fanout-enabled", "true").option("use-table-distribution-and-ordering", "false").append()
    return [row[0].removeprefix("file:") for row in session.sql(f"select file_path from {OWN}.files").collect()]


def _session(folder: str) -> SparkSession:
    settings = {
        "spark.jars": os.environ["OBJCAT_JARS"],
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": folder,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # A file of the table that is written is read as one piece, so that its rows stay in order.
        "spark.sql.files.maxPartitionBytes": str(1 << 32),
        "spark.sql.files.openCostInBytes": str(1 << 32),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.local.type": "hadoop",
        "spark.sql.catalog.local.warehouse": f"file://{folder}/iceberg",
    }
    builder = SparkSession.builder.master("local[2]").appName("scans")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


if __name__ == "__main__":
    main()

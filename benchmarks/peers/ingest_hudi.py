"""Spark's Structured Streaming into Hudi as a side of `./dev bench ingest`: Debezium's records of PostgreSQL, from a topic of Kafka.

It does to a record what Hudi's `PostgresDebeziumSource` does, with the columns of the same names and the same payload class. One Spark
session stays, so that its Java is warm when it counts. Each `sync` is a query that ends once it has all that is new, in one commit.
`python -m benchmarks.peers.ingest_hudi FOLDER BROKER TOPIC SCHEMA_URL SETTINGS` answers JSON lines.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from benchmarks.peers.configuration import HUDI_SESSION, spark_session
from benchmarks.works import CODEC

PAYLOAD = "org.apache.hudi.common.model.debezium.PostgresDebeziumAvroPayload"
ORDERING = "_event_lsn"
HEADER_BYTES = 5
"""Of a registry's record: a zero byte and the id of a schema."""
_FLATTENED: Mapping[str, str] = {
    "op": "_change_operation_type",
    "ts_ms": "_upstream_event_processed_ts_ms",
    "source.name": "db_shard_source_partition",
    "source.schema": "_event_schema",
    "source.ts_ms": "_event_origin_ts_ms",
    "source.txId": "_event_tx_id",
    "source.lsn": ORDERING,
    "source.xmin": "_event_xmin",
}
"""What of a record is kept beside the row, and under which names."""
_DIGEST = (
    "count(*)",
    "sum(id)",
    "sum(cast(customer as bigint))",
    "sum(id % 1009 * cast(total * 100 as bigint))",
    "sum(length(comment) * (id % 1013))",
    "sum(length(status) + version % 17)",
    "sum(ordered_at div 1000000 % 100003 * (id % 11))",
)
"""The numbers of `BenchSource.digest`. Debezium's times are microseconds."""


class StreamingSide:
    """A Spark session that brings a topic into a table.

    Args:
        folder: for the table and the query's checkpoint.
        broker: where the topic is.
        topic: its name.
        schema_url: where the registry has the newest schema of its values.
        settings: `memory` of Spark's driver, its `cores`, `buckets` of the table's index, and `jars`: Hudi's bundle, and
            Spark's modules for Kafka and Avro.
    """

    def __init__(self, folder: Path, broker: str, topic: str, schema_url: str, settings: Mapping[str, str]) -> None:
        cores = int(settings["cores"])
        session = {
            **spark_session(folder, cores=cores, memory=settings["memory"]),
            **HUDI_SESSION,
            "spark.jars": settings["jars"],
            "spark.sql.shuffle.partitions": str(cores),
        }
        builder: Any = SparkSession.builder
        for name, value in session.items():
            builder = builder.config(name, value)
        self._spark: SparkSession = builder.getOrCreate()
        self._spark.sparkContext.setLogLevel("WARN")
        self._table, self._checkpoint = str(folder / "lake" / "orders"), str(folder / "checkpoint")
        self._schema_url = schema_url
        self._kafka = {"kafka.bootstrap.servers": broker, "subscribe": topic, "startingOffsets": "earliest"}
        self._options = hudi_options(cores=cores, buckets=int(settings["buckets"]))

    def sync(self) -> Mapping[str, Any]:
        """Take what is new. Says how long it took."""
        began_s = time.perf_counter()
        with urllib.request.urlopen(self._schema_url, timeout=60) as answer:
            schema = json.loads(answer.read())["schema"]
        records = self._spark.readStream.format("kafka").options(**self._kafka).load()
        writer = flattened(records, schema).writeStream.format("hudi").options(**self._options).outputMode("append")
        query = writer.option("checkpointLocation", self._checkpoint).trigger(availableNow=True).start(self._table)
        query.awaitTermination()
        return {"seconds": time.perf_counter() - began_s, "rows": sum(one["numInputRows"] for one in query.recentProgress)}

    def digest(self) -> Mapping[str, Any]:
        """The numbers of the table's rows."""
        (row,) = self._spark.read.format("hudi").load(self._table).selectExpr(*_DIGEST).collect()
        return {"digest": [int(value or 0) for value in row]}


def flattened(records: DataFrame, schema: str) -> DataFrame:
    """The rows of Debezium's records, each with what is kept beside it: of a deleted row what it was, else what it became."""
    body = F.expr(f"substring(value, {HEADER_BYTES + 1})")
    event = records.where("value is not null").select(from_avro(body, schema).alias("event"))
    columns: list[Column] = [F.col(f"event.{name}").alias(kept) for name, kept in _FLATTENED.items()]
    row = F.when(F.col("event.op") == "d", F.col("event.before")).otherwise(F.col("event.after"))
    return event.select(*columns, row.alias("row")).select(*_FLATTENED.values(), "row.*")


def hudi_options(*, cores: int, buckets: int) -> Mapping[str, str]:
    """The options of the sink. What is not here is Hudi's default."""
    return {
        "hoodie.table.name": "orders",
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "",
        "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
        "hoodie.datasource.write.precombine.field": ORDERING,
        "hoodie.datasource.write.payload.class": PAYLOAD,
        "hoodie.index.type": "BUCKET",
        "hoodie.bucket.index.num.buckets": str(buckets),
        "hoodie.upsert.shuffle.parallelism": str(cores),
        "hoodie.parquet.compression.codec": CODEC,
        "hoodie.compact.inline": "false",
        "hoodie.datasource.compaction.async.enable": "false",
    }


def main() -> None:
    """Serve requests until the pipe closes. Standard output is the pipe, so all other output goes to stderr."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    folder, broker, topic, schema_url, settings = sys.argv[1:]
    side = StreamingSide(Path(folder), broker, topic, schema_url, json.loads(settings))
    answers: Mapping[str, Callable[[], Mapping[str, Any]]] = {"sync": side.sync, "digest": side.digest}
    for line in sys.stdin:
        try:
            said: Mapping[str, Any] = {"ok": True, **answers[line.strip()]()}
        except Exception as error:  # noqa: BLE001 - Java raises here, and the caller must know the error
            traceback.print_exc()
            said = {"ok": False, "error": f"{type(error).__name__}: {str(error).strip()[:2000]}"}
        pipe.write(json.dumps(said) + "\n")
        pipe.flush()


if __name__ == "__main__":
    main()

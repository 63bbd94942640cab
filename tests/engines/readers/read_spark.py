"""Spark with the jars of Iceberg and of Delta in one session."""

from __future__ import annotations

import os
from collections.abc import Callable
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tests.engines.readers.serve import Request


def start(folder: str) -> Callable[[Request], pa.Table]:
    session = spark_session(folder)
    catalogs: dict[str, str] = {}

    def in_catalog(request: Request) -> str:
        """The table by its name in the catalog, which is made known to the session once."""
        if request.catalog not in catalogs:
            catalogs[request.catalog] = name = f"c{len(catalogs)}"
            session.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
            for setting, value in {"type": "rest", "uri": request.catalog, "cache-enabled": "false"}.items():
                session.conf.set(f"spark.sql.catalog.{name}.{setting}", value)
        state = "" if request.snapshot_id is None else f" version as of {request.snapshot_id}"
        return f"{catalogs[request.catalog]}.`default`.t{state}"

    def read(request: Request) -> pa.Table:
        if request.way == "write":
            assert request.sql is not None
            for statement in request.sql.split(";"):
                session.sql(statement)
            return pa.table({})
        if request.catalog:
            return session.sql(request.query(in_catalog(request), "`")).toArrow()
        if request.way == "delete_equal":
            assert request.sql is not None
            _delete_equal(session, request.prefix, *request.sql.split(" = "))
            return pa.table({})
        reader = session.read.format(request.format)
        if request.format == "delta":
            place = request.prefix
            state = request.version
        else:
            place = request.metadata if request.way == "pinned" else request.prefix
            state = request.snapshot_id
        if state is not None:
            reader = reader.option("versionAsOf", str(state))
        frame = reader.load(place)
        if request.sql is None:
            return frame.toArrow()
        frame.createOrReplaceTempView("t")
        return session.sql(request.query("t", "`")).toArrow()

    return read


def _delete_equal(session: SparkSession, table: str, column: str, value: str) -> None:
    """Delete rows of an Iceberg table by an equality delete, as Flink does. Spark reads such deletes, and writes none itself."""
    jvm = session._jvm
    assert jvm is not None and session.sparkContext._gateway is not None
    iceberg = jvm.org.apache.iceberg
    found = iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, table)
    field_id = found.schema().findField(column).fieldId()
    ids = session.sparkContext._gateway.new_array(jvm.int, 1)
    ids[0] = field_id
    place = f"{found.location()}/data/equality-deletes.parquet"
    field = pa.field(column, pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(field_id)})
    path = urlsplit(place).path
    pq.write_table(pa.table([[int(value)]], schema=pa.schema([field])), path)
    deletes = iceberg.FileMetadata.deleteFileBuilder(found.spec()).ofEqualityDeletes(ids).withPath(place)
    deletes = deletes.withFileSizeInBytes(os.path.getsize(path)).withRecordCount(1).withFormat(iceberg.FileFormat.PARQUET).build()
    found.newRowDelta().addDeletes(deletes).commit()


def spark_session(folder: str) -> SparkSession:
    settings = {
        "spark.jars": os.environ["OBJCAT_JARS"],
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1500m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.local.type": "hadoop",
        "spark.sql.catalog.local.warehouse": f"file://{folder}/iceberg",
    }
    builder = SparkSession.builder.master("local[1]").appName("reader")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session

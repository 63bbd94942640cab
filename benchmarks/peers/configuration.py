"""How each side is configured, as data, for the sides and for `benchmarks/results/configuration.md`. Needs Python only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.works import BUCKETS, CODEC, CODEC_LEVEL, Layout

Settings = Mapping[str, str]


def spark_session(directory: Path, *, cores: int, memory: str) -> Settings:
    """The settings of every side on Spark."""
    return {
        "spark.master": f"local[{cores}]",
        "spark.app.name": "bench",
        "spark.driver.memory": memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(BUCKETS),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.compression.codec": CODEC,
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "spark"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory}",
    }


def s3a(*, endpoint: str, region: str, access_key: str, secret_key: str) -> Settings:
    """The settings of every side on Spark whose tables are on an S3 server."""
    settings = {
        "endpoint": endpoint,
        "endpoint.region": region,
        "access.key": access_key,
        "secret.key": secret_key,
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        # As from Hadoop 3.4 on: older ones delete what stands for a directory above each file that they write.
        "directory.marker.retention": "keep",
    }
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}


HUDI_SESSION: Settings = {
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
}
_HUDI_INDEXES: Mapping[str, Settings] = {
    "bloom": {"hoodie.index.type": "BLOOM", "hoodie.bulkinsert.sort.mode": "GLOBAL_SORT"},
    "record": {"hoodie.index.type": "RECORD_INDEX", "hoodie.metadata.record.index.enable": "true"},
}


def hudi_table(layout: Layout) -> Settings:
    """The options of every write."""
    options = {
        "hoodie.datasource.write.table.type": layout.kind.upper(),
        "hoodie.datasource.write.partitionpath.field": "",
        "hoodie.metadata.enable": "true",
        "hoodie.parquet.compression.codec": CODEC,
        "hoodie.compact.inline": "false",
        "hoodie.datasource.compaction.async.enable": "false",
        "hoodie.upsert.shuffle.parallelism": str(BUCKETS),
        "hoodie.delete.shuffle.parallelism": str(BUCKETS),
        "hoodie.bulkinsert.shuffle.parallelism": str(BUCKETS),
    }
    if layout.keyed:
        options |= {
            "hoodie.datasource.write.recordkey.field": ",".join(layout.key),
            "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
            "hoodie.write.record.merge.mode": "EVENT_TIME_ORDERING" if layout.ordering else "COMMIT_TIME_ORDERING",
        }
    if layout.keyed and layout.index == "bucket":
        options |= {
            "hoodie.index.type": "BUCKET",
            "hoodie.bucket.index.num.buckets": str(BUCKETS),
            "hoodie.bucket.index.hash.field": ",".join(layout.bucket_columns),
        }
    if layout.ordering:
        options["hoodie.datasource.write.precombine.field"] = layout.ordering
    if layout.changes:
        options |= {"hoodie.table.cdc.enabled": "true", "hoodie.table.cdc.supplemental.logging.mode": "DATA_BEFORE_AFTER"}
    return options | dict(_HUDI_INDEXES.get(layout.index, {}))


def iceberg_session(warehouse: str) -> Settings:
    """The settings of the session."""
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.bench": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.bench.type": "hadoop",
        "spark.sql.catalog.bench.warehouse": warehouse,
        # A join of two tables with the same buckets without a shuffle of either.
        "spark.sql.sources.v2.bucketing.enabled": "true",
        "spark.sql.sources.v2.bucketing.pushPartValues.enabled": "true",
        "spark.sql.iceberg.planning.preserve-data-grouping": "true",
        "spark.sql.requireAllClusterKeysForCoPartition": "false",
    }


def iceberg_table(layout: Layout) -> Settings:
    # A changelog is refused for tables with deletion vectors.
    """The properties of a table."""
    mode = "copy-on-write" if layout.changes else layout.kind.replace("_", "-")
    return {
        "format-version": "3",
        **{f"write.{operation}.mode": mode for operation in ("merge", "update", "delete")},
        "write.parquet.compression-codec": CODEC,
        "write.parquet.compression-level": str(CODEC_LEVEL),
    }


DELTA_SESSION: Settings = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A vacuum that keeps the newest version only.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}


def delta_table(layout: Layout) -> Settings:
    """The properties of a table."""
    return {
        "delta.enableDeletionVectors": str(layout.kind == "merge_on_read").lower(),
        "delta.enableChangeDataFeed": str(layout.changes).lower(),
    }


def deltalake_table(layout: Layout) -> Settings:
    """The properties of a table."""
    return {"delta.enableChangeDataFeed": "true"} if layout.changes else {}


PYICEBERG_TABLE: Settings = {"write.parquet.compression-codec": CODEC, "write.parquet.compression-level": str(CODEC_LEVEL)}

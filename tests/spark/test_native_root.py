"""When Spark may read the files itself, and under which name."""

from __future__ import annotations

from pyspark.sql import SparkSession

from fileio.store import StoreDescription
from objcat.spark.native.relation import NativeRoot, native_root


def test_local_files_are_native_and_a_scheme_without_its_connector_is_not(spark: SparkSession) -> None:
    assert native_root(spark, StoreDescription("file:///lake/t")) == NativeRoot("file:///lake/t")
    assert native_root(spark, StoreDescription("s3://bucket/t")) is None
    assert native_root(spark, StoreDescription("az://container/t", {"account": "a"})) is None
    assert native_root(spark, StoreDescription("memory://m")) is None


def test_a_scheme_with_its_connector_is_native_under_hadoops_name(spark: SparkSession) -> None:
    present = "org.apache.hadoop.fs.RawLocalFileSystem"  # any class that is a FileSystem: only its presence is asked
    conf = spark._jsc.hadoopConfiguration()
    try:
        for name in ("s3a", "gs", "abfss"):
            conf.set(f"fs.{name}.impl", present)
        assert native_root(spark, StoreDescription("s3://bucket/lake/t")) == NativeRoot("s3a://bucket/lake/t")
        assert native_root(spark, StoreDescription("gs://bucket/t")) == NativeRoot("gs://bucket/t")
        of_lake = StoreDescription("s3://bucket/lake").child("tables/t", outer="_lake")
        assert native_root(spark, of_lake) == NativeRoot("s3a://bucket/lake/tables/t", "s3a://bucket/lake")
        named = StoreDescription("az://container/lake/t", {"account": "acc"})
        assert native_root(spark, named) == NativeRoot("abfss://container@acc.dfs.core.windows.net/lake/t")
        assert native_root(spark, StoreDescription("az://container/t")) is None
    finally:
        for name in ("s3a", "gs", "abfss"):
            conf.unset(f"fs.{name}.impl")


def test_without_a_jvm_handle_nothing_is_native() -> None:
    assert native_root(object(), StoreDescription("file:///lake/t")) is None  # type: ignore[arg-type]

"""Reads of `format("objcat")` as native plans, in sessions that ask for it: filters and columns reach the files, and no Python worker runs.

Spark tells a Python data source nothing about columns. It tells it about filters where a setting says so, but then reuses what was planned
with one filter for every other query of the frame, which would miss rows. So a rule of the optimizer, `ObjcatFormat.java`, replaces such a
scan by the result of `to_spark` for the same table and slot.
"""

from __future__ import annotations

import json
import pickle
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from fileio.errors import FileIOError
from fileio.store import StoreDescription
from objcat.common.validation import session
from objcat.errors import InvalidInput, ObjcatError
from objcat.spark.native.janino import compiled
from objcat.spark.native.relation import native_root
from objcat.spark.versions import needs_python_sources

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource


class SparkReadable(Protocol):
    """Something that Spark can read by a native plan: a scan."""

    def to_spark(self, spark: Any) -> Any:
        """See `Scan.to_spark`."""


class ReadsScan(ABC):
    """A reader of Spark's data source whose rows are those of a scan."""

    @property
    @abstractmethod
    def store(self) -> StoreDescription:
        """The store of the table."""

    @abstractmethod
    def planned(self) -> SparkReadable:
        """The scan, with the columns that Spark knows, in their order. Raises as the read would."""


def native_format(spark: SparkSession) -> None:
    """Make a session read `format("objcat")` natively from now on.

        objcat.spark.native_format(spark)
        spark.read.format("objcat").load("s3://lake/shop.orders").where("id = 7").select("city")

    Filters and columns reach the files, as with `scan().to_spark(spark)`, and joins on the key of a bucketed table move no rows. It applies
    to reads of a snapshot, of frames made before and after, and to temporary views `USING objcat`. Python workers still do: reads of
    changes and streams, commands (`INSERT ... SELECT`), a store without a connector in the session (see `objcat.spark.configure`), and a
    user's schema whose types are not the table's. Call it once for each session; more calls do no harm.

    Args:
        spark: the session.

    Raises:
        InvalidInput: the session was stopped, or is of Spark Connect.
        SparkTooOld: the format needs Spark 4.
    """
    needs_python_sources()
    session(spark)
    if not hasattr(spark, "_jvm"):
        raise InvalidInput("This session is of Spark Connect, whose plans are made by the server. Use scan().to_spark(spark).")
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    compiled(spark, "ObjcatFormat", "Rules").install(spark._jsparkSession, _Plans(spark))


class _Plans:
    """Answers which plan makes the rows of a data source; None where Python workers have to."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def apply(self, pickled: Any, schema: str) -> Any:
        """The plan of a reader. `pickled`: by a planning worker of Spark on this machine. Never raises: the reading worker reports
        errors."""
        try:
            source: DataSource = pickle.loads(bytes(pickled))  # noqa: S301 - Spark's own worker wrote it
            reader = source.reader(StructType.fromJson(json.loads(schema)))
            if not isinstance(reader, ReadsScan):
                return None
            return _Rows(self._spark, reader.planned()) if native_root(self._spark, reader.store) is not None else None
        except (ObjcatError, FileIOError):
            return None

    class Java:
        """The Java interface."""

        implements = ("java.util.function.BiFunction",)


class _Rows:
    """The rows of one scan, as often as a query needs them."""

    def __init__(self, spark: SparkSession, scan: SparkReadable) -> None:
        self._spark = spark
        self._scan = scan

    def get(self) -> Any:
        """A new frame of the JVM, so that no two share a column. Never raises: None when it cannot be made."""
        try:
            return self._scan.to_spark(self._spark)._jdf
        except (ObjcatError, FileIOError):
            return None

    class Java:
        """The Java interface."""

        implements = ("java.util.function.Supplier",)

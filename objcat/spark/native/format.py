"""Reads of `format("objcat")` as native plans, in sessions that were told to: filters and columns reach the files, and no worker runs.

Spark tells a data source in Python nothing of columns. Of filters it tells, where a setting says so, but it then keeps what was planned
with a filter for every other query of the frame, which would miss rows. So a rule of the optimizer, `ObjcatFormat.java`, puts what
`to_spark` makes of the same table and slot in the place of such a scan.
"""

from __future__ import annotations

import json
import pickle
from abc import ABC, abstractmethod
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from fileio.errors import FileIOError
from fileio.store import StoreDescription
from objcat.common.validation import session
from objcat.errors import InvalidInput, ObjcatError
from objcat.spark.native.janino import compiled
from objcat.spark.native.relation import native_root


class SparkReadable(Protocol):
    """What Spark can read by a plan of its own: a scan."""

    def to_spark(self, spark: Any) -> Any:
        """See `Scan.to_spark`."""


class ReadsScan(ABC):
    """A reader of Spark's data source whose rows are those of a scan."""

    @property
    @abstractmethod
    def store(self) -> StoreDescription:
        """Where the table is."""

    @abstractmethod
    def planned(self) -> SparkReadable:
        """The scan, of the columns that Spark knows, in their order. Raises as the read would."""


def native_format(spark: SparkSession) -> None:
    """Have a session read `format("objcat")` natively from now on:

        objcat.spark.native_format(spark)
        spark.read.format("objcat").load("s3://lake/shop.orders").where("id = 7").select("city")

    Filters and columns reach the files, as they do through `scan().to_spark(spark)`, and joins on the key of a bucketed table move no rows.
    It holds for reads of a snapshot, of frames made before and after, and for temporary views `USING objcat`. What stays with Python
    workers: reads of changes and streams, commands (`INSERT ... SELECT`), a store that the session has no connector for (see
    `objcat.spark.configure`), and a schema of the user's own whose types are not the table's. Once for each session, whatever its number
    of calls. Raises InvalidInput for a session that was stopped, and for Spark Connect.
    """
    session(spark)
    if not hasattr(spark, "_jvm"):
        raise InvalidInput("this session is of Spark Connect, whose plans are made by the server: use scan().to_spark(spark)")
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    compiled(spark, "ObjcatFormat", "Rules").install(spark._jsparkSession, _Plans(spark))


class _Plans:
    """Answers what makes the rows of a data source; None where Python workers have to."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def apply(self, pickled: Any, schema: str) -> Any:
        """pickled: by a planning worker of Spark's on this machine. Never raises: what is wrong, the worker that reads will say."""
        try:
            source: DataSource = pickle.loads(bytes(pickled))  # noqa: S301 - Spark's own worker wrote it
            reader = source.reader(StructType.fromJson(json.loads(schema)))
            if not isinstance(reader, ReadsScan):
                return None
            return _Rows(self._spark, reader.planned()) if native_root(self._spark, reader.store) is not None else None
        except (ObjcatError, FileIOError):
            return None

    class Java:
        """What Java takes it for."""

        implements = ("java.util.function.BiFunction",)


class _Rows:
    """The rows of one scan, as often as a query has it."""

    def __init__(self, spark: SparkSession, scan: SparkReadable) -> None:
        self._spark = spark
        self._scan = scan

    def get(self) -> Any:
        """A frame of the JVM, made anew, so that no two have a column in common. Never raises: None says that it cannot be made."""
        try:
            return self._scan.to_spark(self._spark)._jdf
        except (ObjcatError, FileIOError):
            return None

    class Java:
        """What Java takes it for."""

        implements = ("java.util.function.Supplier",)

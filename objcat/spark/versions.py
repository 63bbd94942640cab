"""What differs between the versions of Spark. The only module that asks which one is there; all others are written for the newest.

The Java sources in `native` name Spark's classes as Spark 4 has them, and `java_source` says them as the installed version does. What a
version lacks is refused by `needs`, which names the version. PySpark is of the version of its jars, so one number stands for both.
"""

from __future__ import annotations

import functools
import inspect
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from py4j.java_gateway import JavaPackage
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, StructType

from fileio.errors import MissingDependency
from objcat.errors import SparkTooOld

VERSION: tuple[int, ...] = tuple(map(int, pyspark.__version__.split(".")[:2]))
"""Of the installed PySpark: major and minor number."""
OLDEST = (3, 5)
"""The oldest version that objcat runs on."""
SCALA = "2.13" if VERSION >= (4, 0) else "2.12"
"""Of the wheel's JARs; packages for Spark are named by it."""
HAS_PYTHON_SOURCES = VERSION >= (4, 0)
"""Whether Spark has data sources in Python, as the format `objcat` is one."""
READS_WIDENED = VERSION >= (4, 0)
"""Whether Spark reads a file whose column has a narrower type, as files have that are older than a change of the type."""
TELLS_EMPTY_STRUCTS = VERSION >= (4, 1)
"""Whether Spark tells a struct from null where a file has none of the fields that a query needs."""
HAS_STREAM_LIMITS = VERSION >= (4, 2)
"""Whether Spark lets a source in Python end a batch of a stream before the newest offset."""
TARGETS = "org.apache.spark.sql.connector.catalog.TableWritePrivilege"
"""The class by which Spark tells a catalog that it asks for a table to write to, since version 3.5.3."""
UNIONS_KEEP_LAYOUT = VERSION >= (4, 1)
"""Whether a union is distributed as its children are: joins and aggregates on the key then shuffle log rows only."""
HAS_CHECKSUMS = VERSION >= (4, 1)
"""Whether Spark has the settings by which a shuffle notices that rows which are computed again differ from the lost ones."""
CHECKSUMS_ARE_DEFAULTS = VERSION >= (4, 3)
"""Whether they are on by default."""


@dataclass(frozen=True, slots=True)
class JavaText:
    """A text of our Java sources that holds since a version of Spark, and what stands for it in older ones.

    newer: the text; where `until` is given, its beginning. It ends before `until`.
    source: the file that has it, without `.java`; None for all.
    """

    since: tuple[int, int]
    newer: str
    older: str
    source: str | None = None
    until: str | None = None

    def replaced(self, text: str) -> str:
        """A source with the older text."""
        if self.until is None:
            return text.replace(self.newer, self.older)
        before, _, rest = text.partition(self.newer)
        return before + self.older + rest[rest.index(self.until) :]


_TABLE_INFO = """\
  /** What a command says of the table that it makes, as Spark has it since version 4.1. */
  public static class TableInfo {
    private final StructType schema;
    private final Transform[] partitions;
    private final Map properties;

    TableInfo(StructType schema, Transform[] partitions, Map properties) {
      this.schema = schema;
      this.partitions = partitions;
      this.properties = properties;
    }

    public StructType schema() { return schema; }
    public Transform[] partitions() { return partitions; }
    public Map properties() { return properties; }
  }

  public Table createTable(Identifier ident, StructType schema, Transform[] parts, Map more) throws TableAlreadyExistsException {
    return createTable(ident, new TableInfo(schema, parts, more));
  }

  public StagedTable stageCreate(Identifier ident, StructType schema, Transform[] parts, Map more) {
    return stageCreate(ident, new TableInfo(schema, parts, more));
  }

  public StagedTable stageReplace(Identifier ident, StructType schema, Transform[] parts, Map more) {
    return stageReplace(ident, new TableInfo(schema, parts, more));
  }

  public StagedTable stageCreateOrReplace(Identifier ident, StructType schema, Transform[] parts, Map more) {
    return stageCreateOrReplace(ident, new TableInfo(schema, parts, more));
  }

"""
_CREATE = "  public Table createTable(Identifier ident, TableInfo info)"
_V2 = "import org.apache.spark.sql.connector."

JAVA_TEXTS = (
    JavaText((4, 0), "org.apache.spark.sql.classic.", "org.apache.spark.sql."),
    # Spark 3.5 is built with Scala 2.12, where a Seq of a signature is any sequence.
    JavaText((4, 0), "scala.collection.immutable.Seq", "scala.collection.Seq"),
    JavaText((4, 0), "scala.collection.immutable.IndexedSeq", "scala.collection.IndexedSeq", "ObjcatCatalog"),
    JavaText((4, 0), "{row})), false, scala.Option.apply(null))", "{row})), false)", "ObjcatBits"),
    JavaText(
        (4, 0),
        "Option.apply(null), scala.Option.apply(null), scala.Option.apply(null))",
        "Option.apply(null), scala.Option.apply(null))",
        "ObjcatBits",
    ),
    # Before, a union loses how the rows of its children are distributed: no layout below it is of use.
    JavaText((4, 1), "Union ? wanted.named(plan.output(), child.output()) : below", "Union ? Wanted.NOTHING : below", "ObjcatFileIndex"),
    # Tables with constraints, which commands declare by a TableInfo.
    JavaText((4, 1), f"{_V2}catalog.constraints.", "", "ObjcatCatalog", until=f"{_V2}catalog.procedures."),
    JavaText((4, 1), "    found.add(TableCatalogCapability.SUPPORT_TABLE_CONSTRAINT);\n", "", "ObjcatCatalog"),
    JavaText((4, 1), "    Constraint[] constraints", "", "ObjcatCatalog", until="    return others;"),
    JavaText((4, 1), _CREATE, _TABLE_INFO + _CREATE, "ObjcatCatalog"),
    # Procedures of catalogs.
    JavaText((4, 0), f"{_V2}catalog.procedures.", "", "ObjcatCatalog", until=f"{_V2}expressions."),
    JavaText((4, 0), ", ProcedureCatalog {", " {", "ObjcatCatalog"),
    JavaText((4, 0), "  // ---- CALL", "", "ObjcatCatalog", until="  // ---- plans of queries"),
    # Merges that a program makes, and those that change the schema.
    JavaText((4, 0), 'merge.withSchemaEvolution() ? "MERGE WITH SCHEMA EVOLUTION INTO " : "MERGE INTO "', '"MERGE INTO "', "ObjcatCatalog"),
    JavaText((4, 1), "      found.add(TableCapability.AUTOMATIC_SCHEMA_EVOLUTION);\n", "", "ObjcatCatalog"),
    # The text of a statement with the values of parameters.
    JavaText((4, 1), "import org.apache.spark.sql.catalyst.parser.PositionMapper;\n", "", "ObjcatCatalog"),
    JavaText(
        (4, 1),
        "(of.positionMapper().isDefined() ? ((PositionMapper) of.positionMapper().get()).substitutedText() : of.sqlText().get())",
        "of.sqlText().get()",
        "ObjcatCatalog",
    ),
)


def check_supported() -> None:
    """Refuse a PySpark that is too old for all of objcat. Raises MissingDependency."""
    if VERSION < OLDEST:
        raise MissingDependency(
            f"objcat.spark needs PySpark {said(OLDEST)} or newer, and {pyspark.__version__} is installed. Run pip install 'objcat[spark]'."
        )


def needs(version: tuple[int, ...], what: str, instead: str) -> None:
    """Refuse what Spark has only from a version on.

    Args:
        version: the first that has it.
        what: the subject of the message.
        instead: a sentence that says what to do.

    Raises:
        SparkTooOld: the installed one is older.
    """
    if version > VERSION:
        raise SparkTooOld(f"{what} needs Spark {said(version)} or newer, and this is Spark {pyspark.__version__}. {instead}")


def needs_python_sources() -> None:
    """Refuse the format `objcat` before Spark 4, which cannot have a data source in Python. Raises SparkTooOld."""
    needs((4, 0), 'format("objcat")', "Read with scan().to_spark(spark), write with Table.upsert(df), and streams with foreach_batch().")


def needs_targets(spark: Any) -> None:
    """Refuse a lake as a catalog where Spark does not say that it asks for a table to write to: before 3.5.3. Raises SparkTooOld."""
    if not has_class(spark, TARGETS):
        needs((3, 5, 3), "A lake as a catalog", "Use lake.sql(text, spark), Table.upsert(df) and scan().to_spark(spark).")


def has_class(spark: Any, name: str) -> bool:
    """Whether the session's Spark has a class. Vendors give older versions what is new in later ones, so their number says less."""
    package, _, short = name.rpartition(".")
    return not isinstance(getattr(functools.reduce(getattr, package.split("."), spark._jvm), short), JavaPackage)


def said(version: Sequence[int]) -> str:
    """A version as people write it."""
    return ".".join(map(str, version))


# ---- in the JVM


def is_cancelled(text: str) -> bool:
    """Whether Spark says by the text of an error that a job was cancelled."""
    return "[SPARK_JOB_CANCELLED]" in text or re.search(r"\bJob \d+ cancelled\b", text) is not None


def java_source(source: str, text: str) -> str:
    """The text of a Java source as the installed version of Spark compiles it. `source`: its file, without `.java`."""
    for one in JAVA_TEXTS:
        if one.since > VERSION and one.source in (None, source):
            text = one.replaced(text)
    return text


# ---- Arrow


def to_arrow(frame: DataFrame) -> pa.Table:
    """All rows of a frame as an Arrow table, as `DataFrame.toArrow` gives them since Spark 4. The zone of times is any."""
    if VERSION >= (4, 0):
        return frame.toArrow()
    old: Any = frame
    if hasattr(frame, "_jdf"):
        batches: list[pa.RecordBatch] = old._collect_as_arrow()
        return pa.Table.from_batches(batches, batches[0].schema if batches else arrow_schema(frame.schema))
    found, _ = old._session.client.to_table(old._plan.to_proto(old._session.client))
    return found


def from_arrow(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """A frame of the rows of an Arrow table, as `createDataFrame` makes it since Spark 4. It has no times without a zone."""
    if VERSION >= (4, 0):
        made: DataFrame = spark.createDataFrame(rows)
        return made
    schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    # It takes every time for one in microseconds.
    rows = rows.cast(arrow_schema(schema))
    old: Any = spark
    if hasattr(spark, "_jvm"):
        return _from_batches(old, rows, schema)
    from pyspark.sql.connect import dataframe
    from pyspark.sql.connect.plan import LocalRelation

    frames: Any = dataframe.DataFrame
    found: DataFrame = frames.withPlan(LocalRelation(rows, schema=schema.json()), old)
    return found


def _from_batches(spark: Any, rows: pa.Table, schema: StructType) -> DataFrame:
    """What `createDataFrame` of Spark 3.5 does with a pandas frame, once that is Arrow."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.arrow"
        with pa.ipc.new_stream(str(file), rows.schema) as stream:
            stream.write_table(rows)
        batches = spark._jvm.PythonSQLUtils.readArrowStreamFromFile(str(file))
    return DataFrame(spark._jvm.PythonSQLUtils.toDataFrame(batches, schema.json(), spark._jsparkSession), spark)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of a Spark schema, zoned times in UTC. Each version of PySpark asks for that differently."""
    asks_for_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    named: dict[str, Any] = {"timezone": "UTC"} if asks_for_zone else {}
    return to_arrow_schema(schema, **named)


# ---- data sources in Python

if TYPE_CHECKING or VERSION >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    ArrowStreamWriter = DataSourceStreamArrowWriter
elif HAS_PYTHON_SOURCES:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

    class ArrowStreamWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """A writer of streams, which gets Arrow batches, because Spark 4.0 looks for that class in both kinds of writers."""


if TYPE_CHECKING or HAS_STREAM_LIMITS:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.streaming import datasource as limits

    ReadAllAvailable = limits.ReadAllAvailable
    ReadMaxBytes = limits.ReadMaxBytes
    ReadMaxFiles = limits.ReadMaxFiles

    class LimitedReader(DataSourceStreamReader, limits.SupportsTriggerAvailableNow):
        """A reader of streams that Spark asks with limits."""

elif HAS_PYTHON_SOURCES:
    from pyspark.sql.datasource import DataSourceStreamReader

    LimitedReader = DataSourceStreamReader
    # Before, Spark asks only for the newest offset.
    ReadAllAvailable = ReadMaxBytes = ReadMaxFiles = None


# ---- columns


def try_cast(value: Column, kind: str | DataType) -> Column:
    """A column in another type, null where it does not cast, as `Column.try_cast` since Spark 4. Raises SparkTooOld."""
    if VERSION >= (4, 0):
        return value.try_cast(kind)
    old: Any = value
    if hasattr(value, "_jc"):
        jvm: Any = SparkContext._active_spark_context._jvm  # type: ignore[union-attr]
        expressions = jvm.org.apache.spark.sql.catalyst.expressions
        made = old.cast(kind)._jc.expr()
        column: Any = Column
        cast_column: Column = column(
            jvm.org.apache.spark.sql.Column(expressions.Cast(made.child(), made.dataType(), made.timeZoneId(), expressions.EvalMode.TRY()))
        )
        return cast_column
    # The client of Spark Connect has no such expression but in SQL, which names columns only.
    inner = old._expr
    text = getattr(inner, "_unparsed_identifier", None) or getattr(inner, "_expr", None)
    if not isinstance(text, str):
        needs((4, 0), "A cast of a computed column on Spark Connect", "Cast it in a frame of yours first.")
    return F.expr(f"try_cast({text} AS {kind if isinstance(kind, str) else kind.simpleString()})")

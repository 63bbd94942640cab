"""A lake as a catalog of a Spark session: `spark.sql` reads and writes its tables, and every query reads the newest slots.

The catalog, `ObjcatCatalog.java`, is compiled by the Janino that Spark ships. While Spark analyses a query it asks here, once for each
table, in the thread of the query, and gets the lazy frame of a scan. So a query is pinned to the slots that are newest when it is analysed.
Nothing of a table is cached between queries.
"""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import SparkSession

from objcat.common.validation import session, shown
from objcat.errors import InvalidInput
from objcat.spark.catalog_answers import Answers, CatalogLake
from objcat.spark.native.janino import compiled
from objcat.spark.versions import needs_targets

SOURCE = "ObjcatCatalog"
"""The name of the class, as the setting `spark.sql.catalog.<name>` has it."""
_TAKEN = frozenset({"spark_catalog", "system", "session", "builtin", "global_temp"})
"""Names that have another meaning in Spark."""


class Views:
    """The catalog that `views` registered. Safe for many threads."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self.catalog = catalog

    def __repr__(self) -> str:
        return f"Views({self.catalog!r})"

    def close(self) -> None:
        """Remove the catalog from the session: its tables are not found any more. Existing frames stay as they are."""
        _catalogs(self._spark).register(self._jsession, self.catalog, None)
        self._spark.conf.unset(_setting(self.catalog))

    @property
    def _jsession(self) -> Any:
        return self._spark._jsparkSession


def views(spark: SparkSession, lake: CatalogLake, *, catalog: str = "lake") -> Views:
    """Make a lake a catalog of `spark.sql`, `spark.table` and `df.writeTo`: tables are read at the newest slots, and written to.

        objcat.spark.views(spark, lake)
        spark.sql("SELECT city, count(*) FROM lake.shop.orders GROUP BY city")
        spark.sql("MERGE INTO lake.shop.orders t USING news n ON t.id = n.id WHEN MATCHED THEN UPDATE SET *")
        spark.sql("USE lake")

    Tables and namespaces are looked up while a query is analysed: later ones are seen, dropped ones are gone, and a commit between two
    queries is in the second. A query sees one slot of a table however often it names it; a DataFrame stays at the slots of its creation,
    like `scan().to_spark(spark)`. `VERSION AS OF` a slot and `TIMESTAMP AS OF` read the past. A statement that writes is
    one commit, made by the method of the table; `docs/how-to/spark-sql.md` lists the statements.

    Args:
        spark: the session. Other sessions of the application, also those of `newSession` and of streams, do not know the catalog: call this
            for each.
        lake: whose tables to show.
        catalog: its name in this session; a lake that has this name is replaced.

    Returns:
        A `Views`; `close()` removes the catalog.

    Raises:
        InvalidInput: Spark uses the name otherwise, the session was stopped, or it is of Spark Connect.
        SparkTooOld: a lake as a catalog needs Spark 3.5.3.
    """
    check_catalog_session(spark)
    if not re.fullmatch(r"[A-Za-z]\w*", catalog, re.ASCII) or catalog.lower() in _TAKEN:
        raise InvalidInput(f"catalog={shown(catalog)} cannot name a catalog in Spark. Give another name of letters, digits and _.")
    if spark.conf.get(_setting(catalog), SOURCE) != SOURCE:
        raise InvalidInput(f"The session has another catalog {catalog!r}, see {_setting(catalog)}. Give catalog= another name.")
    from pyspark.java_gateway import ensure_callback_server_started

    made = Views(spark, catalog)
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    spark.conf.set(_setting(catalog), SOURCE)
    _catalogs(spark).register(spark._jsparkSession, catalog, Answers(spark, lake))
    return made


def check_catalog_session(spark: Any) -> None:
    """Raises InvalidInput for a session that was stopped, is of Spark Connect, or is none, and SparkTooOld."""
    if not hasattr(spark, "_jvm"):
        raise InvalidInput("This session is of Spark Connect, whose catalogs are on the server. Use lake.sql(text, spark).")
    session(spark)
    needs_targets(spark)


def _setting(catalog: str) -> str:
    return f"spark.sql.catalog.{catalog}"


def _catalogs(spark: SparkSession) -> Any:
    """The object that makes catalogs."""
    return compiled(spark, SOURCE, "Catalogs", target=8)

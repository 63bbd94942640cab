"""A lake as a catalog of a Spark session: `spark.sql` sees its tables, and every query reads the newest slots.

The catalog, `ObjcatCatalog.java`, is compiled by the Janino that Spark ships. While Spark analyses a query it asks here, once for each
table, in the thread of the query, and gets the lazy frame of a scan. So a query is pinned to the slots that are newest when it is analysed.
Nothing of a table is cached between queries.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Any, Protocol

from pyspark.sql import SparkSession

from fileio.errors import FileIOError
from objcat.common.validation import session, shown
from objcat.errors import InvalidInput, NamespaceNotFound, ObjcatError, TableNotFound
from objcat.spark.native.janino import compiled

_SOURCE = "ObjcatCatalog"
_TAKEN = frozenset({"spark_catalog", "system", "session", "builtin", "global_temp"})
"""Names that have another meaning in Spark."""


class TableNames(Protocol):
    """Where a catalog looks tables up: a lake."""

    def table(self, name: str) -> Any:
        """See `Lake.table`."""

    def tables(self, namespace: str | None = None) -> list[str]:
        """See `Lake.tables`."""

    @property
    def namespaces(self) -> Any:
        """See `Lake.namespaces`."""


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


def views(spark: SparkSession, lake: TableNames, *, catalog: str = "lake") -> Views:
    """Make every table of a lake visible to `spark.sql`, each query at the newest slots. Read only.

        objcat.spark.views(spark, lake)
        spark.sql("SELECT city, count(*) FROM lake.shop.orders GROUP BY city")
        spark.sql("USE lake")

    Tables and namespaces are looked up while a query is analysed: later ones are seen, dropped ones are gone, and a commit between two
    queries is in the second. A query sees one slot of a table however often it names it; a DataFrame stays at the slots of its creation,
    like `scan().to_spark(spark)`. `VERSION AS OF` a slot and `TIMESTAMP AS OF` read the past. A statement that writes is refused; use
    `lake.sql(text, spark)`.

    Args:
        spark: the session. Other sessions of the application, also those of `newSession` and of streams, do not know the catalog: call this
            for each.
        lake: whose tables to show.
        catalog: its name in this session; a lake that has this name is replaced.

    Returns:
        A `Views`; `close()` removes the catalog.

    Raises:
        InvalidInput: Spark uses the name otherwise, the session was stopped, or it is of Spark Connect.
    """
    if not hasattr(spark, "_jvm"):
        raise InvalidInput("This session is of Spark Connect, whose catalogs are on the server. Use lake.sql(text, spark).")
    session(spark)
    if not re.fullmatch(r"[A-Za-z]\w*", catalog, re.ASCII) or catalog.lower() in _TAKEN:
        raise InvalidInput(f"catalog={shown(catalog)} cannot name a catalog in Spark. Give another name of letters, digits and _.")
    if spark.conf.get(_setting(catalog), _SOURCE) != _SOURCE:
        raise InvalidInput(f"The session has another catalog {catalog!r}, see {_setting(catalog)}. Give catalog= another name.")
    from pyspark.java_gateway import ensure_callback_server_started

    made = Views(spark, catalog)
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    spark.conf.set(_setting(catalog), _SOURCE)
    _catalogs(spark).register(spark._jsparkSession, catalog, _Answers(spark, lake))
    return made


def _setting(catalog: str) -> str:
    return f"spark.sql.catalog.{catalog}"


class _Answers:
    """Answers the catalog's questions: JSON for JSON, or the frame of a table."""

    def __init__(self, spark: SparkSession, lake: TableNames) -> None:
        self._spark = spark
        self._lake = lake

    def apply(self, question: str) -> Any:
        """Answer the question `what` about the dotted name `of`. Never raises: errors are part of the answer."""
        asked = json.loads(question)
        try:
            found = getattr(self, f"_{asked['what']}")(asked)
        except (TableNotFound, NamespaceNotFound):
            found = {"missing": True}
        except InvalidInput as error:
            found = {"refused": str(error)}
        except (ObjcatError, FileIOError) as error:
            found = {"failed": f"{type(error).__name__}: {error}"}
        except Exception as error:  # noqa: BLE001 - Spark would show Python's stack as a text
            found = {"failed": f"{type(error).__name__}: {error}"}
        return json.dumps(found) if isinstance(found, dict) else found

    def _load(self, asked: dict[str, Any]) -> Any:
        as_of: int | dt.datetime | None = None
        if asked["version"] is not None:
            if not re.fullmatch(r"\d{1,15}", asked["version"]):
                raise InvalidInput(f"VERSION AS OF {asked['version']!r} is no slot. Write a whole number, or use TIMESTAMP AS OF.")
            as_of = int(asked["version"])
        elif asked["micros"] is not None:
            as_of = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=asked["micros"])
        return self._lake.table(asked["of"]).scan(as_of=as_of).to_spark(self._spark)._jdf

    def _exists(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._lake.table(asked["of"])
        return {}

    def _tables(self, asked: dict[str, Any]) -> dict[str, Any]:
        above = asked["of"]
        found = self._lake.tables(above or None)
        return {"names": _children(found, above)}

    def _namespaces(self, asked: dict[str, Any]) -> dict[str, Any]:
        above = asked["of"] or ""
        return {"names": _children(self._lake.namespaces.list(above or None), above)}

    def _properties(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"properties": self._lake.namespaces.properties(asked["of"]) if asked["of"] else {}}

    class Java:
        """What Java takes it for."""

        implements = ("java.util.function.Function",)


def _children(names: list[str], above: str) -> list[str]:
    """The last parts of the names directly in a namespace, out of names somewhere below it."""
    depth = above.count(".") + 1 if above else 0
    return [name.rpartition(".")[2] for name in names if name.count(".") == depth]


def _catalogs(spark: SparkSession) -> Any:
    """The object that makes catalogs."""
    return compiled(spark, _SOURCE, "Catalogs", target=8)

"""The session of Spark that runs dbt's statements, and the credentials that say which lake it has.

One session serves a lake: dbt's threads run their statements in it side by side. It starts with the first statement.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dbt.adapters.contracts.connection import Connection, ConnectionState, Credentials
from dbt.adapters.exceptions import FailedToConnectError
from dbt.adapters.spark.connections import SparkConnectionManager
from dbt_common.exceptions import DbtRuntimeError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import objcat
import objcat.spark
from fileio.errors import FileIOError
from objcat.errors import ObjcatError

SETTINGS = {
    # dbt's macros for Spark expect casts that give null.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
}
"""Settings of the session, unless the profile has others."""


@dataclass(kw_only=True)
class ObjcatCredentials(Credentials):
    """A target of `profiles.yml`.

    Args:
        schema: the namespace of the models.
        url: of the lake, as for `objcat.connect`.
        database: nothing else than the schema; a lake has namespaces only.
        catalog: the name that the lake has in Spark.
        options: of the store, as for `objcat.connect`.
        spark: settings of the session, by name.
    """

    schema: str
    url: str
    database: str | None = None
    catalog: str = "lake"
    options: dict[str, Any] = field(default_factory=dict)
    spark: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def __pre_deserialize__(cls, data: dict[Any, Any]) -> dict[Any, Any]:
        """Fill in what a lake does not have."""
        data = super().__pre_deserialize__(data)
        data.setdefault("database", None)
        return data

    def __post_init__(self) -> None:
        """Refuse a database other than the namespace."""
        if self.database not in (None, self.schema):
            raise DbtRuntimeError(f"database: {self.database} has no meaning for a lake. Leave it out; schema: names the namespace.")
        self.database = None

    @property
    def type(self) -> str:
        """The name of the adapter."""
        return "objcat"

    @property
    def unique_field(self) -> str:
        """What dbt hashes to count its users."""
        return self.url

    def _connection_keys(self) -> tuple[str, ...]:
        return "url", "schema", "catalog"


def _have_own_python(spark: Mapping[str, Any]) -> None:
    """Have workers on this machine run the Python of dbt, unless the environment names another. Those of a cluster have their own."""
    if str(spark.get("spark.master", "local")).startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


class Cursor:
    """Runs a statement. The rows of a query are collected when they are asked for."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._frame: DataFrame | None = None
        self._rows: Iterator[Any] | None = None

    def execute(self, sql: str, bindings: Sequence[Any] | None = None) -> None:
        """Run a statement. bindings: the values of its question marks."""
        text = sql.strip().rstrip(";")
        self._rows = None
        self._frame = self._spark.sql(text, args=list(bindings)) if bindings else self._spark.sql(text)

    @property
    def description(self) -> list[tuple[Any, ...]]:
        """The columns of the rows, as DB-API has them."""
        fields = [] if self._frame is None else self._frame.schema.fields
        return [(one.name, one.dataType.simpleString(), None, None, None, None, one.nullable) for one in fields]

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        if self._rows is None and self._frame is not None:
            self._rows = iter(self._frame.collect())
        return list(self._rows or ())

    def fetchmany(self, size: int) -> list[Any]:
        """The next rows, at most so many. Does not collect the others."""
        if self._rows is None and self._frame is not None:
            self._rows = self._frame.toLocalIterator()
        return list(itertools.islice(self._rows or (), size))

    def fetchone(self) -> Any:
        """The next row, or None."""
        return next(iter(self.fetchmany(1)), None)

    def close(self) -> None:
        """Forget the result."""
        self._frame = self._rows = None


class Handle:
    """What dbt holds for a connection: cursors of the session of its lake. Jobs carry its tag, so that they can be cancelled."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark = spark
        self._tag = tag
        spark.sparkContext.addJobTag(tag)

    def cursor(self) -> Cursor:
        """A new cursor."""
        return Cursor(self._spark)

    def cancel(self) -> None:
        """Cancel the jobs of this connection."""
        self._spark.sparkContext.cancelJobsWithTag(self._tag)

    def close(self) -> None:
        """The session stays, for other connections."""
        self._spark.sparkContext.removeJobTag(self._tag)

    def rollback(self) -> None:
        """Each statement is a commit of its own."""


class ObjcatConnectionManager(SparkConnectionManager):
    """Connections to the sessions of this process."""

    TYPE = "objcat"
    _lock: ClassVar[threading.Lock] = threading.Lock()
    _sessions: ClassVar[dict[tuple[str, str], SparkSession]] = {}

    @classmethod
    def open(cls, connection: Connection) -> Connection:
        """Give a connection its handle. Starts the session. Raises FailedToConnectError."""
        if connection.state == ConnectionState.OPEN:
            return connection
        try:
            spark = cls._session(connection.credentials)
        except (FileIOError, ObjcatError, OSError, RuntimeError) as error:
            raise FailedToConnectError(f"The lake {connection.credentials.url} cannot be used: {error}") from error
        connection.handle = Handle(spark, f"dbt-{id(connection)}")
        connection.state = ConnectionState.OPEN
        return connection

    @classmethod
    def _session(cls, credentials: ObjcatCredentials) -> SparkSession:
        """The session whose current catalog is the lake: one for each lake, so that runs of other targets do not change it."""
        key = credentials.url, credentials.catalog
        with cls._lock:
            known = cls._sessions.get(key)
            if known is not None and known.sparkContext._jsc is not None:
                return known
            # Before Spark starts: a lake that cannot be read is one error, and not one of each model.
            objcat.connect(credentials.url, credentials.options).tables()
            settings = {name: str(value) for name, value in {**SETTINGS, **credentials.spark}.items()}
            builder = objcat.spark.configure(SparkSession.Builder().appName("dbt"), credentials.url, credentials.options)
            for name, value in settings.items():
                builder = builder.config(name, value)
            _have_own_python(credentials.spark)
            spark = builder.getOrCreate().newSession()
            for name, value in settings.items():
                if name.startswith("spark.sql."):
                    # Spark refuses those of the whole application, which it has taken at its start.
                    with suppress(AnalysisException):
                        spark.conf.set(name, value)
            objcat.spark.configure(spark, credentials.url, credentials.options, name=credentials.catalog)
            spark.catalog.setCurrentCatalog(credentials.catalog)
            cls._sessions[key] = spark
            return spark

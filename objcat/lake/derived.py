"""`DerivedTablesLake`: what a lake has for tables that are the result of a query over others."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack, cast

import msgspec

from fileio.errors import FileIOError
from objcat.common.memory_errors import reports_full_memory
from objcat.common.validation import name_list, session, text
from objcat.derived.explain import explain
from objcat.derived.query import resolve_query
from objcat.derived.refresh import DerivedLag, RefreshResult, lag_of, refresh, refresh_if_due
from objcat.derived.results import result_schema
from objcat.derived.same_terms import check_same_in_spark
from objcat.errors import InvalidInput, ObjcatError
from objcat.lake.create import checked_names, create_with_rows
from objcat.lake.settings import NamedTableSettings, check_settings, new_spec
from objcat.lake.shared_logs import SharedLogsLake
from objcat.maintenance.maintain import MaintenanceReport, MaintenanceStep
from objcat.maintenance.metrics import Sample
from objcat.metadata.derived import Derived, definition_of
from objcat.metadata.properties import REFRESH_AFTER_S
from objcat.sql.runner import SqlLake
from objcat.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@reports_full_memory
class DerivedTablesLake(SharedLogsLake):
    """A lake with derived tables. They are read like all others, and only a refresh changes their rows."""

    def create_derived(
        self, name: str, query: str, *, key: Sequence[str], spark: SparkSession | None = None, **settings: Unpack[NamedTableSettings]
    ) -> Table:
        """Create a table that is the result of a query over other tables of the lake, and compute it. It gets its name after its rows.

        Its columns are those of the query as it is now: `*` means the columns that a table has at this moment. Each refresh brings it to
        the newest slots of these tables.

        Args:
            name: see `create_table`.
            query: a SELECT in Spark's dialect, as for `sql`. Functions of time and chance, LIMIT and time travel are refused, since the
                result has to follow from the rows.
            key: columns of the result that identify a row: unique, and never null. Of an aggregate, the columns that it groups by.
            spark: the session that computes it, see `refresh_derived`. Columns have the same types without it.
            settings: of `create_table`: `partition_by`, `index`, `table_type`, `properties`, `shared_log`.

        Returns:
            A handle on the table, as of its first refresh.

        Raises:
            InvalidSql: the query does not fit; the message says why.
            InvalidBatch, NullKey: rows of the result repeat a key, or have none. The table was not created.
            Unsupported: the executors of `spark` cannot open the store.
            ObjcatError: the errors of `create_table`.
        """
        lake = cast("SqlLake", self)
        name, shared_log = checked_names(name, settings.get("shared_log"))
        check_settings(settings, NamedTableSettings)
        for refused in ("ordering", "allowed_lateness", "defaults"):
            if settings.get(refused) is not None:
                raise InvalidInput(f"{refused}= is for rows that come by themselves. A derived table has those of its query. Leave it out.")
        found = resolve_query(text(query, what="query"), lake)
        if spark is not None:
            check_same_in_spark(found)
            spark = session(spark)
        keys = name_list(key, what="key")
        unknown = [one for one in keys if one not in found.outputs]
        if unknown or not keys:
            raise InvalidInput(f"key={keys} has to name columns of the query, which are {list(found.outputs)}. Nothing was created.")
        rest: Any = {said: value for said, value in settings.items() if said != "shared_log"}
        spec = new_spec(self.fileio, result_schema(found, keys), key=keys, **rest)
        spec = msgspec.structs.replace(spec, derived=Derived(query=found.text, sources=found.names))
        return create_with_rows(self._context, name, spec, shared_log, lambda table: refresh(table, lake, full=False, spark=spark))[0]

    def refresh_derived(self, name: str, *, full: bool = False, spark: SparkSession | None = None) -> RefreshResult:
        """Bring a derived table to the newest slots of the tables of its query, in one commit.

        It reads what changed since the last refresh, and what that joins with. Where the query cannot follow changes, or they were cleaned,
        it computes the whole query and writes what differs. Several processes may do so at once: each change counts once.

        Args:
            name: of the table.
            full: compute the whole query, also from sources or columns that are others now.
            spark: the session whose executors read, compute and write. None: DuckDB in this process. The rows are the same. The caller
                decides: it pays where changes or lookups are large, since a refresh takes some dozen jobs. When nothing changed, there is
                none. Not of Spark Connect.

        Returns:
            What it did.

        Raises:
            InvalidInput: the table is not derived; or a source or a column of it is another one now, and the table stays as it was.
            InvalidSql: Spark might compute another value than this process. The message names the expression. Leave out `spark`.
            SparkJobFailed, SparkJobLost, MissingOnWorkers: of `spark`, see `objcat.errors`. Nothing was written.
            InvalidBatch, NullKey: rows of the result repeat a key, or have none. Nothing was written.
            CommitUnknown: the refresh may have landed; refresh again, which counts each change once.
            ObjcatError: the errors of `Table.upsert` and of reading the sources.
        """
        running = None if spark is None else session(spark)
        return refresh(self._context.open_table(name), cast("SqlLake", self), full=full, spark=running)

    def explain_derived(self, name: str) -> str:
        """How a derived table is refreshed, and why not in a better way, as text. It reads no rows. Raises as `refresh_derived`."""
        return explain(self._context.open_table(name), cast("SqlLake", self))

    def _refresh_due(self, names: Sequence[str]) -> dict[str, MaintenanceStep]:
        """Refresh the derived tables among some that are due by their property, each after those that it is made of. By name, what it did.

        One that fails is left; its step says why.
        """
        waiting: dict[str, tuple[Table, tuple[str, ...]]] = {}
        for name in names:
            with contextlib.suppress(ObjcatError, FileIOError):
                table = self._context.open_table(name)
                definition = definition_of(table.spec)
                if definition is not None and REFRESH_AFTER_S in table.properties:
                    waiting[name] = (table, definition.sources)
        steps: dict[str, MaintenanceStep] = {}
        while waiting:
            # There are no circles, since a table is created after those that it is made of.
            name = next((one for one, (_, sources) in waiting.items() if not waiting.keys() & {*sources} - {one}), next(iter(waiting)))
            table, _ = waiting.pop(name)
            try:
                if (step := refresh_if_due(table, cast("SqlLake", self), after_s=int(table.properties[REFRESH_AFTER_S]))) is not None:
                    steps[name] = step
            except (ObjcatError, FileIOError) as error:
                steps[name] = MaintenanceStep(service="refresh", done=False, why=f"{type(error).__name__}: {error}", failed=True)
        return steps

    def _lag_samples(self, table: Table) -> list[Sample]:
        """The metrics of a derived table that need its sources; none for another table."""
        if definition_of(table.spec) is None:
            return []
        found = []
        for lag in lag_of(table, cast("SqlLake", self)):
            labels = {"table": table.name, "source": lag.source}
            for metric, value in (("slots", lag.slots), ("seconds", lag.seconds)):
                if value is not None:
                    found.append(Sample(f"objcat_derived_lag_{metric}", value, labels))
        return found

    def derived_lag(self, name: str) -> list[DerivedLag]:
        """How far a derived table is behind each of its sources. Raises InvalidInput for a table that is not derived."""
        return lag_of(self._context.open_table(name), cast("SqlLake", self))


def with_refreshes(reports: Sequence[MaintenanceReport], steps: Mapping[str, MaintenanceStep]) -> list[MaintenanceReport]:
    """The reports, with the refreshes that came before the services."""
    return [replace(one, steps=(steps[one.table], *one.steps)) if one.table in steps else one for one in reports]

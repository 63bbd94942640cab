"""deltalake, the Delta Lake library without Spark. Its merge is copy-on-write in every layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import duckdb
from deltalake import DeltaTable, QueryBuilder, WriterProperties, write_deltalake

from benchmarks.peers.base import BenchTable, Rows
from benchmarks.peers.configuration import deltalake_table
from benchmarks.peers.local import LocalSide, asked, asked_by_type, reader_of
from benchmarks.works import CHANGE_TYPE, CODEC, CODEC_LEVEL, Query

_PROPERTIES = WriterProperties(compression="ZSTD", compression_level=CODEC_LEVEL)
_CHANGE_TYPES = {"insert": "insert", "update_preimage": "update_before", "update_postimage": "update_after", "delete": "delete"}


class DeltalakeSide(LocalSide):
    """deltalake, without Spark."""

    def about(self) -> dict[str, str]:
        """Versions and settings of this side."""
        return {"deltalake": deltalake.__version__, "layout": "no buckets, rows in the order of the source", "codec": CODEC}

    def create(self, table: BenchTable) -> str:
        """As `Side.create`."""
        table.state["path"] = f"{self.settings.root()}/{table.name}"
        return str(table.state["path"])

    def load(self, table: BenchTable, path: Path) -> None:
        """As `Side.load`."""
        kept = dict(deltalake_table(table.layout))
        write_deltalake(
            table.state["path"], reader_of(path), writer_properties=_PROPERTIES, configuration=kept, storage_options=self._options()
        )
        table.state["handle"] = self._opened(table)

    def upsert(self, table: BenchTable, batch: Any) -> None:
        """As `Side.upsert`."""
        newer = f"s.{table.layout.ordering} >= t.{table.layout.ordering}" if table.layout.ordering else None
        self._merge(table, batch).when_matched_update_all(predicate=newer).when_not_matched_insert_all().execute()

    def append(self, table: BenchTable, batch: Any) -> None:
        """As `Side.append`."""
        write_deltalake(table.state["handle"], batch, mode="append", writer_properties=_PROPERTIES)

    def delete(self, table: BenchTable, batch: Any) -> None:
        """As `Side.delete`."""
        self._merge(table, batch).when_matched_delete().execute()

    def compact(self, table: BenchTable) -> None:
        """As `Side.compact`."""
        table.state["handle"].optimize.compact(writer_properties=_PROPERTIES)

    def cluster(self, table: BenchTable, by: Sequence[str], *, zorder: bool) -> None:  # noqa: ARG002 - of one column it is a sort
        """As `Side.cluster`."""
        table.state["handle"].optimize.z_order(list(by), writer_properties=_PROPERTIES)

    def clean(self, table: BenchTable) -> None:
        """As `Side.clean`."""
        table.state["handle"].vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    def version(self, table: BenchTable) -> int:
        """As `Side.version`."""
        return int(table.state["handle"].version())

    def incremental(self, table: BenchTable, query: Query, since: Any) -> Rows:
        """The newest of the changes of each key, where more than one commit may have changed it."""
        handle: DeltaTable = table.state["handle"]
        handle.update_incremental()
        key = ", ".join(table.layout.key)
        newest = (
            f" qualify row_number() over (partition by {key} order by _commit_version desc) = 1" if handle.version() > since + 1 else ""
        )
        with duckdb.connect() as duck:
            duck.register("changes", handle.load_cdf(starting_version=since + 1))
            state = f"from changes where {CHANGE_TYPE} in ('insert', 'update_postimage')"
            new = duck.execute(f"select {', '.join(query.columns)} {state}{newest}").to_arrow_table()
        return asked(new, query)

    def changes(self, table: BenchTable, query: Query, since: Any) -> Rows:
        """As `Side.changes`."""
        handle: DeltaTable = table.state["handle"]
        handle.update_incremental()
        return asked_by_type(handle.load_cdf(starting_version=since + 1), query, _CHANGE_TYPES)

    def reopen(self, table: BenchTable) -> None:
        """As `Side.reopen`."""
        table.state["handle"] = None

    def plan(self, table: BenchTable, query: Query) -> int:
        """The plan of all files: for a filter, the library tells only which partitions remain."""
        table.state["handle"] = self._opened(table)
        return len(table.state["handle"].file_uris()) if query.where else 0

    def rows(self, table: BenchTable, *, where: str | None = None, columns: Sequence[str] | None = None, as_of: Any = None) -> Any:
        """The newest rows, or those of a version, as Arrow."""
        handle: DeltaTable = table.state["handle"] if as_of is None else self._opened(table, version=as_of)
        if as_of is None:
            handle.update_incremental()
        what = ", ".join(columns) if columns else "*"
        condition = f" where {where}" if where else ""
        return QueryBuilder().register("t", handle).execute(f"select {what} from t{condition}")

    def _merge(self, table: BenchTable, batch: Any) -> Any:
        on = " and ".join(f"t.{name} = s.{name}" for name in table.layout.key)
        return table.state["handle"].merge(batch, on, source_alias="s", target_alias="t", writer_properties=_PROPERTIES)

    def _opened(self, table: BenchTable, *, version: int | None = None) -> DeltaTable:
        return DeltaTable(table.state["path"], version=version, storage_options=self._options())

    def _options(self) -> dict[str, str] | None:
        store = self.settings.store
        if store is None:
            return None
        return {
            "AWS_ENDPOINT_URL": store.endpoint,
            "AWS_REGION": store.region,
            "AWS_ACCESS_KEY_ID": store.access_key,
            "AWS_SECRET_ACCESS_KEY": store.secret_key,
            "AWS_ALLOW_HTTP": "true",
            "AWS_CONDITIONAL_PUT": "etag",
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
        }


Side = DeltalakeSide

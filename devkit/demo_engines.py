"""The end of the demo: other readers read the table by its mirrors, and see the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import StaticTable

import objcat
from devkit.demo_checks import Check
from devkit.demo_flights import KEY
from devkit.engines import AT_NIGHT, ENGINES

MIRRORS = {"mirrors": "iceberg,delta"}
READ_BY_OTHERS = ("file", "s3")
"""The stores whose mirrors the demo reads by other libraries. The servers of the others need settings that these libraries do not have."""


def check_mirrors(table: objcat.Table, states: Mapping[int, pa.Table], options: Mapping[str, str]) -> list[Check]:
    """Read the table by pyiceberg and by deltalake, through its mirrors.

    Args:
        table: with mirrors that have caught up.
        states: the rows that objcat reads, by slot.
        options: of the store.
    """
    found = [_same("pyiceberg", slot, rows, _by_pyiceberg(table, slot, options)) for slot, rows in states.items()]
    found += [_same("deltalake", slot, rows, _by_deltalake(table, slot, options)) for slot, rows in states.items()]
    return found


def check_engines(table: objcat.Table, slot: int, rows: pa.Table) -> Iterator[Check]:
    """Read the newest slot by every engine that is pinned for the tests, each in a process of its own. Installs those that are missing.

    What an engine cannot do counts as expected if the table of known limits has it.
    """
    from tests.engines.limits import Mirror, limits_of
    from tests.engines.own_ways import differences
    from tests.engines.process import ReadRefused, running_engines
    from tests.engines.readers.serve import Request

    prefix = table.url.removeprefix("file://")
    with running_engines() as engines:
        for name, engine in ENGINES.items():
            if name in AT_NIGHT:
                continue
            engine.install()
            for form in engine.formats:
                request = Request(form, prefix, "newest", slot, f"{prefix}/metadata/v{slot + 1}.metadata.json")
                try:
                    told = differences(rows, engines[name].read(request), name, request)
                except ReadRefused as refused:
                    told = (str(refused),)
                mirror: Mirror = "iceberg 2" if form == "iceberg" else "delta"
                limits = limits_of(name, mirror, "demo", told)
                known = " ".join(limit.why for limit in limits or ())
                found = f"known: {known}" if known else told[0][:300] if told else f"{rows.num_rows} rows"
                yield Check(f"{engine.title} reads the {form} mirror", limits is not None, found)
            engines.end(name)


def _by_pyiceberg(table: objcat.Table, slot: int, options: Mapping[str, str]) -> pa.Table:
    given = {
        "s3.endpoint": options.get("endpoint", ""),
        "s3.access-key-id": options.get("access_key", ""),
        "s3.secret-access-key": options.get("secret_key", ""),
        "s3.region": options.get("region", "us-east-1"),
    }
    metadata = f"{table.url}/metadata/v{slot + 1}.metadata.json"
    return StaticTable.from_metadata(metadata, given if options else {}).scan().to_arrow()


def _by_deltalake(table: objcat.Table, slot: int, options: Mapping[str, str]) -> pa.Table:
    given = {
        "aws_endpoint": options.get("endpoint", ""),
        "aws_access_key_id": options.get("access_key", ""),
        "aws_secret_access_key": options.get("secret_key", ""),
        "aws_region": options.get("region", "us-east-1"),
        "aws_allow_http": "true",
    }
    found = DeltaTable(table.url, version=slot, storage_options=given if options else None)
    return pa.table(QueryBuilder().register("flights", found).execute("SELECT * FROM flights"))


def _same(reader: str, slot: int, rows: pa.Table, found: Any) -> Check:
    order: Sequence[tuple[str, str]] = [(name, "ascending") for name in KEY]
    equal = rows.sort_by(order).equals(found.select(rows.column_names).cast(rows.schema).sort_by(order))
    return Check(f"{reader} reads the same rows at slot {slot} by the mirror", equal, f"{rows.num_rows} and {found.num_rows} rows")

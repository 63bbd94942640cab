"""Questions whose answers engines take from metadata: counts, minima and maxima, and filters that skip files by their bounds."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.types as at

from tests.engines.limits import Mirror
from tests.engines.matrix import MirroredHistory
from tests.engines.process import EngineProcess, ReadRefused
from tests.engines.rows import comparable

OPERATORS = ("=", "<>", "<", ">", "<=", ">=")
FILTERS_OF_A_COLUMN = 3
FILTERS_MOST = {"spark": 12}
"""Of a history, by engine. Spark plans and compiles each one for most of a second; over all histories there are still about a thousand."""


def _plain(rows: pa.Table) -> list[pa.Field]:
    """Columns that have an order in all engines."""
    return [field for field in rows.schema if not at.is_nested(field.type) and not at.is_binary(field.type)]


def check_aggregates(engine: EngineProcess, mirrored: MirroredHistory, mirror: Mirror) -> list[str]:
    """What is wrong with counts, minima and maxima of all columns of the newest state, beside those of objcat's rows."""
    rows = mirrored.history.truths[mirrored.shown[mirror].newest]
    fields = _plain(rows)
    parts = [f"count({{{n}}}), {'' if at.is_boolean(field.type) else f'min({{{n}}}), max({{{n}}}), '}" for n, field in enumerate(fields)]
    sql = f"select {''.join(parts)}count(*) from {{t}}"
    names = tuple(field.name for field in fields)
    wanted = _truth(sql, rows, names)
    kinds = [field.type for field in wanted.schema]
    return _compare(engine, mirrored, mirror, sql, names, wanted, kinds)


def check_filters(engine: EngineProcess, mirrored: MirroredHistory, mirror: Mirror, rng: random.Random) -> list[str]:
    """What is wrong with filters on every column of the newest state, all in one statement, beside those on objcat's rows."""
    rows = mirrored.history.truths[mirrored.shown[mirror].newest]
    drawn: list[tuple[str, str]] = []
    for field in _plain(rows):
        values = [value for value in rows.column(field.name).to_pylist() if value is not None and value == value]  # noqa: PLR0124 - NaN
        if at.is_floating(field.type) and engine.name == "spark":
            # Its Parquet reader takes 0.0 and -0.0 for two values where a file has a dictionary, in any Parquet file.
            values = list(filter(None, values))
        wheres = [f"{{}} {rng.choice(OPERATORS)} {literal(rng.choice(values), field.type)}" for _ in range(FILTERS_OF_A_COLUMN) if values]
        if at.is_floating(field.type):
            # Statistics of Parquet leave NaN out, so what DuckDB says of it depends on row groups, in any Parquet file.
            wheres = [f"{where} and not isnan({{}})" for where in wheres]
        drawn += [(where, field.name) for where in [*wheres, "{} is null", "{} is not null"]]
    drawn = rng.sample(drawn, min(len(drawn), FILTERS_MOST.get(engine.name, len(drawn))))
    names = [name for _where, name in drawn]
    parts = [f"select {n} as n, count(*) as c from {{t}} where {where.replace('{}', f'{{{n}}}')}" for n, (where, _name) in enumerate(drawn)]
    sql = f"select * from ({' union all '.join(parts)}) order by n"
    return _compare(engine, mirrored, mirror, sql, tuple(names), _truth(sql, rows, tuple(names)), [pa.int32(), pa.int64()])


def _compare(
    engine: EngineProcess, mirrored: MirroredHistory, mirror: Mirror, sql: str, names: tuple[str, ...], wanted: pa.Table, kinds: list[Any]
) -> list[str]:
    request = mirrored.request(engine.name, mirror, "newest", mirrored.shown[mirror].newest, sql, names)
    where = f"{engine.name}, {mirror}, {mirrored.history.cell.name}"
    try:
        found = engine.read(request)
    except ReadRefused as error:
        return [f"{where}: {sql[:300]}: {str(error)[:500]}"]
    pairs = zip(_values(wanted, kinds), _values(found, kinds), strict=True)
    differing = [(row, one, other) for row, (one, other) in enumerate(pairs) if one != other]
    parts = sql.split(" union all ")
    return [f"{where}: {(parts[row] if len(parts) > 1 else sql)[:300]}: {one}, and it says {other}" for row, one, other in differing]


def _values(rows: pa.Table, kinds: list[Any]) -> list[tuple[Any, ...]]:
    columns = [[comparable(value, kind, False) for value in rows.column(n).to_pylist()] for n, kind in enumerate(kinds)]
    return list(zip(*columns, strict=True))


def _truth(sql: str, rows: pa.Table, names: tuple[str, ...]) -> pa.Table:
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("t", rows)
        return connection.sql(sql.format(*quoted, t="t")).to_arrow_table()


def literal(value: Any, kind: pa.DataType) -> str:
    """A value as DuckDB and Spark write it."""
    if at.is_boolean(kind):
        return "true" if value else "false"
    if at.is_date(kind):
        return f"date '{value.isoformat()}'"
    if at.is_timestamp(kind):
        text = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        return f"timestamp '{text}{'+00:00' if kind.tz else ''}'"
    if at.is_string(kind):
        return "'" + value.replace("'", "''") + "'"
    if at.is_floating(kind):
        return f"cast('{value!r}' as {'float' if at.is_float32(kind) else 'double'})"
    return f"cast('{value}' as decimal({kind.precision},{kind.scale}))" if at.is_decimal(kind) else str(value)

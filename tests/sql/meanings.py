"""Functions that Spark and DuckDB know by one name and mean otherwise, and what Spark makes of them: row by row of `ROWS`."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

UTC = dt.UTC
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us")),
        ("z", pa.timestamp("us", tz="UTC")),
        ("l", pa.list_(pa.int32())),
    ]
)
_SPRING = dt.datetime(2024, 3, 31, 1, 30, 15, 123456)
_EVE = dt.datetime(1969, 12, 31, 23, 59, 59, 999999)
ROWS: list[dict[str, Any]] = [
    {
        "k": 0,
        "n": -3,
        "x": 2.5,
        "s": "a.b_c%d",
        "d": dt.date(2024, 1, 31),
        "t": _SPRING,
        "z": _SPRING.replace(tzinfo=UTC),
        "l": [3, 1, None],
    },
    {"k": 1, "n": 2, "x": float("nan"), "s": "aXbXc", "d": dt.date(1969, 12, 29), "t": _EVE, "z": _EVE.replace(tzinfo=UTC), "l": [1, 2, 2]},
    {"k": 2, "n": 0, "x": None, "s": None, "d": None, "t": None, "z": None, "l": None},
    {"k": 3, "n": None, "x": 0.5, "s": "", "d": dt.date(2024, 12, 29), "t": None, "z": None, "l": []},
]
MEANINGS: dict[str, list[Any]] = {
    "dayofweek(d)": [4, 2, None, 1],
    "weekday(d)": [2, 0, None, 6],
    "extract(dow FROM d)": [4, 2, None, 1],
    "extract(dayofweek FROM d)": [4, 2, None, 1],
    "date_part('dow', d)": [4, 2, None, 1],
    "extract(second FROM t)": [Decimal("15.123456"), Decimal("59.999999"), None, None],
    "date_part('second', t)": [Decimal("15.123456"), Decimal("59.999999"), None, None],
    r"s LIKE '%\\_%'": [True, False, None, False],
    r"s LIKE '%\_%'": [True, False, None, False],
    r"s NOT LIKE '%\\_%'": [False, True, None, True],
    "s LIKE '%!_%' ESCAPE '!'": [True, False, None, False],
    "s LIKE concat('%', chr(92), '_%')": [True, False, None, False],
    r"s LIKE ANY ('aX\\%', '%\\_%')": [True, False, None, False],
    r"s ILIKE '%\\_C%'": [True, False, None, False],
    "regexp_replace(s, '(X)', '[$1]')": ["a.b_c%d", "a[X]b[X]c", None, ""],
    "regexp_replace(s, '([a-z])X([a-z])', '$2X$1')": ["a.b_c%d", "bXaXc", None, ""],
    r"regexp_replace(s, 'X', '\\$')": ["a.b_c%d", "a$b$c", None, ""],
    "substring(s, 0, 2)": ["a.", "aX", None, ""],
    "substring(s, n, 2)": ["c%", "Xb", None, None],
    "left(s, -1)": ["", "", None, ""],
    "left(s, n)": ["", "aX", None, None],
    "right(s, n)": ["", "Xc", None, None],
    "isnan(x)": [False, True, False, False],
    "format_string('%d-%s', k, coalesce(s, ''))": ["0-a.b_c%d", "1-aXbXc", "2-", "3-"],
    "unix_seconds(z)": [1711848615, -1, None, None],
    "unix_millis(z)": [1711848615123, -1, None, None],
    "datediff(month, d, date '2024-05-01')": [3, 652, None, -7],
    "datediff(hour, t, timestamp_ntz '2024-01-01 12:30:00')": [-2149, 473364, None, None],
    "datediff(day, t, timestamp_ntz '2024-01-01 12:00:00')": [-89, 19723, None, None],
    "timestampdiff(minute, t, timestamp_ntz '2024-01-01 12:30:00')": [-128940, 28401870, None, None],
    "datediff(d, date '2024-01-01')": [30, -19726, None, 363],
    "date_add(d, 1)": [dt.date(2024, 2, 1), dt.date(1969, 12, 30), None, dt.date(2024, 12, 30)],
    "date_sub(d, 1)": [dt.date(2024, 1, 30), dt.date(1969, 12, 28), None, dt.date(2024, 12, 28)],
    "add_months(d, 1)": [dt.date(2024, 2, 29), dt.date(1970, 1, 29), None, dt.date(2025, 1, 29)],
    "trunc(d, 'MM')": [dt.date(2024, 1, 1), dt.date(1969, 12, 1), None, dt.date(2024, 12, 1)],
    "trunc(d, 'week')": [dt.date(2024, 1, 29), dt.date(1969, 12, 29), None, dt.date(2024, 12, 23)],
    "CAST(date_trunc('MM', t) AS TIMESTAMP_NTZ)": [dt.datetime(2024, 3, 1), dt.datetime(1969, 12, 1), None, None],
    "CAST(from_utc_timestamp(t, 'America/New_York') AS TIMESTAMP_NTZ)": [
        _SPRING - dt.timedelta(hours=4),
        _EVE - dt.timedelta(hours=5),
        None,
        None,
    ],
    "CAST(to_utc_timestamp(t, 'America/New_York') AS TIMESTAMP_NTZ)": [
        _SPRING + dt.timedelta(hours=4),
        _EVE + dt.timedelta(hours=5),
        None,
        None,
    ],
    "array_contains(l, 9)": [None, False, None, False],
    "NOT array_contains(l, 1)": [False, False, None, True],
    "array_position(l, 2)": [0, 2, None, 0],
    "array_remove(l, 2)": [[3, 1, None], [1], None, []],
    "array_distinct(l)": [[3, 1, None], [1, 2], None, []],
    "array_except(l, array(1, 3))": [[None], [2], None, []],
}
QUERY = f"SELECT {', '.join(f'{text} AS c{number}' for number, text in enumerate(MEANINGS))} FROM t ORDER BY k"
AGGREGATES: dict[str, Any] = {
    "percentile(k, 0.5)": 1.5,
    "percentile(k, array(0.25, 0.5))": [0.75, 1.5],
    "kurtosis(k)": pytest.approx(-1.36),
    "max(percentile(k, 0.5)) OVER ()": 1.5,
}
AGGREGATED = f"SELECT {', '.join(f'{text} AS c{number}' for number, text in enumerate(AGGREGATES))} FROM t"

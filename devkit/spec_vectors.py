"""`spec/vectors/`: inputs and outputs of every pure function of the format, as JSON that any language can run against."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from devkit.spec_defaults import vectors_of_defaults
from devkit.spec_ordering import vectors_of_ordering
from devkit.spec_values import arrow_of, dumped, to_json, zoneless
from objcat.common.validation import case_folded
from objcat.datafile.bucket_hash import bucket_of, key_digests, spark_hash
from objcat.datafile.statistics import bounds_of
from objcat.metadata.file_digest import digest_of, footer_digest_of
from objcat.metadata.partition_values import partitions_of
from objcat.metadata.partitioning import PartitionField, Partitioning
from objcat.metadata.schema import TableSchema, arrow_type, schema_from_arrow
from objcat.timeline.json_objects import DIGEST_CHARACTERS

Typed = tuple[str, Any]
NAN = math.nan
NINE = zoneless(2026, 11, 21, 9, 30, 1, 5)


def vectors() -> Mapping[str, str]:
    """The text of every file of `spec/vectors/`, by its name."""
    made = {
        "hash.json": hashes(),
        "key_digests.json": digests_of_keys(),
        "file_digests.json": digests_of_files(),
        "object_digests.json": digests_of_objects(),
        "partitions.json": partitions(),
        "bounds.json": bounds(),
        "names.json": names(),
        "defaults.json": vectors_of_defaults(),
        "ordering.json": vectors_of_ordering(),
    }
    return {name: dumped(content) for name, content in made.items()}


def _column(typed: Typed) -> pa.Array[Any]:
    kind, value = typed
    return arrow_of(value, arrow_type(kind))


def _json(typed: Typed) -> Any:
    """A value as its type holds it: decimals with all digits of the scale."""
    return to_json(_column(typed)[0].as_py())


# ------------------------------------------------------------------------------------------------------------- bucket of a key

_UTC = NINE.replace(tzinfo=dt.UTC)
HASHED: Sequence[Typed] = [
    *(("boolean", value) for value in (False, True, None)),
    *((kind, value) for kind in ("tinyint", "smallint", "int", "bigint") for value in (0, 1, -1, 127, -128)),
    *(("smallint", value) for value in (32767, -32768)),
    *(("int", value) for value in (2**31 - 1, -(2**31), None)),
    *(("bigint", value) for value in (2**31, 2**63 - 1, -(2**63), None)),
    *((kind, value) for kind in ("float", "double") for value in (0.0, -0.0, 1.0, -1.5, 0.1, NAN, math.inf, -math.inf)),
    *(("date", value) for value in (dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(2026, 11, 21), dt.date(1, 1, 1))),
    *(("timestamp", value) for value in (dt.datetime(1970, 1, 1, tzinfo=dt.UTC), _UTC, dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC))),
    *(("timestamp_ntz", value) for value in (zoneless(1970, 1, 1), NINE, zoneless(9999, 12, 31, 23, 59, 59, 999_999))),
    *(("decimal(4,2)", Decimal(value)) for value in ("0.00", "1.27", "1.28", "-1.29", "-0.50")),
    *(("decimal(18,0)", Decimal(value)) for value in ("127", "128", "-128", "-129", "999999999999999999", "-999999999999999999")),
    *(("decimal(19,0)", Decimal(value)) for value in ("0", "1", "-1", "127", "128", "-128", "-129", "255", "256", "32767", "32768")),
    *(("decimal(38,10)", Decimal(value)) for value in ("0.0000000127", "0.0000000128", "-0.0000000129", "9999999999999999999999999999")),
    *(("string", value) for value in ("", "a", "abcd", "abcde", "Oslo", "Zürich", "Züric", "abcü", "é", "東京", "🚕", "abcdefgh", None)),
    *(("binary", value) for value in (b"", b"\x00", b"\x7f", b"\x80", b"\xff", b"abc\xff", b"\x00\x01\x02\x03\xfe\xff")),
    ("binary", bytes(range(200, 208))),
]
KEYS: Sequence[Sequence[Typed]] = [
    [("string", "Oslo"), ("bigint", 1)],
    [("bigint", 1), ("string", "Oslo")],
    [("string", None), ("bigint", 1)],
    [("int", 0), ("string", ""), ("boolean", True)],
    [("date", dt.date(2026, 11, 21)), ("decimal(19,0)", Decimal(-129)), ("binary", b"\xff"), ("double", -0.0)],
]
COUNTS = (1, 3, 16, 65_536)


def hashes() -> dict[str, Any]:
    """The hash of keys, and their buckets."""
    keys = [*([typed] for typed in HASHED), *KEYS]
    made = []
    for key in keys:
        columns = [_column(typed) for typed in key]
        buckets = {str(count): int(bucket_of(columns, count)[0]) for count in COUNTS}
        made.append({**_key(key), "hash": int(spark_hash(columns)[0]), "buckets": buckets})
    return {"about": "The hash of the values of a key's hashed columns, in order, and its bucket for some bucket counts.", "keys": made}


def _key(key: Sequence[Typed]) -> dict[str, Any]:
    return {"types": [kind for kind, _ in key], "values": [_json(typed) for typed in key]}


DIGESTED: Sequence[tuple[str | None, Sequence[Typed]]] = [
    ("", [("bigint", 1)]),
    ("", [("bigint", 2)]),
    ("city=Oslo", [("bigint", 1)]),
    ("city=Z%C3%BCrich", [("string", "Zürich"), ("int", -1)]),
    (None, [("bigint", 1)]),
    (None, [("string", "Zürich"), ("int", -1)]),
    ("v2/day=2026-11-21", [("decimal(38,10)", Decimal("0.0000000128")), ("binary", b"\xff")]),
]


def digests_of_keys() -> dict[str, Any]:
    """64-bit digests of keys, and sets of them as a footprint holds them."""
    made, numbers = [], []
    for partition, key in DIGESTED:
        texts = [] if partition is None else [pa.array([partition])]
        number = int(key_digests([*texts, *(_column(typed) for typed in key)])[0])
        numbers.append(number)
        made.append({"partition": partition, **_key(key), "digest": f"{number:016x}"})
    data = b"".join(number.to_bytes(8, "little") for number in sorted(numbers))
    about = "Digests of keys as 16 hexadecimal digits; partition null: of a table whose keys move. inline: all of them as one set."
    return {"about": about, "keys": made, "set": {"count": len(numbers), "inline": base64.b64encode(data).decode()}}


# --------------------------------------------------------------------------------------------------------------------- digests

LENGTHS = (0, 1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 1024, 1025)


def digests_of_files() -> dict[str, Any]:
    """Digests of whole files and of footers, of bytes of every length at which XXH3 changes its way."""
    inputs = [bytes(at * 7 % 256 for at in range(length)) for length in LENGTHS]
    files = [{"hex": data.hex(), "digest": digest_of(data), "footer": footer_digest_of(data)} for data in [b"objcat", *inputs]]
    return {"about": "`digest` is that of a file of these bytes, `footer` that of a footer of these bytes.", "bytes": files}


def digests_of_objects() -> dict[str, Any]:
    """Objects with a digest of their own bytes: true ones and damaged ones."""
    blank = '{"format": 1, "slot": 3, "note": "Zürich", "digest": "' + "0" * DIGEST_CHARACTERS + '"}'
    digest = hashlib.sha256(blank.encode()).hexdigest()
    true = blank.replace("0" * DIGEST_CHARACTERS, digest)
    texts = [(true, True), (true.replace('"slot": 3', '"slot": 4'), False), (true.replace("note", digest), False), ('{"format": 1}', True)]
    about = "The UTF-8 bytes of `text` are an object; `intact` says what its own digest says of it."
    return {"about": about, "objects": [{"text": text, "intact": intact} for text, intact in texts]}


# ------------------------------------------------------------------------------------------------------------------ partitions

LONG = "Straße/" * 40
FIELDS: Sequence[tuple[str, str, int, Sequence[Any]]] = [
    ("boolean", "identity", 0, (True, False, None)),
    ("bigint", "identity", 0, (0, -7, 2**63 - 1, None)),
    ("decimal(5,2)", "identity", 0, (Decimal("-0.50"), Decimal("0.00"), Decimal("123.40"))),
    ("float", "identity", 0, (0.1, 1.5, -0.0)),
    ("double", "identity", 0, (0.1, 1e-5, 1e-4, 1e15, 1e16, -2.0, -0.0, NAN, math.inf, -math.inf)),
    ("date", "identity", 0, (dt.date(2026, 11, 20), dt.date(1, 1, 1))),
    ("timestamp", "identity", 0, (_UTC,)),
    ("timestamp_ntz", "identity", 0, (NINE, zoneless(1969, 12, 31, 23, 59, 59, 999_999))),
    ("binary", "identity", 0, (b"", b"\x00\xff", bytes(range(100)))),
    ("string", "identity", 0, ("", "Rome", "Zürich", "a/b=c", "_x", "__HIVE_DEFAULT_PARTITION__", "x.", ".", "~", "a b%", None)),
    ("string", "identity", 0, (LONG, "a" * 180, "a" * 181, "ü" * 30, "ü" * 31, "_" + "b" * 180, "a" * 180 + ".")),
    ("date", "year", 0, (dt.date(2026, 11, 20), dt.date(1969, 12, 31))),
    ("timestamp", "month", 0, (_UTC, dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC))),
    ("timestamp_ntz", "day", 0, (NINE, zoneless(1969, 12, 31, 23))),
    ("timestamp", "hour", 0, (_UTC, dt.datetime(1969, 12, 31, 23, 59, tzinfo=dt.UTC), None)),
    ("int", "truncate", 10, (0, 9, 10, -1, -10, -11, -(2**31))),
    ("tinyint", "truncate", 100, (-128, 127)),
    ("string", "truncate", 2, ("", "a", "abc", "Zürich", "東京都", "🚕🚕🚕", None)),
]
TOGETHER: Sequence[tuple[str, Sequence[tuple[str, str, int, Any]]]] = [
    ("", [("timestamp", "day", 0, _UTC), ("string", "identity", 0, "Oslo")]),
    ("v2", [("string", "identity", 0, "Oslo")]),
    ("", [(kind, "identity", 0, value) for kind, value in (("string", "x" * 170), ("string", None), ("string", "y"), ("int", 5))]),
]


def partitions() -> dict[str, Any]:
    """The partition of rows, for every transform, type and escape; long values are cut."""
    rows = [("", [(kind, transform, width, value)]) for kind, transform, width, values in FIELDS for value in values]
    made = [_partition(mark, fields) for mark, fields in [*rows, *TOGETHER]]
    about = "The partition of a row with these values. cut_of: the bytes, in hexadecimal, whose SHA-256 a cut value ends with."
    return {"about": about, "rows": made}


def _partition(mark: str, fields: Sequence[tuple[str, str, int, Any]]) -> dict[str, Any]:
    columns = [pa.field(f"f{at}", arrow_type(kind)) for at, (kind, *_) in enumerate(fields)]
    schema = schema_from_arrow(pa.schema(columns))
    spec = Partitioning(
        fields=tuple(
            PartitionField(name=f"f{at}", column=at + 1, transform=transform, width=width)
            for at, (_, transform, width, _) in enumerate(fields)
        ),
        mark=mark,
    )
    rows = pa.table([_column((kind, value)) for kind, _, _, value in fields], schema=pa.schema(columns))
    text = partitions_of(spec, (), (), schema, rows).texts[0]
    made = {
        "mark": mark,
        "fields": [
            {"name": f"f{at}", "type": kind, "transform": transform, "width": width, "value": _json((kind, value))}
            for at, (kind, transform, width, value) in enumerate(fields)
        ],
        "partition": text,
    }
    cut = [value for kind, transform, _, value in fields if "~" in text and transform == "identity" and value is not None]
    found = [_raw(value) for value in cut if f"~{hashlib.sha256(_raw(value)).hexdigest()[:32]}" in text]
    return made | ({"cut_of": found[0].hex()} if found else {})


def _raw(value: Any) -> bytes:
    """The UTF-8 bytes of a value's text, before any escape."""
    return (value.hex() if isinstance(value, bytes) else str(value)).encode()


# ---------------------------------------------------------------------------------------------------------------------- bounds

LAST = chr(0x10FFFF)
BOUNDED: Sequence[tuple[str, Sequence[Any]]] = [
    ("boolean", (True, False, None)),
    ("bigint", (5, -7, None)),
    ("bigint", (None, None)),
    ("double", (1.5, NAN, -2.0)),
    ("double", (NAN,)),
    ("double", (0.0,)),
    ("double", (-0.0, 1.0)),
    ("double", (math.inf, 1.0)),
    ("decimal(5,2)", (Decimal("-0.50"), Decimal("12.30"))),
    ("decimal(38,0)", (Decimal(-129), Decimal(10**37))),
    ("date", (dt.date(1969, 12, 31), dt.date(2026, 11, 20))),
    ("timestamp", (_UTC, None)),
    ("timestamp_ntz", (zoneless(1969, 12, 31, 23), NINE)),
    ("string", ("", "Zürich", "東京")),
    ("string", ("a" * 64, "b" * 64)),
    ("string", ("a" * 65, "b" * 65)),
    ("string", ("a" * 63 + "ü", "b" * 63 + "ü")),
    ("string", ("a", "b" * 63 + LAST + "c")),
    ("string", ("a", LAST * 17)),
    ("string", ("a", "b" * 61 + "\ud7ff" + "c")),
    ("binary", (b"", b"\x00\xff")),
    ("binary", (b"a" * 65, b"b" * 65)),
    ("binary", (b"a", b"b" * 62 + b"\xff" * 3)),
    ("binary", (b"a", b"\xff" * 65)),
]


def bounds() -> dict[str, Any]:
    """What an entry says of a column that holds some values."""
    about = "bounds: what objcat writes of a column with these values. Other bounds are right too if no value is outside of them."
    return {
        "about": about,
        "columns": [
            {"type": kind, "values": [_json((kind, value)) for value in values], "bounds": _bounds(kind, values)}
            for kind, values in BOUNDED
        ],
    }


def _bounds(kind: str, values: Sequence[Any]) -> Any:
    schema: TableSchema = schema_from_arrow(pa.schema([("value", arrow_type(kind))]))
    physical = schema.to_arrow_physical()
    sink = io.BytesIO()
    pq.write_table(pa.table([pa.array(values, arrow_type(kind))], schema=physical), sink, store_schema=False)
    return json.loads(json.dumps(bounds_of(pq.read_metadata(sink), physical)[1]))


# ----------------------------------------------------------------------------------------------------------------------- names

NAMES = ("trips", "Trips", "STRASSE", "Straße", "é", "e\u0301", "É", "İ", "ǆ", "Ω", "city.Plätze", "ﬁ", "東京")


def names() -> dict[str, Any]:
    """Comparison keys of names: two names are one if theirs are equal."""
    made = [{"name": name, "comparison_key": case_folded(name)} for name in NAMES]
    return {"about": "The comparison key of a name. Equal ones are one name.", "names": made}

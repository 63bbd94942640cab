"""Kinds of damage: each makes other bytes of an object, by a seed; None where it does not fit."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from objcat.timeline.json_objects import DIGEST_CHARACTERS
from tests.damage.world import Target, pristine, targets

Made = bytes | None
GONE = b"\x00gone"
"""Stands for a delete."""
Damage = Callable[[random.Random, Target, bytes], Made]


def _bit(rng: random.Random, _: Target, data: bytes) -> Made:
    if not data:
        return None
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _cut(rng: random.Random, _: Target, data: bytes) -> Made:
    return data[: rng.randrange(1, len(data))] if len(data) > 1 else None


def _longer(rng: random.Random, _: Target, data: bytes) -> Made:
    return data + rng.randbytes(rng.choice([1, 8, 4096]))


def _zeros(rng: random.Random, _: Target, data: bytes) -> Made:
    at, length = rng.randrange(max(1, len(data))), rng.choice([1, 16, len(data)])
    found = data[:at] + bytes(min(length, len(data) - at)) + data[at + length :]
    return found if found != data else None


def _swapped(rng: random.Random, target: Target, data: bytes) -> Made:
    """The bytes of another object of the class."""
    objects, _ = pristine()
    others = [objects[other.key] for other in targets() if other.kind == target.kind and objects[other.key] != data]
    alike = [other for other in others if len(other) == len(data)]
    return rng.choice(alike or others) if others else None


def _older(_: random.Random, target: Target, __: bytes) -> Made:
    return target.older


def _not_utf8(rng: random.Random, _: Target, data: bytes) -> Made:
    at = rng.randrange(max(1, len(data)))
    return data[:at] + b"\xff\xfe" + data[at + 2 :]


def _nested(rng: random.Random, _: Target, data: bytes) -> Made:
    value = _json(data)
    deep = b"[" * 5000 + b"]" * 5000
    if value is None:
        return deep
    return json.dumps(value)[:-1].encode() + b', "' + rng.choice([b"summary", b"changes", b"payload", b"unknown"]) + b'": ' + deep + b"}"


# ---- JSON ------------------------------------------------------------------------------------------------------------


def _json(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) else None


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every field and item: what holds it, and its name or number."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        at = waiting.pop()
        names = list(at) if isinstance(at, dict) else list(range(len(at)))
        found += [(at, name) for name in names]
        waiting += [at[name] for name in names if isinstance(at[name], dict | list)]
    return found


def _field(change: Callable[[random.Random, Any, Any], bool], *, sealed: bool) -> Damage:
    """Change a field. sealed: with the digest of before, as damage would leave it; else with a new one, as an owner may."""

    def damage(rng: random.Random, _: Target, data: bytes) -> Made:
        value = _json(data)
        if value is None:
            return None
        digest = value.pop("digest", None)
        places = _places(value)
        for _attempt in range(20):
            holder, name = rng.choice(places)
            if change(rng, holder, name):
                break
        else:
            return None
        if digest is None:
            return None if not sealed else json.dumps(value, indent=1).encode()
        if sealed:
            return json.dumps(value | {"digest": digest}, indent=1).encode()
        return resealed(value)

    return damage


def resealed(value: dict[str, Any]) -> bytes:
    zeros = "0" * DIGEST_CHARACTERS
    data = json.dumps(value | {"digest": zeros}, indent=1).encode()
    return data.replace(zeros.encode(), hashlib.sha256(data).hexdigest().encode())


def _removed(_: random.Random, holder: Any, name: Any) -> bool:
    del holder[name]
    return True


def _null(_: random.Random, holder: Any, name: Any) -> bool:
    if holder[name] is None:
        return False
    holder[name] = None
    return True


def _negated(_: random.Random, holder: Any, name: Any) -> bool:
    if type(holder[name]) is not int:
        return False
    holder[name] = -holder[name] - 1
    return True


def _huge(rng: random.Random, holder: Any, name: Any) -> bool:
    if type(holder[name]) is not int:
        return False
    holder[name] = rng.choice([2**31, 2**40, 2**63 - 1, 2**63, 2**64, 10**40])
    return True


def _near(rng: random.Random, holder: Any, name: Any) -> bool:
    """Another number that may be right."""
    if type(holder[name]) is not int:
        return False
    holder[name] += rng.choice([-1, 1, 2, 16])
    return True


def _retyped(rng: random.Random, holder: Any, name: Any) -> bool:
    old = holder[name]
    holder[name] = rng.choice([v for v in ("x", 7, 1.5, True, [], {}, [None], {"a": 1}) if type(v) is not type(old)])
    return True


def _other_text(rng: random.Random, holder: Any, name: Any) -> bool:
    if not isinstance(holder[name], str) or not holder[name]:
        return False
    holder[name] = rng.choice(
        ["", "../" + holder[name], "/etc/passwd", "s3://b/k", holder[name][:-1], holder[name][::-1], "\x00", "é" * 300]
    )
    return True


def _renamed(_: random.Random, holder: Any, name: Any) -> bool:
    if not isinstance(name, str):
        return False
    holder[f"{name}_"] = holder.pop(name)
    return True


def _doubled(rng: random.Random, _: Target, data: bytes) -> Made:
    """A field is there twice, with two values."""
    value = _json(data)
    if value is None:
        return None
    name = rng.choice(list(value))
    text = json.dumps(value, indent=1)
    return (text[:-2] + f',\n "{name}": {rng.choice(["null", "7", "{}", "[]"])}\n}}').encode()


# ---- Parquet ---------------------------------------------------------------------------------------------------------


def _parquet(change: Callable[[random.Random, pa.Table], pa.Table | None]) -> Damage:
    def damage(rng: random.Random, _: Target, data: bytes) -> Made:
        try:
            table = pq.read_table(io.BytesIO(data))
        except pa.ArrowException:
            return None
        changed = change(rng, table)
        if changed is None:
            return None
        sink = io.BytesIO()
        pq.write_table(changed, sink, compression="zstd")
        return sink.getvalue()

    return damage


def _other_type(rng: random.Random, table: pa.Table) -> pa.Table | None:
    numbers = [i for i, field in enumerate(table.schema) if not pa.types.is_nested(field.type)]
    number = rng.choice(numbers)
    return table.set_column(number, table.schema.names[number], pa.array([f"{n}" for n in range(table.num_rows)]))


def _wider(rng: random.Random, table: pa.Table) -> pa.Table | None:
    numbers = [i for i, field in enumerate(table.schema) if pa.types.is_int32(field.type) or pa.types.is_int64(field.type)]
    if not numbers:
        return None
    number = rng.choice(numbers)
    return table.set_column(number, table.schema.names[number], table.column(number).cast(pa.float64()))


def _dropped(rng: random.Random, table: pa.Table) -> pa.Table:
    return table.drop_columns([rng.choice(table.schema.names)])


def _reordered(rng: random.Random, table: pa.Table) -> pa.Table:
    names = list(table.schema.names)
    rng.shuffle(names)
    return table.select(names)


def _fewer(rng: random.Random, table: pa.Table) -> pa.Table | None:
    return table.slice(0, rng.randrange(table.num_rows)) if table.num_rows else None


def _more(rng: random.Random, table: pa.Table) -> pa.Table:
    return pa.concat_tables([table] * rng.choice([2, 40]))


def _statistics(rng: random.Random, _: Target, data: bytes) -> Made:
    """A byte of the footer, in which the statistics are."""
    if data[-4:] != b"PAR1":
        return None
    length = int.from_bytes(data[-8:-4], "little")
    at = len(data) - 8 - rng.randrange(1, max(2, min(length, len(data) - 8)))
    return data[:at] + bytes([(data[at] + rng.randrange(1, 256)) % 256]) + data[at + 1 :]


def _line(rng: random.Random, _: Target, data: bytes) -> Made:
    """Of a segment: one line with other digits, or twice."""
    lines = data.split(b"\n")
    if len(lines) < 2 or not re.match(rb"\d{8}T", data):
        return None
    number = rng.randrange(len(lines) - 1)
    old = lines[number]
    lines[number] = rng.choice(
        [lines[0], old.replace(b"committed", b"fenced   "), old[:-3] + b"7" + old[-2:], old.replace(b" 000", b" 001", 1)]
    )
    return b"\n".join(lines)


KINDS: Mapping[str, Damage] = {
    "bit flipped": _bit,
    "cut": _cut,
    "bytes appended": _longer,
    "zeros": _zeros,
    "emptied": lambda _, __, ___: b"",
    "deleted": lambda _, __, ___: GONE,
    "another object of its class": _swapped,
    "an older version": _older,
    "no UTF-8": _not_utf8,
    "nested 5,000 deep": _nested,
    "field removed": _field(_removed, sealed=True),
    "field null": _field(_null, sealed=True),
    "number negated": _field(_negated, sealed=True),
    "number huge": _field(_huge, sealed=True),
    "number another": _field(_near, sealed=True),
    "field of another type": _field(_retyped, sealed=True),
    "text another": _field(_other_text, sealed=True),
    "field renamed": _field(_renamed, sealed=True),
    "field doubled": _doubled,
    "column of another type": _parquet(_other_type),
    "column of floats": _parquet(_wider),
    "column dropped": _parquet(_dropped),
    "columns reordered": _parquet(_reordered),
    "rows fewer": _parquet(_fewer),
    "rows more": _parquet(_more),
    "statistics another": _statistics,
    "line another": _line,
    "forged: field removed": _field(_removed, sealed=False),
    "forged: field null": _field(_null, sealed=False),
    "forged: number negated": _field(_negated, sealed=False),
    "forged: number huge": _field(_huge, sealed=False),
    "forged: number another": _field(_near, sealed=False),
    "forged: field of another type": _field(_retyped, sealed=False),
    "forged: text another": _field(_other_text, sealed=False),
}
"""The last ones have a digest that fits, which damage has not, and whoever may write to the bucket can make: of them it is asked that they
end, and how, but not that rows are the same."""
FORGED = "forged: "

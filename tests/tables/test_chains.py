"""Long chains in filters mean what short ones do, for rows and for what is left out by bounds; and become lookups where they can."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import sqlglot

import objcat
from fileio.memory import MemoryBackend
from fileio.store import FileIO
from fileio.testing.env import FakeEnv
from objcat.predicate.in_lists import TERMS_MIN, gathered

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("f", pa.float64()), ("n", pa.int32())])
NAN = float("nan")
ROWS: list[dict[str, Any]] = [
    {"id": key, "name": name, "f": f, "n": n}
    for key, (name, f, n) in enumerate(itertools.product(["a", "b", None], [0.0, -0.0, 1.5, NAN, None], [1, 2, None]))
]
_stores = itertools.count()


@pytest.fixture
def table() -> objcat.Table:
    lake = objcat.Lake(FileIO(MemoryBackend(f"chains-{next(_stores)}"), env=FakeEnv()))
    made = lake.create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4))
    made.insert(ROWS[::2])
    made.upsert(ROWS[1::2])
    return made


def found(table: objcat.Table, where: str) -> set[int]:
    scan = table.scan(where=where, columns=["id"])
    ids = scan.to_arrow().column("id").to_pylist()
    assert len(ids) == len(set(ids)) == table.scan(where=where).count(), where
    return set(ids)


def of(row: dict[str, Any], name: str, other: float | str) -> bool | None:
    return None if row[name] is None else bool(row[name] == other)


def any_of(answers: list[bool | None]) -> bool | None:
    return True if True in answers else None if None in answers else False


NUMBERS = list(range(100, 100 + 2 * TERMS_MIN))
ORS: dict[str, tuple[str, Callable[[dict[str, Any]], bool | None]]] = {
    "numbers": (" or ".join(f"id = {n}" for n in [3, *NUMBERS]), lambda row: row["id"] == 3),
    "literal first": (" or ".join(f"{n} = id" for n in [3, *NUMBERS]), lambda row: row["id"] == 3),
    "text": (" or ".join(f"name = '{n}'" for n in ["a", *NUMBERS]), lambda row: of(row, "name", "a")),
    "zeros": (" or ".join(f"f = {n}" for n in [0, *NUMBERS]), lambda row: of(row, "f", 0)),
    "negative zeros": (" or ".join(f"f = {n}" for n in ["-0.0", *NUMBERS]), lambda row: of(row, "f", 0)),
    "numbers that the type lacks": (" or ".join(f"n = {n}.5" for n in NUMBERS) + " or n = 2.0", lambda row: of(row, "n", 2)),
    "a null": (" or ".join(f"n = {n}" for n in NUMBERS) + " or n = null or n = 1", lambda row: True if row["n"] == 1 else None),
    "two columns": (
        " or ".join(f"n = {n} or f = {n}.25 or `name` = 'x{n}'" for n in NUMBERS) + " or n = 1 or f = 1.5 or name = 'b'",
        lambda row: any_of([of(row, "n", 1), of(row, "f", 1.5), of(row, "name", "b")]),
    ),
    "pairs": (
        " or ".join(f"(n = {n} and name = 'a')" for n in NUMBERS) + " or n = 1 and name = 'a'",
        lambda row: True if row["n"] == 1 and row["name"] == "a" else False if row["name"] == "b" or row["n"] == 2 else None,
    ),
}


@pytest.mark.parametrize("what", ORS)
def test_a_long_or_and_its_opposite(table: objcat.Table, what: str) -> None:
    where, holds = ORS[what]
    answers = {row["id"]: holds(row) for row in ROWS}
    true, false = ({key for key, answer in answers.items() if answer is wanted} for wanted in (True, False))
    assert true
    assert found(table, where) == true
    assert found(table, f"not ({where})") == false
    table.maintenance.compact()
    assert found(table, where) == true
    assert found(table, f"not ({where})") == false


@pytest.mark.parametrize("seed", range(4))
def test_a_chain_finds_what_its_terms_find(table: objcat.Table, seed: int) -> None:
    chance = random.Random(seed)
    literals = {"id": range(-5, 200), "n": range(-2, 40), "f": ["0.0", "1.5", "2", "-0.0"], "name": ["'a'", "'b'", "'c'", "''"]}

    def term() -> str:
        name = chance.choice([*literals])
        return f"{name} {chance.choice(['=', '<>', '=', '<>', '<', '>='])} {chance.choice([*literals[name]])}"

    terms = [term() for _ in range(90)]
    each = {one: found(table, one) for one in terms}
    assert found(table, " or ".join(terms)) == set().union(*each.values())
    few = chance.sample([one for one in terms if "<>" in one], 20)
    assert found(table, " and ".join(few)) == set(range(len(ROWS))).intersection(*(each[one] for one in few))


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        (" OR ".join(f"x = {n}" for n in range(TERMS_MIN)), f"x IN ({', '.join(map(str, range(TERMS_MIN)))})"),
        (" AND ".join(f"x <> {n}" for n in range(TERMS_MIN)), f"NOT x IN ({', '.join(map(str, range(TERMS_MIN)))})"),
        (" OR ".join(f"x = {n}" for n in range(TERMS_MIN - 1)), None),
        (" AND ".join(f"x = {n}" for n in range(TERMS_MIN)), None),
        (" OR ".join(f"x = y{n}" for n in range(TERMS_MIN)), None),
        (" OR ".join(f"{name} = {n}" for n in range(TERMS_MIN // 2) for name in ("x", "`X`")), None),
        (
            "y = 1 AND (" + " OR ".join(f"x = {n}" for n in range(TERMS_MIN)) + ")",
            f"y = 1 AND (x IN ({', '.join(map(str, range(TERMS_MIN)))}))",
        ),
    ],
)
def test_what_becomes_a_lookup(where: str, wanted: str | None) -> None:
    tree = gathered(sqlglot.parse_one(where, dialect="spark", into=sqlglot.exp.Condition))
    assert tree.sql(dialect="spark") == (where if wanted is None else wanted)

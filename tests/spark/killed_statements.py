"""A driver of its own: `python -m tests.spark.killed_statements DIRECTORY PLAN`. Runs statements of `spark.sql` that are not done.

PLAN is JSON: `kill`, the statement that does not end; `point` and `request`, see `killed_driver.die_at`. What was acknowledged is in
`journal`. Each statement leaves another state of the lake, so the state says which ones are done.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

import objcat
import objcat.spark
from objcat.spark import frames
from tests.spark.killed_driver import Rows, die_at
from tests.spark.native_driver import QUIET

TABLE, MADE = "city.t", "city.made"


@dataclass(frozen=True, slots=True)
class State:
    """Rows of the lake, `v` by `id`. `made`: of the table that CTAS makes, None before."""

    rows: Rows = field(default_factory=dict)
    made: Rows | None = None


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, and what it makes of a state."""

    text: str
    then: Callable[[State], State]


STATEMENTS = {
    "insert": Statement(
        "INSERT INTO lake.city.t SELECT id, id % 2, id FROM range(300)", lambda was: State({i: i for i in range(300)}, was.made)
    ),
    "update": Statement(
        "UPDATE lake.city.t SET v = v + 1 WHERE id >= 100",
        lambda was: State({i: v + (i >= 100) for i, v in was.rows.items()}, was.made),
    ),
    "merge": Statement(
        "MERGE INTO lake.city.t t USING (SELECT id, id % 2 AS p FROM range(200, 500)) s ON t.id = s.id AND t.p = s.p "
        "WHEN MATCHED THEN UPDATE SET v = t.v + 1000 WHEN NOT MATCHED THEN INSERT (id, p, v) VALUES (s.id, s.p, 0)",
        lambda was: State(was.rows | {i: was.rows[i] + 1000 if i in was.rows else 0 for i in range(200, 500)}, was.made),
    ),
    "ctas": Statement(
        "CREATE TABLE lake.city.made TBLPROPERTIES ('key' = 'id') AS SELECT id, id * 2 AS v FROM lake.city.t WHERE id < 100",
        lambda was: State(was.rows, {i: 2 * i for i in was.rows if i < 100}),
    ),
    "delete": Statement(
        "DELETE FROM lake.city.t WHERE v < 50", lambda was: State({i: v for i, v in was.rows.items() if v >= 50}, was.made)
    ),
    "insert_overwrite": Statement(
        "INSERT OVERWRITE lake.city.t PARTITION (p = 0) SELECT id, 7 FROM range(0, 100, 2)",
        lambda was: State({i: v for i, v in was.rows.items() if i % 2} | dict.fromkeys(range(0, 100, 2), 7), was.made),
    ),
}
"""By name, in the order in which they run."""


def states() -> list[State]:
    """The states of the lake, from the empty table on: one more than there are statements."""
    found = [State()]
    for statement in STATEMENTS.values():
        found.append(statement.then(found[-1]))
    return found


def state_of(lake: objcat.Lake) -> State:
    """What the lake holds."""

    def rows(name: str) -> Rows:
        found = lake.table(name).scan(columns=["id", "v"]).to_arrow()
        ids: list[int] = found["id"].to_pylist()
        assert len(set(ids)) == len(ids)
        return dict(zip(ids, found["v"].to_pylist(), strict=True))

    return State(rows(TABLE), rows(MADE) if MADE in lake.tables() else None)


def main(directory: str, plan: str) -> None:
    told = json.loads(plan)
    builder = SparkSession.builder.master("local[2]").appName("killed")
    for name, value in {**QUIET, "spark.sql.warehouse.dir": f"{directory}/warehouse"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    frames.ROWS_MAX = 0  # Small frames go through jobs too.
    objcat.spark.configure(spark, f"{directory}/lake")
    done = states().index(state_of(objcat.connect(f"{directory}/lake")))
    for name in list(STATEMENTS)[done:]:
        if told["kill"] == name:
            die_at(told["point"], told.get("request"))
        spark.sql(STATEMENTS[name].text)
        with Path(directory, "journal").open("a") as journal:
            journal.write(f"{name}\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

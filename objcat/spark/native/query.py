"""Queries over our relations, built in Python and passed to Spark in one call.

A call into the JVM takes a millisecond or more, and Spark analyses whatever a call returns, with everything below it: a merge made of
frames took a tenth of a second before it began. Here it is a tree of plain values; `ObjcatFileIndex.java` builds the plan, which is
analysed once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType

from objcat.spark.native.janino import compiled

JoinType = Literal["inner", "left_anti", "left_semi", "full_outer"]
Hint = Literal["broadcast", "shuffle_hash", "merge"]
Expressions = Sequence[str | Mapping[str, str]]
"""Expressions of a projection: SQL texts, each a name, a star, or with a name by AS; and results of `cast`."""
_COLUMN = re.compile(r"(c\d+|_\w+|`(?:[^`]|``)+`)(?: AS (\w+|`(?:[^`]|``)+`))?", re.ASCII)
"""A column, plain or renamed, by names that have no other meaning in SQL."""


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """Lazy rows. One object is one subtree of the plan, however often it is used.

    Attributes:
        said: the operation for Spark, as `Relations.query` reads it.
        of: the queries whose rows it takes.
        files: of a relation, see `relation.py`.
        frame: rows of an existing frame.
        has_bits: of a relation, whether the rule of `ObjcatBits.java` may apply.
        is_sorted: of a relation, whether the strategy of `ObjcatOrder.java` may apply.
    """

    said: Mapping[str, Any]
    of: tuple[Query, ...] = ()
    files: bytes = field(default=b"", repr=False)
    frame: DataFrame | None = None
    has_bits: bool = False
    is_sorted: bool = False

    def shaped(self, *steps: str | Expressions) -> Query:
        """Filters (SQL texts) and projections, applied in order."""
        return (
            Query({"op": "shaped", "steps": [step if isinstance(step, str) else [*map(_told, step)] for step in steps]}, (self,))
            if steps
            else self
        )

    def selected(self, expressions: Iterable[str | Mapping[str, str]]) -> Query:
        """A projection."""
        return self.shaped(list(expressions))

    def where(self, condition: str) -> Query:
        """A filter, as SQL text."""
        return self.shaped(condition)

    def outside(self, group: str, number: str, listed: Mapping[int, Sequence[int]]) -> Query:
        """A filter: the rows whose column `number` is not listed for the value of their column `group`. `listed`: not empty."""
        step = {"group": group, "number": number, "groups": [[value, list(numbers)] for value, numbers in listed.items()]}
        return Query({"op": "shaped", "steps": [step]}, (self,))

    def joined(self, other: Query, on: str, how: JoinType, hint: Hint) -> Query:
        """A join with `other`. `on`: SQL. `hint`: for `other`."""
        return Query({"op": "joined", "on": on, "how": how, "hint": hint}, (self, other))

    def grouped(self, names: Sequence[str], aggregates: Sequence[str]) -> Query:
        """Groups by names, with SQL texts of aggregates, each with a name by AS."""
        return Query({"op": "grouped", "names": list(names), "aggregates": list(aggregates)}, (self,))

    def dealt(self, count: int, columns: Sequence[str], *, for_layout: bool = False) -> Query:
        """Rows distributed to buckets by the hash of columns. `for_layout`: where a query uses the layout; elsewhere `Layout` removes the
        exchange."""
        return Query({"op": "dealt", "count": count, "columns": list(columns), "for_layout": for_layout}, (self,))

    def to_frame(self, spark: SparkSession) -> DataFrame:
        """The rows as a Spark frame. Nothing is read."""
        steps: list[dict[str, Any]] = []
        files = bytearray()
        jvm: Any = spark._jvm
        parts = list(self._parts())
        frames = jvm.java.util.ArrayList() if any(part.frame is not None for part in parts) else None
        rules = compiled(spark, "ObjcatBits", "Rules") if any(part.has_bits for part in parts) else None
        order = compiled(spark, "ObjcatOrder", "Rules", target=8) if any(part.is_sorted for part in parts) else None
        self._tell(steps, files, frames, {})
        relations = compiled(spark, "ObjcatFileIndex", "Relations")
        made = relations.query(spark._jsparkSession, bytes(files), json.dumps(steps), frames, rules, order)
        return DataFrame(made, spark)

    def _parts(self) -> Iterator[Query]:
        """This query and those below it, as often as they are used."""
        yield self
        for one in self.of:
            yield from one._parts()

    def _tell(self, steps: list[dict[str, Any]], files: bytearray, frames: Any, told: dict[int, int]) -> int:
        """Add the steps of this query, those below it first; returns the number of its last step."""
        if id(self) in told:
            return told[id(self)]
        step = {**self.said, "of": [one._tell(steps, files, frames, told) for one in self.of]}
        if self.files:
            step["files"] = [len(files), len(files) + len(self.files)]
            files += self.files
        if self.frame is not None:
            frames.add(self.frame._jdf)
        steps.append(step)
        told[id(self)] = len(steps) - 1
        return told[id(self)]


def _told(expression: str | Mapping[str, str]) -> str | Mapping[str, str]:
    """A column by its names, because Spark's parser takes longer for a few of them than all else that makes a frame."""
    found = _COLUMN.fullmatch(expression) if isinstance(expression, str) else None
    if found is None:
        return expression
    texts = [text[1:-1].replace("``", "`") if text[0] == "`" else text for text in found.groups() if text is not None]
    return dict(zip(("column", "name"), texts, strict=False))


def union(queries: Sequence[Query]) -> Query:
    """All rows of queries with the same columns."""
    return queries[0] if len(queries) == 1 else Query({"op": "union"}, tuple(queries))


def of_frame(frame: DataFrame) -> Query:
    """The rows of a frame."""
    return Query({"op": "frame"}, frame=frame)


def cast(column: str, kind: DataType, name: str) -> Mapping[str, str]:
    """A column under another name and type that differs only in the names of nested fields."""
    return {"column": column, "type": kind.json(), "name": name}

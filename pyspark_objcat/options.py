"""The options of the format, typed. Spark hands all of them out as text, under keys in lower case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

import objcat
from fileio.config import nearest
from fileio.errors import InvalidConfig
from objcat.errors import InvalidInput, TableNotFound
from objcat.lake import find_table
from objcat.scan import Scan
from objcat.table.spec import MERGE_ON_READ

OWN = (
    "path",
    "as_of",
    "buckets",
    "columns",
    "key",
    "key_scope",
    "kind",
    "mode",
    "operation",
    "ordering",
    "partition_by",
    "schema_mode",
    "where",
)
OPERATIONS = ("upsert", "insert", "delete")


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """path: a lake, a slash and a name, or the place of a table by itself. own: of this format, those that were given. store: of the
    storage backend."""

    path: str
    own: Mapping[str, str]
    store: Mapping[str, str] = field(repr=False)

    def table(self) -> objcat.Table:
        """The table, opened. Raises TableNotFound, and InvalidConfig for an option that neither the format nor the store has."""
        try:
            return find_table(self.path, dict(self.store))
        except InvalidConfig as error:
            unknown = next((name for name in self.store if f"no option {name!r}" in str(error)), None)
            if unknown is None or nearest(unknown, OWN).startswith("valid ones"):
                raise
            raise InvalidInput(f"the format objcat has no option {unknown!r}: {nearest(unknown, OWN)}") from error

    def table_for(self, schema: pa.Schema) -> objcat.Table:
        """The table to write to; created when it is not there and the options say of which key. Raises as `table`."""
        try:
            return self.table()
        except TableNotFound as error:
            if "key" not in self.own:
                raise TableNotFound(
                    f"there is no table at {self.path}: create it, or say of which key it shall be with "
                    '.option("key", "column, column"); an empty text makes a table without a key'
                ) from error
        above, _, name = self.path.rstrip("/").rpartition("/")
        lake = objcat.connect(above, dict(self.store))
        own = self.own
        return lake.create_table(
            name,
            schema,
            key=_names(own["key"]) or None,
            ordering=own.get("ordering"),
            partition_by=_names(own.get("partition_by", "")),
            index=objcat.Bucket(_number(own["buckets"], "buckets")) if "buckets" in own else None,
            kind=own.get("kind", MERGE_ON_READ),
            key_scope=own.get("key_scope", "table"),
        )

    @property
    def operation(self) -> str | None:
        """What a write does; None: what the table takes, upserts where it has a key. Raises InvalidInput."""
        given = self.own.get("operation")
        if given is not None and given not in OPERATIONS:
            raise InvalidInput(f"the option operation={given!r} is not known: {nearest(given, OPERATIONS)}")
        return given

    def scan(self, columns: Sequence[str] | None = None) -> Scan:
        """What a read reads. columns: instead of those that the options name. Raises as `table` and as `Table.scan`."""
        table = self.table()
        if columns is None and "columns" in self.own:
            columns = _names(self.own["columns"])
        where = self.own.get("where")
        as_of = self.own.get("as_of")
        moment = None if as_of is None else _moment(as_of)
        return table.scan(where=where, columns=columns, as_of=moment, mode=self.own.get("mode", "snapshot"))


def parse_options(given: Mapping[str, str]) -> FormatOptions:
    """Raises InvalidInput without a path."""
    if "path" not in given:
        raise InvalidInput('the format objcat needs the place of a table: .load("s3://bucket/lake/name")')
    own = {name: value for name, value in given.items() if name in OWN}
    return FormatOptions(given["path"], own, {name: value for name, value in given.items() if name not in OWN})


def _names(text: str) -> list[str]:
    """Names between commas, of which those between parentheses do not count."""
    found, depth, begin = [], 0, 0
    for at, letter in enumerate(text + ","):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth <= 0:
            found.append(text[begin:at].strip())
            begin = at + 1
    return [name for name in found if name]


def _number(text: str, what: str) -> int:
    if not text.strip().isdigit():
        raise InvalidInput(f"the option {what}={text!r} is not a whole number: give one")
    return int(text)


def _moment(text: str) -> int | str:
    return int(text) if text.strip().isdigit() else text

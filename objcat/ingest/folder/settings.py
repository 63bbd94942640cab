"""`FolderSettings`: what `[source]` has for a folder, next to name and kind; and `FileRule`, which says what a file is by its path."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec
import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError

from fileio.errors import InvalidConfig
from objcat.errors import InvalidSql
from objcat.ingest.config import IngestConfig
from objcat.sourcefiles.layout import FileFormat, FileLayout
from objcat.sql.names import arrow_of

FileOrder: TypeAlias = Literal["modified", "name"]

SUFFIXES: dict[str, FileFormat] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".json": "json",
    ".json.gz": "json",
    ".jsonl": "json",
    ".jsonl.gz": "json",
    ".ndjson": "json",
    ".ndjson.gz": "json",
    ".avro": "avro",
}
"""The format of a file by the end of its name. Files with other names are not taken, whatever a pattern says."""
SETTLE_S = 10.0
"""How long a file of a file system has to stay as it is before it is taken. In an object store, an object is whole when it appears."""


class FileSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[source.files]]`: which files hold the rows of which table. The first one that matches a path is taken.

    Args:
        path: a regular expression for the whole path below `url`.
        table: the name of the table at the source, which routes match; `\\1` is the first group of the expression.
        columns: types by column, such as `decimal(10, 2)`. CSV and JSON need them. In Parquet and Avro they are all that is taken.
        path_columns: columns whose values are directories of the path, such as `day=2026-01-31`: names, whose values are text, or types by
            name. Other directories of this form give no column.
        delete_column: a column that says whether a row is a delete. It is not written.
        delete_values: values of that column that mean a delete, in lower case.
        delimiter: of CSV, one character.
        header: whether the first line of CSV has the names. Otherwise the columns come in the order of `columns`.
        nulls: texts without quotes that mean null in CSV.
    """

    path: str = "([^/]+)/.*"
    table: str = "\\1"
    columns: dict[str, str] = msgspec.field(default_factory=dict)
    path_columns: dict[str, str] | tuple[str, ...] = ()
    delete_column: str = ""
    delete_values: tuple[str, ...] = ("true", "d", "delete")
    delimiter: str = ","
    header: bool = True
    nulls: tuple[str, ...] = ("",)


class FolderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a folder.

    Args:
        url: of the folder: `s3://`, `gs://`, `az://`, `file:` or a path. A relative path counts from the file of the configuration.
        options: of its store.
        files: which file is of which table. When it is left out, the first directory of a path names the table.
        order: in which order the files of one look are taken: by the time of their last modification, or by their names.
        poll_s: seconds between two looks.
        settle_s: seconds that a file has to stay as it is before it is taken; 10 on a file system, else 0.
    """

    url: str
    options: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)
    files: tuple[FileSettings, ...] = (FileSettings(),)
    order: FileOrder = "modified"
    poll_s: float = 10.0
    settle_s: float | None = None


@dataclass(frozen=True, slots=True)
class FileRule:
    """A checked `[[source.files]]`.

    Args:
        settings: as they were given.
        pattern: of the path.
        columns: Arrow types by column.
        path_columns: the same of those that the path has.
    """

    settings: FileSettings
    pattern: re.Pattern[str]
    columns: dict[str, pa.DataType]
    path_columns: dict[str, pa.DataType] = field(default_factory=dict)

    @property
    def layout(self) -> FileLayout:
        """How a file of it is read."""
        own = self.settings
        return FileLayout(columns=self.columns, also=own.delete_column, delimiter=own.delimiter, header=own.header, nulls=own.nulls)


def folder_settings(config: IngestConfig) -> tuple[FolderSettings, tuple[FileRule, ...]]:
    """The settings of a folder, with its rules. Raises InvalidConfig."""
    found = config.settings(FolderSettings)
    found = msgspec.structs.replace(found, url=config.place(found.url))
    where = f"[source] in {config.path}"
    if not 0 < found.poll_s <= 86_400:
        raise InvalidConfig(f"{where}: poll_s has to be more than 0 and at most 86,400. Correct it.")
    if found.settle_s is not None and not 0 <= found.settle_s <= 86_400:
        raise InvalidConfig(f"{where}: settle_s has to be from 0 to 86,400. Correct it.")
    if not found.files:
        raise InvalidConfig(f"{where} has an empty `files`. Leave it out, or add [[source.files]].")
    rules = [_rule(one, where=f"[[source.files]] {at} in {config.path}") for at, one in enumerate(found.files, 1)]
    return found, tuple(rules)


def format_of(path: str) -> FileFormat | None:
    """The format of a file by its name; None for one that is not taken. Names that begin with a dot or an underscore are hidden."""
    parts = path.split("/")
    if any(part.startswith((".", "_")) for part in parts):
        return None
    name = parts[-1].lower()
    return next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), None)


def _rule(given: FileSettings, *, where: str) -> FileRule:
    try:
        pattern = re.compile(given.path)
    except re.error as error:
        raise InvalidConfig(f"{where}: path is not a regular expression ({error}). Correct it.") from None
    if any(int(found) > pattern.groups for found in re.findall(r"\\(\d)", given.table)):
        raise InvalidConfig(f"{where}: `table` names a group that `path` does not have. It has {pattern.groups}.")
    if len(given.delimiter) != 1:
        raise InvalidConfig(f"{where}: the delimiter has to be one character. Correct it.")
    if not given.header and not given.columns:
        raise InvalidConfig(f"{where}: without a header, `columns` has to say which columns there are, in their order. Add it.")
    if any(value != value.lower() for value in given.delete_values):
        raise InvalidConfig(f"{where}: delete_values are compared in lower case. Write them so.")
    columns = {name: _type(text, where=f"{where}: the column {name!r}") for name, text in given.columns.items()}
    told = given.path_columns if isinstance(given.path_columns, dict) else dict.fromkeys(given.path_columns, "string")
    in_path = {name: _type(text, where=f"{where}: the column {name!r}") for name, text in told.items()}
    both = [name for name in in_path if name in columns or name == given.delete_column]
    if both:
        raise InvalidConfig(f"{where} names {both[0]!r} in path_columns, and in columns or delete_column too. Leave one out.")
    nested = [name for name, data_type in in_path.items() if pa.types.is_nested(data_type)]
    if nested:
        raise InvalidConfig(
            f"{where}: the column {nested[0]!r} of path_columns is nested, and a directory has one value. Correct its type."
        )
    return FileRule(given, pattern, columns, in_path)


def _type(text: str, *, where: str) -> pa.DataType:
    try:
        return arrow_of(exp.DataType.build(text, dialect="spark"))
    except (SqlglotError, InvalidSql) as error:
        said = str(error) if isinstance(error, InvalidSql) else "it cannot be parsed"
        raise InvalidConfig(f"{where} has the type {text!r}: {said}. Correct it.") from None

"""Settings of a table whose files stay where other programs write them: `Files` as a user asks for it, `FilesInPlace` as it is stored.

Values only: nothing is listed or read here. `place_of` and `key_pattern` say which objects a pattern means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from objcat.common.validation import one_of
from objcat.errors import InvalidInput
from objcat.metadata.schema import Column

SOURCES = "_sources"
"""The first part of the path of a file in place. The second is the number of its source, the rest its key there."""
IN_PLACE_FEATURE = {"files_in_place": "0.1.0"}
"""The feature of an entry with files in place, or with a spec that has them. A reader that lacks it would look for them below the prefix
of the table, and take text for Parquet."""

PRECOMPUTED_FEATURE = {"precomputed_columns": "0.1.0"}
"""The feature of an entry with precomputed columns, or with a spec that asks for them. A writer that lacks it would not delete their files,
and would take them for files that nobody names."""

PRECOMPUTED_FIELDS_FEATURE = {"precomputed_fields": "0.1.0"}
"""The feature of an entry with precomputed fields of structs, or with a spec that asks for them. A writer that lacks it would lose them
from the spec, and drop bounds of fields from manifests."""

PROMOTED_FEATURE = {"promoted_files": "0.1.0"}
"""The feature of an entry with a promoted file, or with a spec that was promoted. A refresh of a client that lacks it would take such files
again."""

SourceFormat: TypeAlias = Literal["parquet", "orc", "avro", "csv", "json", "text"]
FORMATS: tuple[str, ...] = get_args(SourceFormat)
TEXT_FORMATS = ("csv", "json", "text")
"""Formats whose files have no types: their columns are declared, or inferred from the first files."""
OnBadRows: TypeAlias = Literal["fail", "permit"]
OnChange: TypeAlias = Literal["fail", "replace"]
OnMissing: TypeAlias = Literal["fail", "drop"]

MASKED_RANGES_MAX = 50_000
"""Ranges of masked rows that the entry of a file may hold."""


class FileSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A place with files.

    Args:
        url: of the store or folder that keys are relative to, without secrets.
        pattern: of the keys below it, see `key_pattern`.
    """

    url: str
    pattern: str


class FilesInPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored form of `Files`.

    Args:
        sources: where the files are. Entries name files by the number of the source.
        format: of every file, one of `FORMATS`.
        path_columns: ids of the columns whose values are in the path of a file.
        line: of text, the expression for a line.
        delimiter, header, nulls: of CSV.
        bad_rows, on_change, on_missing: as in `Files`.
        precompute: ids of columns that are to be precomputed.
        precompute_fields: ids of fields of structs that are to be precomputed, without the others of their columns.
        promoted: whether the table has its own files by now. The settings are those of older slots then.
    """

    sources: tuple[FileSource, ...]
    format: str
    path_columns: tuple[int, ...] = ()
    line: str = ""
    delimiter: str = ","
    header: bool = True
    nulls: tuple[str, ...] = ("",)
    bad_rows: str = "fail"
    on_change: str = "fail"
    on_missing: str = "fail"
    precompute: tuple[int, ...] = ()
    precompute_fields: tuple[int, ...] = ()
    promoted: bool = False


@dataclass(frozen=True, slots=True)
class Files:
    """Files that other programs write, as the rows of a table: no byte of them is copied.

    Args:
        patterns: URLs or paths with `*` (any text without a slash), `**` (any folders), `?` (one character) and `{name}` (as `*`, and its
            text is the value of the column of that name). They are in the same kind of store as the lake, and opened with its options.
        format: of every file. Files of csv, json (an object in each line) and text may be compressed, as their names end: `.gz`, `.bz2`,
            `.zst`, `.lz4`.
        path_columns: columns whose values are in the path: those of `{name}`, and of directories such as `day=2026-01-31`. Names, whose
            values are text, or types by name such as `{"day": "date"}`. The table is partitioned by them.
        line: of text: a regular expression for a whole line. Its named groups are the columns.
        delimiter: of CSV, one character.
        header: whether the first line of CSV has the names. Otherwise the columns come in the order of the schema, which has to be given.
        nulls: texts without quotes that mean null in CSV.
        bad_rows: "fail": a line that is no row, or a value that does not fit its column, is an error that names it, and its file is not
            taken. "permit": such a line is left out, such a value is null, and `refresh_files` counts the lines.
        on_change: what `refresh_files` does about a file that is another one than before: "fail", or "replace" its rows.
        on_missing: the same of a file that is gone: "fail", or "drop" its rows.
        precompute: columns, or fields of structs such as `payload.status`, that are kept in small Parquet files of the table besides. A
            query that needs only them opens no source file, and one with a filter on them opens only what holds matches.
            `table.alter.set_precomputed` changes them later.
    """

    patterns: str | Sequence[str]
    format: SourceFormat = field(kw_only=True)
    path_columns: Mapping[str, str] | Sequence[str] = field(kw_only=True, default=())
    line: str = field(kw_only=True, default="")
    delimiter: str = field(kw_only=True, default=",")
    header: bool = field(kw_only=True, default=True)
    nulls: Sequence[str] = field(kw_only=True, default=("",))
    bad_rows: OnBadRows = field(kw_only=True, default="fail")
    on_change: OnChange = field(kw_only=True, default="fail")
    on_missing: OnMissing = field(kw_only=True, default="fail")
    precompute: Sequence[str] = field(kw_only=True, default=())


def name_in_file(column: Column) -> str:
    """The name that a column had when it came to the table, under which files in place have it. A rename does not change it."""
    return column.physical.removesuffix(f"_{column.id}")


_SPECIAL = re.compile(r"[*?{\[]")
_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\{([^{}]*)\}|[^*?{]+|.")


def split_pattern(pattern: str) -> tuple[str, str]:
    """The folder of a pattern and what follows, cut before the first part with a special character.

    A pattern without one names one file. Raises InvalidInput for one that names no file.
    """
    scheme, found, rest = pattern.partition("://")
    parts = (rest if found else pattern).split("/")
    if parts[-1] == "":
        raise InvalidInput(f"{pattern!r} names a folder. Say which of its files are meant: {pattern + '**/*.parquet'!r}.")
    special = [at for at, part in enumerate(parts) if _SPECIAL.search(part)]
    cut = min([*special, len(parts) - 1])
    folder = "/".join(parts[:cut])
    if found and (not folder or (special and special[0] == 0)):
        raise InvalidInput(f"{pattern!r} names no bucket. Write {scheme}://bucket/folder/*.parquet.")
    return (f"{scheme}://{folder}" if found else folder or ("/" if pattern.startswith("/") else ".")), "/".join(parts[cut:])


def key_pattern(pattern: str) -> re.Pattern[str]:
    """The expression for keys that a pattern of a `FileSource` means. Raises InvalidInput for a pattern that does not parse."""
    made = []
    for found in _TOKEN.finditer(pattern):
        token, name = found[0], found[1]
        match token:
            case "**/":
                made.append("(?:.*/)?")
            case "**":
                made.append(".*")
            case "*":
                made.append("[^/]*")
            case "?":
                made.append("[^/]")
            case _ if name is not None:
                if not name.isidentifier():
                    raise InvalidInput(f"{{{name}}} in the pattern {pattern!r} is no name of a column. Use letters, digits and _.")
                made.append(f"(?P<{name}>[^/]+)")
            case "{":
                raise InvalidInput(f"A brace of the pattern {pattern!r} is not closed. Write {{name}}, or leave it out.")
            case _:
                made.append(re.escape(token))
    try:
        return re.compile("".join(made), re.DOTALL)
    except re.error as error:
        raise InvalidInput(f"The pattern {pattern!r} is not valid ({error}). Name each column once.") from error


def literal_beginning(pattern: str) -> str:
    """What every key of a pattern begins with."""
    found = _SPECIAL.search(pattern)
    return pattern if found is None else pattern[: found.start()]


def check_files(files: Files) -> tuple[str, ...]:
    """The patterns of `Files`, whose settings are checked. Raises InvalidInput."""
    given: Any = files.patterns
    patterns = (given,) if isinstance(given, str) else tuple(given)
    if not patterns or not all(isinstance(one, str) and one for one in patterns):
        raise InvalidInput("Files(...) needs patterns, such as 's3://logs/app/**/*.json.gz'. Give at least one.")
    one_of(files.format, FORMATS, what="format")
    one_of(files.bad_rows, get_args(OnBadRows), what="bad_rows")
    one_of(files.on_change, get_args(OnChange), what="on_change")
    one_of(files.on_missing, get_args(OnMissing), what="on_missing")
    if (files.format == "text") != bool(files.line):
        raise InvalidInput("line= is the expression for a line of format='text', which needs it, and only that. Give or leave out line=.")
    if files.line:
        try:
            groups = re.compile(files.line).groupindex
        except re.error as error:
            raise InvalidInput(f"line={files.line!r} is not a regular expression ({error}). Correct it.") from error
        if not groups:
            raise InvalidInput(f"line={files.line!r} has no named group, so there are no columns. Write (?P<name>...) for each.")
    delimiter: Any = files.delimiter
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise InvalidInput(f"delimiter={files.delimiter!r} is not one character. Correct it.")
    return patterns

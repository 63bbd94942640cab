"""`objcat create-in-place`, `refresh-files`, `precompute` and `promote`: what is done with the files of a table in place."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from objcat.cli.common import Json, Option, TableUrl, lake_and_name, open_table, parse_option_arguments
from objcat.cli.output import progress, say, say_json
from objcat.errors import InvalidInput
from objcat.metadata.column_parts import precomputed_names
from objcat.metadata.files_text import path_columns_of
from objcat.metadata.in_place import FORMATS, Files
from objcat.sql.names import columns_of_text

Patterns = Annotated[
    list[str], typer.Argument(help="URLs or paths with *, **, ? and {column}, such as 's3://logs/app/**/*.json.gz'.", metavar="PATTERNS")
]
PathColumns = Annotated[
    list[str] | None,
    typer.Option("--path-column", help="A column of the path, with its type or without: 'day date'. You may repeat it."),
]


def create_in_place(  # noqa: PLR0913, PLR0917 - typer makes an option of each
    url: TableUrl,
    patterns: Patterns,
    source_format: Annotated[str, typer.Option("--format", help=f"Of every file: {', '.join(FORMATS)}.")],
    columns: Annotated[
        str | None, typer.Option("--columns", help="Names and types: 'at TIMESTAMP, level STRING'. Without it, they are inferred.")
    ] = None,
    path_column: PathColumns = None,
    line: Annotated[str, typer.Option("--line", help="Of text: the regular expression for a line. Its named groups are columns.")] = "",
    delimiter: Annotated[str, typer.Option("--delimiter", help="Of CSV, one character.")] = ",",
    no_header: Annotated[bool, typer.Option("--no-header", help="Of CSV: the first line has no names. It needs --columns.")] = False,
    null: Annotated[
        list[str] | None, typer.Option("--null", help="Of CSV: a text that means null, instead of the empty one. You may repeat it.")
    ] = None,
    bad_rows: Annotated[str, typer.Option("--bad-rows", help="Of lines that are no rows: fail or permit.")] = "fail",
    on_change: Annotated[str, typer.Option("--on-change", help="Of files that changed: fail or replace.")] = "fail",
    on_missing: Annotated[str, typer.Option("--on-missing", help="Of files that are gone: fail or drop.")] = "fail",
    precomputed: Annotated[
        list[str] | None,
        typer.Option("--precompute", help="A column, or a field such as payload.status, to precompute. You may repeat it."),
    ] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="KEY=VALUE", help="A property of the table. You may repeat it.")
    ] = None,
    shared_log: Annotated[
        str | None, typer.Option("--shared-log", help="The shared log to join. Without it, the table has its own.")
    ] = None,
    option: Option = None,
    as_json: Json = False,
) -> None:
    """Create a table over files of other programs. No byte is copied, and it is empty until `objcat refresh-files`."""
    schema, types = (None, {}) if columns is None else columns_of_text(columns, what="--columns")
    source: Any = {
        "format": source_format,
        "path_columns": path_columns_of("--path-column", ", ".join(path_column or ()), types),
        "line": line,
        "delimiter": delimiter,
        "header": not no_header,
        "nulls": tuple(null) if null else ("",),
        "bad_rows": bad_rows,
        "on_change": on_change,
        "on_missing": on_missing,
        "precompute": precomputed or (),
    }
    lake, name = lake_and_name(url, option)
    given = parse_option_arguments(properties or [])
    with progress(f"creating {name}", shown=not as_json):
        table = lake.create_table(name, schema, source=Files(patterns, **source), properties=given or None, shared_log=shared_log)
    if as_json:
        say_json({"name": table.name, "slot": table.snapshot.slot, "columns": table.schema.names, "path_columns": table.partitioning})
    else:
        say(f"{table.name} has the columns {', '.join(table.schema.names)}. Take its files with `objcat refresh-files`")


FilesToSee = Annotated[
    list[str] | None, typer.Argument(help="URLs of files to look at. Without one, all sources are listed.", metavar="FILES")
]


def refresh_files(  # noqa: PLR0917 - typer makes an option of each
    url: TableUrl,
    files: FilesToSee = None,
    newer_names: Annotated[bool, typer.Option("--newer-names", help="List only keys above the greatest known one.")] = False,
    on_change: Annotated[str | None, typer.Option("--on-change", help="Of files that changed: fail or replace.")] = None,
    on_missing: Annotated[str | None, typer.Option("--on-missing", help="Of files that are gone: fail or drop.")] = None,
    option: Option = None,
    as_json: Json = False,
) -> None:
    """Take the files of a table in place as they are now, in one commit for each 10,000 files.

    Files of text are read once; of Parquet the footers are read. You may stop it at any time; call it again to go on.
    """
    table = open_table(url, option)
    given: Any = {"on_change": on_change, "on_missing": on_missing}
    with progress(f"refreshing {table.name}", shown=not as_json):
        done = table.refresh_files(files or None, newer_names=newer_names, **given)
    if as_json:
        say_json(asdict(done))
    elif not done.slots:
        say("nothing to take: the files are those that the table has")
    else:
        counts = f"{done.added:,} files are new, {done.replaced:,} changed, {done.dropped:,} are gone"
        say(f"slot {done.slots[-1]}: {counts}; {done.rows:,} rows were counted in {done.bytes:,} bytes")
    if done.bad_rows and not as_json:
        say(f"{done.bad_rows:,} lines are no rows, and were left out")
    if done.unsettled and not as_json:
        say(f"{done.unsettled:,} files changed meanwhile; call it again to take them")


Columns = Annotated[
    list[str] | None,
    typer.Argument(help="Columns, and fields of structs such as payload.status. They replace the present ones.", metavar="COLUMNS"),
]


def precompute(  # noqa: PLR0913, PLR0917 - typer makes an option of each
    url: TableUrl,
    columns: Columns = None,
    add: Annotated[bool, typer.Option("--add", help="Precompute these besides the present ones.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Do not precompute these any more.")] = False,
    every: Annotated[bool, typer.Option("--remove-all", help="Precompute nothing any more.")] = False,
    queries: Annotated[
        str | None, typer.Option("--queries", help="A file with queries, split by semicolons. Only say which columns would answer them.")
    ] = None,
    io_bytes: Annotated[int | None, typer.Option("--io-bytes", help="The most bytes of files to read, about.")] = None,
    option: Option = None,
    as_json: Json = False,
) -> None:
    """Say which columns of a table in place are precomputed, and make or drop them, in one commit for each 10,000 files.

    Without a column, only make what files lack. It is safe beside refreshes and deletes. You may stop it at any time.
    """
    if add + remove + every > 1 or (every and columns) or ((add or remove) and not columns):
        raise InvalidInput("--add and --remove need columns, --remove-all has none, and each excludes the others. Give one of them.")
    if queries is not None:
        _advise(url, queries, io_bytes, option, as_json=as_json)
        return
    table = open_table(url, option)
    if columns or every:
        present = precomputed_names(table.spec)
        if remove and (unknown := [name for name in columns or () if name not in present]):
            raise InvalidInput(f"{unknown[0]!r} is not precomputed: the table has {', '.join(present) or 'nothing'}. Correct the name.")
        wanted = list(dict.fromkeys([*(present if add or remove else []), *(columns or [])]))
        table.alter.set_precomputed([name for name in wanted if name not in (columns or ())] if remove else wanted)
    with progress(f"precomputing columns of {table.name}", shown=not as_json):
        done = table.maintenance.precompute(bytes_max=io_bytes)
    names = precomputed_names(table.spec)
    if as_json:
        say_json({**asdict(done), "columns": names})
        return
    if not done.slots:
        say(f"nothing to make: every file has {', '.join(names) or 'no precomputed columns, as wanted'}")
    else:
        held = ", ".join(names) or "no precomputed columns"
        say(f"slot {done.slots[-1]}: {done.files:,} files have {held}; {done.bytes:,} bytes were written")
    if done.unsettled:
        say(f"{done.unsettled:,} files changed or are gone; run objcat refresh-files, and this again")


def _advise(url: str, queries: str, io_bytes: int | None, option: list[str] | None, *, as_json: bool) -> None:
    lake, name = lake_and_name(url, option)
    texts = [one for one in Path(queries).read_text(encoding="utf-8").split(";") if one.strip()]
    advice = lake.advise_precomputed(name, texts, **({} if io_bytes is None else {"sample_bytes": io_bytes}))
    if as_json:
        say_json(asdict(advice))
    else:
        say(str(advice))


def promote(
    url: TableUrl,
    where: Annotated[
        str | None, typer.Option("--where", help="Only files that may hold a row of this filter: \"day = '2026-11-26'\".")
    ] = None,
    option: Option = None,
    as_json: Json = False,
) -> None:
    """Make files in place files of the table, as commits that change no row. Without a filter, the table is an ordinary one then.

    It is safe while others read, refresh and delete. You may stop it at any time; call it again to go on.
    """
    table = open_table(url, option)
    with progress(f"promoting files of {table.name}", shown=not as_json):
        done = table.maintenance.promote(where=where)
    if as_json:
        say_json(asdict(done))
        return
    if not done.slots:
        say("nothing to promote: no file in place may hold such a row")
    else:
        whole = "the table is an ordinary one now" if done.is_whole else "other files stay in place"
        say(f"slot {done.slots[-1]}: {done.rows:,} rows were written in {done.files:,} files of {done.bytes:,} bytes; {whole}")
    if done.unsettled:
        say(f"{done.unsettled:,} files changed or are gone; run objcat refresh-files, and this again")

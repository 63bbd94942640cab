"""`objcat adopt`: a table of Iceberg or Delta becomes a table of a lake, without copying its data files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from objcat.cli.common import Json, LakeUrl, Option, open_lake
from objcat.cli.output import progress, say, say_json
from objcat.common.validation import one_of
from objcat.errors import InvalidInput
from objcat.metadata.table_spec import BloomIndex, Index, RecordIndex, SimpleIndex

FORMATS = ("iceberg", "delta")
INDEXES: Mapping[str, Index] = {"simple": SimpleIndex(), "bloom": BloomIndex(), "record": RecordIndex()}
"""Indexes by which other processes write too. The memory index is for writers in one process."""


def adopt(  # noqa: PLR0913, PLR0917 - typer makes an option of each
    url: LakeUrl = None,
    source: Annotated[
        str | None,
        typer.Argument(help="The URL of the foreign table, or of an Iceberg metadata file. It lies below the lake.", metavar="SOURCE"),
    ] = None,
    name: Annotated[str | None, typer.Argument(help="The name of the new table.", metavar="NAME")] = None,
    table_format: Annotated[str, typer.Option("--format", help="iceberg or delta.")] = "iceberg",
    key: Annotated[list[str] | None, typer.Option("--key", help="A key column. You may repeat it. Without one, every row stays.")] = None,
    ordering: Annotated[
        list[str] | None, typer.Option("--ordering", help="The column whose greater value wins. Repeat it for columns that decide next.")
    ] = None,
    index: Annotated[str, typer.Option("--index", help="Of a table with a key: simple, bloom or record.")] = "simple",
    copy_on_write: Annotated[bool, typer.Option("--copy-on-write", help="Writes rewrite what they touch.")] = False,
    option: Option = None,
    as_json: Json = False,
) -> None:
    """Make a table of an Iceberg or Delta table, whose data files stay where they are. Needs the extra `adopt`.

    Nothing of the foreign table is changed, and no engine may write to it or remove its files afterwards. Data files with deleted rows are
    written again.
    """
    if name is None and source is not None:
        # With a profile there is no URL of a lake.
        url, source, name = None, url, source
    if source is None or name is None:
        raise InvalidInput(
            "The call lacks a source or a name. Write objcat adopt LAKE SOURCE NAME, such as `s3://bucket s3://bucket/old/t t`."
        )
    one_of(table_format, FORMATS, what="--format")
    one_of(index, tuple(INDEXES), what="--index")
    settings: dict[str, Any] = {"table_type": "copy_on_write"} if copy_on_write else {}
    if key:
        settings |= {"index": INDEXES[index], "ordering": ordering or None}
    elif ordering:
        raise InvalidInput("--ordering decides which row of a key wins, but the call names no --key. Add one, or leave --ordering out.")
    with progress("adopting", shown=not as_json):
        lake = open_lake(url, option)
        to_table = lake.adopt_iceberg if table_format == "iceberg" else lake.adopt_delta
        result = to_table(source, name, key=key or None, **settings)
    if as_json:
        say_json(asdict(result))
        return
    written = "".join(f"; {count} files were written again, because {reason}" for reason, count in result.files_rewritten.items())
    say(
        f"{name} has the {result.rows:,} rows of the {result.format} table. {result.files_named:,} files are named where they are{written}."
    )
    if result.left_out:
        say(f"Partition fields that it does not have: {', '.join(result.left_out)}.")

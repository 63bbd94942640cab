"""`objcat reencode`: base files of cold partitions are written again with a stronger codec."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from objcat.cli.common import Json, Option, TableUrl, open_table
from objcat.cli.output import progress, say, say_json


def reencode(
    url: TableUrl,
    where: Annotated[
        str | None, typer.Option("--where", help="Only files that may hold a row of this filter: \"at < '2026-01-01'\".")
    ] = None,
    level: Annotated[int, typer.Option("--level", help="Of zstd, 1 to 22.")] = 9,
    least_saving: Annotated[float, typer.Option("--least-saving", help="The share of its bytes that a file has to lose.")] = 0.05,
    option: Option = None,
    as_json: Json = False,
) -> None:
    """Write base files again with a stronger codec where that saves bytes, as commits that change no row.

    It is safe while others read and write. You may stop it at any time; call it again to go on.
    """
    table = open_table(url, option)
    with progress(f"re-encoding files of {table.name}", shown=not as_json):
        done = table.maintenance.reencode(where=where, level=level, least_saving=least_saving)
    if as_json:
        say_json(asdict(done))
    elif not done.slots:
        say(f"nothing to gain: {done.left:,} files would not become smaller by as much")
    else:
        sizes = f"{done.bytes:,} bytes instead of {done.bytes_before:,}"
        say(f"slot {done.slots[-1]}: {done.files:,} files have {sizes}; {done.left:,} files stay")

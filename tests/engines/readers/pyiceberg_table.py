"""The table of a request as pyiceberg has it, for the engines that take it from there."""

from __future__ import annotations

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import StaticTable, Table

from tests.engines.readers.serve import Request


def table_of(request: Request) -> Table:
    if request.catalog:
        return RestCatalog("lake", uri=request.catalog).load_table("default.t")
    return StaticTable.from_metadata(request.metadata)

"""`check_ingest`: what an ingest would follow, and what stands in its way. It changes nothing, at the source and in the lake."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from objcat.errors import SourceUnfit, TableNotFound
from objcat.ingest.config import IngestConfig
from objcat.ingest.model import ChangeSource, SourceTable
from objcat.ingest.routes import RoutedTable, Router
from objcat.lake.lake import Lake
from objcat.metadata.schema import Ids, type_from_arrow, type_text


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTable:
    """A table that a route follows.

    Args:
        name: at the source.
        target: its name in the lake.
        exists: whether the lake has a table of that name.
        key: its key columns in the lake; empty when each change becomes a row of its own.
        columns: the type in the lake of each column, by name.
        deletes: what becomes of rows that are deleted.
        problem: why it would be set aside; None when it would not.
    """

    name: str
    target: str
    exists: bool
    key: tuple[str, ...]
    columns: Mapping[str, str]
    deletes: str
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestCheck:
    """What `objcat ingest check` shows.

    Args:
        source: its name.
        position: of the last commit, as the source writes it; None before the first one.
        problems: what is wrong, in sentences.
        tables: those that are followed.
        not_followed: names of the others.
    """

    source: str
    position: str | None
    problems: tuple[str, ...]
    tables: tuple[CheckedTable, ...]
    not_followed: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether an ingest can run."""
        return not self.problems


def check_ingest(config: IngestConfig, lake: Lake, source: ChangeSource) -> IngestCheck:
    """Check the settings of a source, and route its tables.

    Args:
        config: of the ingest.
        lake: where it writes.
        source: an open one.

    Raises:
        SourceAway: the source went away.
        ObjcatError: errors of reading the lake.
    """
    problems = []
    try:
        source.check_settings()
    except SourceUnfit as error:
        problems.append(config.hide(str(error)))
    stored = lake.source_position(config.name, shared_log=config.shared_log)
    described = source.describe_tables()
    routed = Router(config).route_all(described)
    tables = tuple(_checked(lake, table, routed[table.name]) for table in described if table.name in routed and not table.is_record)
    problems += [one.problem for one in routed.values() if one.problem is not None]
    if not routed:
        known = f"It has {', '.join(sorted(table.name for table in described)[:10])}" if described else "The user sees no table"
        problems.append(f"No table of {config.name!r} matches a route. {known}. Correct `tables` of the routes, or the rights of the user.")
    return IngestCheck(
        source=config.name,
        position=None if stored is None else source.position_text(stored.state["position"]),
        problems=tuple(problems),
        tables=tables,
        not_followed=tuple(sorted(table.name for table in described if table.name not in routed)),
    )


def _checked(lake: Lake, table: SourceTable, routed: RoutedTable) -> CheckedTable:
    exists = False
    if routed.problem is None:
        with contextlib.suppress(TableNotFound):
            lake.table(routed.name)
            exists = True
    schema = routed.schema(table)
    return CheckedTable(
        name=table.name,
        target=routed.name,
        exists=exists,
        key=routed.key,
        columns={field.name: type_text(type_from_arrow(field.type, Ids(0), path=field.name)) for field in schema},
        deletes=routed.route.deletes,
        problem=table.problem or routed.problem,
    )

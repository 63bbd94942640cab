"""What every log folds to, whatever its changes mean: its head, the versions of applications, bounds, savepoints, dropped tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from objcat.common.validation import text, whole_number
from objcat.errors import CorruptTable
from objcat.timeline.entry import ERASED_PARTITIONS, Action, Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class AppVersion:
    """A write that must count once, however often it is tried: an application and the number of its batch.

    app: its name, e.g. of a stream. version: grows from batch to batch. resumed_after: the slot of the RESTORE that the application has
    taken notice of, after `StreamRewound`. since: the version that the batch builds on, -1 for none: where the application has reached
    another one, the batch is refused with CommitConflict. For what may not be repeated, as sums that are added up: who runs twice would
    else bring batches that overlap.
    """

    app: str
    version: int
    resumed_after: int | None = None
    since: int | None = None

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        text(self.app, what="app")
        whole_number(self.version, what=f"version of the application {self.app!r}")
        if self.resumed_after is not None:
            whole_number(self.resumed_after, what=f"resumed_after of the application {self.app!r}")
        if self.since is not None:
            whole_number(self.since, what=f"since of the application {self.app!r}", least=-1)


@dataclass(frozen=True, slots=True)
class AppProgress:
    """The version that an application has reached in a table. slot: of the commit. rewound_at: of a RESTORE that took back later ones."""

    version: int
    slot: int
    rewound_at: int | None = None


@dataclass(frozen=True, slots=True)
class TableLogState:
    """What the log says of one table besides its rows.

    bound: slots below it cannot be read any more, but for saved ones. saved: slots with a savepoint. closed_at: of the CLOSE, None while
    the table is open. apps: by name.
    """

    bound: int = 0
    saved: frozenset[int] = frozenset()
    closed_at: int | None = None
    apps: Mapping[str, AppProgress] = field(default_factory=dict)

    def is_readable(self, slot: int) -> bool:
        """Whether the files of the table as of that slot are still kept."""
        return slot >= self.bound or slot in self.saved


@dataclass(frozen=True, slots=True)
class LogState:
    """A log as of `slot` (-1: before the first). tables: by id, those that have marks.

    features, writer_features: what a reader, and a writer, must understand. root_bound: checkpoints below it may be gone, but for the
    newest one up to each of `pins`: slots that are saved since before the bound passed them. restores: of each RESTORE above the bound,
    its slot and the slot that it brought back.
    """

    slot: int = -1
    committed_at_ms: int = 0
    tables: Mapping[str, TableLogState] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)
    writer_features: Mapping[str, str] = field(default_factory=dict)
    root_bound: int = 0
    pins: frozenset[int] = frozenset()
    restores: tuple[tuple[int, int], ...] = ()

    def marks(self, table: str) -> TableLogState:
        return self.tables.get(table, TableLogState())

    def advance(self, entries: Iterable[Entry]) -> LogState:
        """The state after further entries, which must follow its slot without a gap. Raises CorruptTable for a gap."""
        state = self
        for entry in entries:
            if entry.slot != state.slot + 1:
                raise CorruptTable(f"slot {entry.slot} does not follow slot {state.slot}: open the table again")
            lasting = {name: since for name, since in entry.features.items() if name not in ERASED_PARTITIONS}
            touched = {table: _fold(state.marks(table), table, entry) for table in (*entry.footprint, *entry.apps)}
            state = LogState(
                slot=entry.slot,
                committed_at_ms=entry.committed_at_ms,
                tables={**state.tables, **touched} if touched else state.tables,
                features={**state.features, **lasting} if lasting else state.features,
                writer_features={**state.writer_features, **entry.writer_features} if entry.writer_features else state.writer_features,
                root_bound=state.root_bound,
                pins=state.pins,
                restores=state.restores,
            )
            state = _fold_roots(state, entry)
        return state


def _fold_roots(state: LogState, entry: Entry) -> LogState:
    """What the collection of checkpoints must know: how far it went, what it must leave, and which older states were brought back since."""
    for footprint in entry.footprint.values():
        if footprint.root_bound is not None and footprint.root_bound > state.root_bound:
            bound = footprint.root_bound
            state = replace(state, root_bound=bound, restores=tuple(pair for pair in state.restores if pair[0] > bound))
        if footprint.saves is not None and footprint.saves >= state.root_bound:
            state = replace(state, pins=state.pins | {footprint.saves})
        if footprint.releases is not None and not any(footprint.releases in marks.saved for marks in state.tables.values()):
            state = replace(state, pins=state.pins - {footprint.releases})
        if footprint.restores is not None and (entry.slot, footprint.restores) not in state.restores:
            state = replace(state, restores=(*state.restores, (entry.slot, footprint.restores)))
    return state


def _fold(marks: TableLogState, table: str, entry: Entry) -> TableLogState:
    footprint = entry.footprint.get(table)
    reached = entry.apps.get(table, {})
    if entry.action is Action.RESTORE and footprint is not None and footprint.restores is not None:
        apps = {app: AppProgress(version, entry.slot) for app, version in reached.items()}
        for app, before in marks.apps.items():
            if before.rewound_at is not None or reached.get(app) != before.version:
                now = reached.get(app, -1)
                apps[app] = AppProgress(now, entry.slot, rewound_at=entry.slot)
        return replace(marks, apps=apps, closed_at=None)
    if reached:
        marks = replace(marks, apps={**marks.apps, **{app: AppProgress(version, entry.slot) for app, version in reached.items()}})
    if footprint is None:
        return marks
    if entry.action is Action.CLOSE:
        marks = replace(marks, closed_at=entry.slot)
    if footprint.bound is not None:
        marks = replace(marks, bound=max(marks.bound, footprint.bound))
    if footprint.saves is not None:
        marks = replace(marks, saved=marks.saved | {footprint.saves})
    if footprint.releases is not None:
        marks = replace(marks, saved=marks.saved - {footprint.releases})
    return marks

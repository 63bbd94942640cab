"""`LogState`: what every log replays to.

It holds the head, application versions, retention floors, savepoints and dropped tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from objcat.common.validation import instance, text, whole_number
from objcat.errors import AlreadyApplied, CommitConflict, CorruptTable, StreamRewound
from objcat.timeline.entry import ERASED_PARTITIONS, Action, Entry
from objcat.timeline.position import PositionProgress, advance_positions

MOVED_TO = "objcat.moved_to"
"""Metadata of a CLOSE that ends a move: the name of the shared log in which the table goes on."""
MOVED_TABLE = "objcat.moved_table"
"""Metadata of the same CLOSE: where the table goes on, as a binding of the catalog in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppVersion:
    """A version of an application: makes a write count once, however often it is tried.

    `since` is for work that must not be repeated, such as sums that are added up: two runs could otherwise write overlapping batches.

    Args:
        app: Name of the application, e.g. of a stream.
        version: Number of the batch. It grows from batch to batch.
        resumed_after: Slot of the RESTORE that the application has taken notice of, after `StreamRewound`.
        since: The version that the batch builds on, -1 for none. If the table has another version, the batch is refused with
            CommitConflict.
    """

    app: str
    version: int
    resumed_after: int | None = None
    since: int | None = None

    def __post_init__(self) -> None:
        """Check the values. Raises InvalidInput."""
        text(self.app, what="app")
        whole_number(self.version, what=f"version of the application {self.app!r}")
        if self.resumed_after is not None:
            whole_number(self.resumed_after, what=f"resumed_after of the application {self.app!r}")
        if self.since is not None:
            whole_number(self.since, what=f"since of the application {self.app!r}", least=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedVersion:
    """The version that an application has reached in a table, and the commit that has it.

    Attributes:
        app: the application.
        version: the newest one; after a RESTORE that took back versions, the restored one, -1 for none.
        slot: of the commit, or of that RESTORE.
        txn: its transaction id.
        committed_at_ms: its commit time, in milliseconds since 1970 UTC.
        metadata: of the commit, as its writer gave it. An erasure removes it.
        rewound_at: slot of a RESTORE that took back versions since which the application has written nothing, None for none.
    """

    app: str
    version: int
    slot: int
    txn: str
    committed_at_ms: int
    metadata: Mapping[str, str]
    rewound_at: int | None = None


@dataclass(frozen=True, slots=True)
class AppProgress:
    """The version that an application has reached in a table.

    Args:
        slot: Slot of the commit.
        rewound_at: Slot of a RESTORE that took back later versions.
    """

    version: int
    slot: int
    rewound_at: int | None = None


@dataclass(frozen=True, slots=True)
class TableLogState:
    """What the log says of one table besides its rows.

    Args:
        bound: The retention floor: slots below it can no longer be read, except saved ones.
        saved: Slots with a savepoint.
        closed_at: Slot of the CLOSE, None while the table is open.
        apps: Progress of applications, by name.
        moved_to: The shared log to which it moved, if that closed it. Unset otherwise, so that checkpoints do not have the field.
    """

    bound: int = 0
    saved: frozenset[int] = frozenset()
    closed_at: int | None = None
    apps: Mapping[str, AppProgress] = field(default_factory=dict)
    moved_to: str | msgspec.UnsetType = msgspec.UNSET

    def is_readable(self, slot: int) -> bool:
        """Whether the table's files as of that slot are retained."""
        return slot >= self.bound or slot in self.saved


@dataclass(frozen=True, slots=True)
class LogState:
    """A log as of `slot` (-1: before the first).

    Args:
        tables: By id, those with any state here.
        features: What a reader must understand.
        writer_features: What a writer must understand.
        root_bound: Checkpoints below it may be gone, except the newest one up to each of `pins`.
        pins: Slots that were saved before the bound passed them.
        restores: For each RESTORE above the bound, its slot and the slot that it restored.
        positions: By source, its newest position. Unset in a log without positions, so that its checkpoints do not have the field.
    """

    slot: int = -1
    committed_at_ms: int = 0
    tables: Mapping[str, TableLogState] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)
    writer_features: Mapping[str, str] = field(default_factory=dict)
    root_bound: int = 0
    pins: frozenset[int] = frozenset()
    restores: tuple[tuple[int, int], ...] = ()
    positions: Mapping[str, PositionProgress] | msgspec.UnsetType = msgspec.UNSET

    def marks(self, table: str) -> TableLogState:
        """The state of a table in this log."""
        return self.tables.get(table, TableLogState())

    @property
    def sources(self) -> Mapping[str, PositionProgress]:
        """The newest position of each source."""
        return {} if self.positions is msgspec.UNSET else self.positions

    def advance(self, entries: Iterable[Entry]) -> LogState:
        """The state after further entries. They must follow its slot without a gap; else it raises CorruptTable."""
        state = self
        for entry in entries:
            if entry.slot != state.slot + 1:
                raise CorruptTable(f"Slot {entry.slot} does not follow slot {state.slot}. Open the table again.")
            lasting = {name: since for name, since in entry.features.items() if name not in ERASED_PARTITIONS}
            touched = {table: _replay(state.marks(table), table, entry) for table in (*entry.footprint, *entry.apps)}
            state = LogState(
                slot=entry.slot,
                committed_at_ms=entry.committed_at_ms,
                tables={**state.tables, **touched} if touched else state.tables,
                features={**state.features, **lasting} if lasting else state.features,
                writer_features={**state.writer_features, **entry.writer_features} if entry.writer_features else state.writer_features,
                root_bound=state.root_bound,
                pins=state.pins,
                restores=state.restores,
                positions=advance_positions(state.sources, entry) or msgspec.UNSET,
            )
            state = _replay_roots(state, entry)
        return state


def _replay_roots(state: LogState, entry: Entry) -> LogState:
    """What the expiry of checkpoints must know: how far it went, what it must leave, and which older states were restored since."""
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


def _replay(marks: TableLogState, table: str, entry: Entry) -> TableLogState:
    """The state of a table after one more entry."""
    footprint = entry.footprint.get(table)
    reached = entry.apps.get(table, {})
    if entry.action is Action.RESTORE and footprint is not None and footprint.restores is not None:
        apps = {app: AppProgress(version, entry.slot) for app, version in reached.items()}
        for app, before in marks.apps.items():
            if before.rewound_at is not None or reached.get(app) != before.version:
                now = reached.get(app, -1)
                apps[app] = AppProgress(now, entry.slot, rewound_at=entry.slot)
        return replace(marks, apps=apps, closed_at=None, moved_to=msgspec.UNSET)
    if reached:
        marks = replace(marks, apps={**marks.apps, **{app: AppProgress(version, entry.slot) for app, version in reached.items()}})
    if footprint is None:
        return marks
    if entry.action is Action.CLOSE:
        marks = replace(marks, closed_at=entry.slot, moved_to=entry.metadata.get(MOVED_TO, msgspec.UNSET))
    if footprint.bound is not None:
        marks = replace(marks, bound=max(marks.bound, footprint.bound))
    if footprint.saves is not None:
        marks = replace(marks, saved=marks.saved | {footprint.saves})
    if footprint.releases is not None:
        marks = replace(marks, saved=marks.saved - {footprint.releases})
    return marks


def check_app_version(own: AppVersion | None, tables: Iterable[str], state: LogState) -> None:
    """Check that the log, as far as it is known, lets the application write this version.

    Raises:
        AlreadyApplied: The version is in the table.
        StreamRewound: A RESTORE took back versions of the application.
        CommitConflict: The version builds on another version than the table has.
    """
    if own is None:
        return
    instance(own, AppVersion, what="app", such_as="an objcat.AppVersion(app='...', version=...)")
    for table in tables:
        reached = state.marks(table).apps.get(own.app)
        if reached is None:
            continue
        is_next = own.since == reached.version
        if reached.rewound_at is not None and not is_next and (own.resumed_after or -1) < reached.rewound_at:
            raise StreamRewound(
                f"The RESTORE at slot {reached.rewound_at} took back what {own.app!r} had written after version {reached.version}. "
                f"Nothing was written. Start it again from version {reached.version + 1}, with resumed_after={reached.rewound_at}.",
                winner_slot=reached.rewound_at,
            )
        if reached.version >= own.version:
            raise AlreadyApplied(
                f"Version {own.version} of {own.app!r} is in table {table} already: slot {reached.slot} applied version {reached.version}. "
                "Nothing was written. Continue with the next version.",
                winner_slot=reached.slot,
            )
        if own.since is not None and not is_next:
            raise CommitConflict(
                f"Version {own.version} of {own.app!r} builds on version {own.since}, but slot {reached.slot} applied version "
                f"{reached.version} to table {table}. Nothing was written. Read what follows version {reached.version}, and write again.",
                winner_slot=reached.slot,
            )

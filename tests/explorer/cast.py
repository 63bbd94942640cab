"""Who plays in the cells: actors, and the histories that cells begin with."""

from __future__ import annotations

from objcat.metadata.table_spec import COPY_ON_WRITE
from objcat.tasks.model import Operation
from tests.explorer.actors import Actor, Role
from tests.explorer.roles import CREATED, AddTable, ChangeRow, CreateTable, Read, RollBack, Slowly, Write
from tests.explorer.roles_services import Compact
from tests.explorer.store import Fault, Profile

HOUR_MS = 3_600_000


def writer(number: int, *buckets: int, operation: Operation = Operation.UPSERT, resolves: bool = False, **settings: int) -> Actor:
    """A writer to these buckets (to 0 when none is named)."""
    return Actor(f"writer {number}", number, Write(buckets or (0,), operation, resolves), **settings)


def inserter(number: int, *buckets: int) -> Actor:
    """A writer of base files into these buckets, where they are empty."""
    return writer(number, *buckets, operation=Operation.INSERT)


def slow_writer(number: int, **settings: int) -> Actor:
    """A writer whose work takes so long that it is announced and its heart beats."""
    return Actor(f"slow writer {number}", number, Slowly(Write()), **settings)


def late_writer(number: int, **settings: int) -> Actor:
    """A writer that is announced when its data is there already, and may have been settled for them."""
    return Actor(f"late writer {number}", number, Slowly(Write(), after=1), **settings)


def rollback(number: int, *owners: int) -> Actor:
    """Rolls back whatever it finds of these actors."""
    return Actor(f"rollback {number}", number, RollBack(owners))


READER = Actor("reader", 9, Read())
CARELESS_READER = Actor("reader", 9, Read(consistent=False))
CREATE_1, CREATE_2 = Actor("creator 1", 1, CreateTable()), Actor("creator 2", 2, CreateTable())
FRESH = frozenset(Fault) - {Fault.STALE}
"""Without stale reads: what a reader gets is as new as the store promises, or it is not."""
LATE = frozenset({Fault.LATER, Fault.ECHO, Fault.BEFORE})
"""Requests that land when nobody expects them any more."""
LOG = ("t/log/",)
CLOCK = Profile(clock=True)
ETAGS = Profile(content_versions=True)

SMALL = (("objcat.timeline.checkpoint", "SPACING_SLOTS", 2), ("objcat.timeline.checkpoint", "TAIL_SLOTS_MAX", 2))
"""Checkpoints every other slot."""

# ---- histories

ROWS = (*CREATED, Actor("first", 12, Write((0,))))
"""A table with log rows in one file group, at slot 1."""
MORE_ROWS = (*ROWS, Actor("second", 13, Write((0, 1))))
"""And in both file groups, at slot 2."""
COMPACTED = (*MORE_ROWS, Actor("former compaction", 14, Compact()))
"""And compacted, at slot 3."""
REWRITTEN = (Actor("creator", 15, CreateTable(COPY_ON_WRITE)),)
"""A new copy-on-write table."""
COUNTERS = (*REWRITTEN, Actor("first", 12, Write((0, 1), Operation.INSERT)))
"""A copy-on-write table with a row in each file group, at slot 1."""
RECOUNTED = (*COUNTERS, Actor("second", 13, Write((0,))))
"""And one of them rewritten, at slot 2."""
ORDERED = (
    Actor("creator", 15, CreateTable(COPY_ON_WRITE, ordering="v")),
    Actor("first", 12, ChangeRow(0, "5")),
    Actor("former delete", 13, ChangeRow(3, "5", deletes=True)),
)
"""A copy-on-write table with an ordering column: a row at slot 1, and a delete of another one in its file group that was never there, at
2."""
PAIR = (*CREATED, Actor("other creator", 16, AddTable()))
"""Two new tables of one log."""
COUNTER_PAIR = (*REWRITTEN, Actor("other creator", 16, AddTable()))
"""Two new copy-on-write tables of one log."""


def play(name: str, number: int, role: Role, **settings: int) -> Actor:
    """Any actor."""
    return Actor(f"{name} {number}", number, role, **settings)

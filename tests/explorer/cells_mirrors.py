"""The named cells of mirrors: two processes that mirror, a committer, cleaning, and mirrors that begin again beside them."""

from __future__ import annotations

from dataclasses import replace

from tests.explorer.actors import Actor
from tests.explorer.cast import FRESH, LATE, play, writer
from tests.explorer.engine import Cell
from tests.explorer.roles import CreateTable, Write
from tests.explorer.roles_mirrors import Mirror, StartOver
from tests.explorer.roles_services import Clean, Compact

FORMS = {
    "Iceberg 2": (("mirror_iceberg_version", "2"), ("mirrors", "iceberg")),
    "Iceberg 3": (("mirror_iceberg_version", "3"), ("mirrors", "iceberg")),
    "Delta": (("mirrors", "delta"),),
}
MIRRORS = (play("mirror", 5, Mirror()), play("mirror", 6, Mirror()))
FOLDERS = ("t/metadata/", "t/_delta_log/", "t/deltavectors/")
FOLLOWER = play("follower", 5, Mirror(rounds=2))
OVER = play("start over", 6, StartOver())


def begun(form: str) -> tuple[Actor, ...]:
    """A table whose mirror is to begin at slot 1."""
    return Actor("creator", 15, CreateTable(properties=FORMS[form])), Actor("first", 12, Write((0, 1)))


def mirrored(form: str) -> tuple[Actor, ...]:
    """A table with a mirror at slot 1, and two slots after it: each masks another row of the first file."""
    return *behind(form), Actor("third", 11, Write((1,)))


def behind(form: str) -> tuple[Actor, ...]:
    """A table whose mirror is one slot behind."""
    return *begun(form), Actor("former mirror", 14, Mirror()), Actor("second", 13, Write((0,)))


def compacted(form: str) -> tuple[Actor, ...]:
    """A table with a mirror at slot 1, whose files a clean deletes once the mirror is at slot 3."""
    return *begun(form), Actor("former mirror", 14, Mirror()), Actor("second", 13, Write((0,))), Actor("former compaction", 11, Compact())


def _alone(name: str, actor: Actor, prelude: tuple[Actor, ...], *, faults_max: int = 2, slow: bool = False) -> Cell:
    return Cell(
        name=f"{name}: {faults_max} fault{'s' if faults_max > 1 else ''}, 1 crash",
        actors=(actor,),
        prelude=prelude,
        faults_max=faults_max,
        crashes_max=1,
        faults=FRESH,
        states_min=100,
        slow=slow,
    )


def _impatient(name: str, actor: Actor, prelude: tuple[Actor, ...], *, slow: bool) -> Cell:
    """Without retries, so that outcomes stay unknown."""
    return Cell(
        name=name,
        actors=(replace(actor, attempts_max=1),),
        prelude=prelude,
        settings=(("objcat.mirror.iceberg.pointers", "_PUTS_MAX", 1),),
        where=FOLDERS,
        faults_max=2,
        crashes_max=1,
        faults=FRESH,
        states_min=100,
        slow=slow,
    )


def _races(form: str, *, slow: bool) -> tuple[Cell, ...]:
    """Two processes that mirror, with faults at the objects of the mirror."""
    late = Cell(
        name=f"mirror, mirror: {form}: 2 late requests at its objects",
        actors=MIRRORS,
        prelude=mirrored(form),
        where=FOLDERS,
        faults_max=2,
        faults=LATE,
        states_min=100,
        slow=True,
    )
    # One of both is small enough for every merge.
    fault = replace(late, name=f"mirror, mirror: {form}: 1 fault at its objects", faults_max=1, faults=FRESH, slow=slow or form != "Delta")
    first = replace(
        fault, name=f"first mirror, first mirror: {form}: 1 fault at its objects", prelude=begun(form), slow=slow or form == "Delta"
    )
    return first, fault, late


def _cells(form: str, *, slow: bool) -> tuple[Cell, ...]:
    """slow: cells with faults wait for a run of all."""
    history = mirrored(form)
    clean, other = play("clean", 7, Clean()), play("start over", 5, StartOver())
    return (
        Cell(name=f"mirror, mirror: {form}", actors=MIRRORS, prelude=history, states_min=100, all_succeed=True),
        Cell(name=f"first mirror, first mirror: {form}", actors=MIRRORS, prelude=begun(form), states_min=100, all_succeed=True),
        Cell(name=f"mirror, write: {form}", actors=(FOLLOWER, writer(1)), prelude=history, states_min=100, all_succeed=True),
        Cell(name=f"mirror, clean: {form}", actors=(MIRRORS[0], clean), prelude=compacted(form), states_min=100),
        Cell(name=f"mirror, start over: {form}", actors=(MIRRORS[0], OVER), prelude=history, states_min=100, slow=True),
        Cell(name=f"mirror, mirror: {form}: 1 crash", actors=MIRRORS, prelude=history, crashes_max=1, states_min=100, slow=slow),
        _impatient(f"mirror alone, without retries: {form}", MIRRORS[0], history, slow=slow),
        _impatient(f"start over alone, without retries: {form}", OVER, behind(form), slow=slow),
        _alone(f"first mirror alone: {form}", MIRRORS[0], begun(form), slow=slow),
        _alone(f"start over alone: {form}", OVER, behind(form), slow=slow),
        _alone(f"clean behind a mirror: {form}", clean, compacted(form), faults_max=1, slow=slow),
        *_races(form, slow=slow),
        _alone(f"mirror alone: {form}", MIRRORS[0], history, slow=True),
        Cell(name=f"start over, start over: {form}", actors=(other, OVER), prelude=history, states_min=100, slow=True),
        Cell(name=f"mirror, mirror, write: {form}", actors=(*MIRRORS, writer(1)), prelude=history, states_min=100, slow=True),
        Cell(name=f"mirror, mirror, clean: {form}", actors=(*MIRRORS, clean), prelude=compacted(form), states_min=100, slow=True),
    )


_STATES = {
    "mirror, mirror: Delta": 990,
    "first mirror, first mirror: Delta": 2_760,
    "mirror, write: Delta": 128,
    "mirror, clean: Delta": 2_150,
    "mirror, mirror: Delta: 1 crash": 1_520,
    "mirror, start over: Delta": 5_000,
    "mirror alone, without retries: Delta": 430,
    "start over alone, without retries: Delta": 3_490,
    "first mirror alone: Delta: 2 faults, 1 crash": 2_240,
    "start over alone: Delta: 2 faults, 1 crash": 14_500,
    "clean behind a mirror: Delta: 1 fault, 1 crash": 1_010,
    "mirror, mirror: Iceberg 2": 3_200,
    "first mirror, first mirror: Iceberg 2": 470,
    "mirror, write: Iceberg 2": 170,
    "mirror, clean: Iceberg 2": 7_960,
    "mirror, mirror: Iceberg 2: 1 crash": 5_520,
    "mirror alone, without retries: Iceberg 2": 18_600,
    "first mirror alone: Iceberg 2: 2 faults, 1 crash": 3_210,
    "clean behind a mirror: Iceberg 2: 1 fault, 1 crash": 2_280,
    "first mirror, first mirror: Iceberg 2: 1 fault at its objects": 14_500,
    "mirror, mirror: Iceberg 3": 3_360,
    "first mirror, first mirror: Iceberg 3": 470,
    "mirror, write: Iceberg 3": 170,
    "mirror, clean: Iceberg 3": 8_190,
}
"""Of those that were counted, nine tenths of their states."""


def _finished(cell: Cell) -> Cell:
    """A mirror of several slots sends requests for each of them."""
    return replace(cell, solo_steps_max=300, states_min=_STATES.get(cell.name, cell.states_min))


MIRROR_CELLS = tuple(_finished(cell) for form in FORMS for cell in _cells(form, slow=form == "Iceberg 3"))

"""What becomes of reads when an object is damaged: the same rows, or a typed error that names the object."""

from __future__ import annotations

import contextlib
import enum
import random
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fileio.errors import FileIOError
from objcat.errors import ObjcatError
from tests.damage.kinds import FORGED, GONE, KINDS
from tests.damage.world import NAMES, READS, Overwrite, Target, chosen_reads, expected, pristine, small, store_of, targets

HANGS_S = 60


class Outcome(enum.StrEnum):
    SAME = "the same rows"
    NAMED = "an error that names it"
    SHORTER = "a shorter log"
    """The newest slot is gone, or one above the newest checkpoint at which a look ends: what is found there looks like the end of a log."""
    FORGERY = "what was forged"
    UNNAMED = "AN ERROR THAT DOES NOT NAME IT"
    OTHER = "OTHER ROWS"
    RAW = "A RAW ERROR"
    HANGS = "NO END"


FAILURES = (Outcome.UNNAMED, Outcome.OTHER, Outcome.RAW, Outcome.HANGS)
_ORDER = list(Outcome)


@dataclass
class Verdict:
    """Of one damage: the worst outcome, and why."""

    seed: int
    target: Target
    kind: str
    outcome: Outcome
    why: str = ""


@dataclass
class Tally:
    """Of many: how often a class of objects came to an outcome under a kind of damage."""

    counts: Counter[tuple[str, str, Outcome]] = field(default_factory=Counter)
    failures: list[Verdict] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        self.counts[verdict.target.kind, verdict.kind, verdict.outcome] += 1
        if verdict.outcome in FAILURES:
            self.failures.append(verdict)


class Hangs(BaseException):
    """Time is up."""


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(HANGS_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def drawn(seed: int) -> tuple[Target, str, bytes] | None:
    """An object and what it is changed to: each class and each kind as likely as any other. None where they do not fit."""
    rng = random.Random(seed)
    by_kind: dict[str, list[Target]] = {}
    for target in targets():
        by_kind.setdefault(target.kind, []).append(target)
    target = rng.choice(by_kind[sorted(by_kind)[seed % len(by_kind)]])
    kind = sorted(KINDS)[(seed // len(by_kind)) % len(KINDS)]
    objects, _ = pristine()
    made = KINDS[kind](rng, target, objects[target.key])
    return None if made is None or made == objects[target.key] else (target, kind, made)


def judged(seed: int, *, reads: int) -> Verdict | None:
    """Damage one object, and read. reads: how many kinds of reads besides the scan and a write."""
    found = drawn(seed)
    if found is None:
        return None
    target, kind, data = found
    objects = dict(pristine()[0])
    if data == GONE:
        del objects[target.key]
    else:
        objects[target.key] = data
    worst = Verdict(seed, target, kind, Outcome.SAME)
    rng = random.Random(seed)
    for what in chosen_reads(rng, reads):
        outcome, why = _read(objects, target, target.table or rng.choice(NAMES), what, kind)
        if _ORDER.index(outcome) > _ORDER.index(worst.outcome):
            worst = Verdict(seed, target, kind, outcome, f"{what}: {why}")
    return worst


def _read(objects: dict[str, bytes], target: Target, name: str, what: str, kind: str) -> tuple[Outcome, str]:
    forged = kind.startswith(FORGED)
    wanted = expected()[name, what]
    try:
        with small(), _bounded():
            found = READS[what](store_of(objects, seed=7), name)
    except (ObjcatError, FileIOError) as error:
        if target.key.rpartition("/")[2] in str(error) or forged:
            return Outcome.NAMED, str(error)
        if kind == "deleted" and _looks_like_the_end(objects, target):
            return Outcome.SHORTER, str(error)
        return Outcome.UNNAMED, f"{type(error).__name__}: {error}"
    except Hangs:
        return Outcome.HANGS, ""
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return Outcome.RAW, f"{type(error).__name__}: {error}"
    if found == wanted or (what == "plans" and target.kind in ("plan", "intent")):
        # What is planned is advice: a plan that is gone is none.
        return Outcome.SAME, ""
    if forged:
        return Outcome.FORGERY, ""
    if kind == "deleted" and _looks_like_the_end(objects, target):
        return Outcome.SHORTER, ""
    return Outcome.OTHER, f"{str(found)[:300]} instead of {str(wanted)[:300]}"


def _looks_like_the_end(objects: dict[str, bytes], target: Target) -> bool:
    """Whether a slot that was deleted was the newest of its log, or above its newest root, where a look may end."""
    folder = target.key.rpartition("/")[0]
    if not folder.endswith("log"):
        return False
    slot = int(target.key.rpartition("/")[2].removesuffix(".json"))
    above = f"{folder.removesuffix('log')}checkpoints/{slot:020d}/"
    if all(key < target.key for key in objects if key.startswith(f"{folder}/")):
        return True
    return not any(key.startswith(f"{folder.removesuffix('log')}checkpoints/") and key > above for key in objects)


def tally(seeds: Iterable[int], *, reads: int) -> Tally:
    found = Tally()
    for seed in seeds:
        verdict = judged(seed, reads=reads)
        if verdict is not None:
            found.add(verdict)
    return found


__all__ = ["FAILURES", "Outcome", "Overwrite", "Tally", "Verdict", "judged", "tally"]

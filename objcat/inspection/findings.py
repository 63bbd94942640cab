"""Results of an examination: findings with severity and remedy, counts, and coverage of the invariants."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fileio.contract import ObjectMeta
from fileio.store import FileIO
from objcat.metadata.manifest import Manifests
from objcat.metadata.table_state import Tables
from objcat.timeline.entry import Entry
from objcat.timeline.log_view import Timeline

BACKUP = "Restore that object from a backup of the bucket, or its previous version if the bucket has versions."


CACHE = (
    "Nothing is lost, since a checkpoint is a cache. Readers pass over it, and the next one replaces it. If no next one comes, delete "
    "the objects below checkpoints/, and head.json."
)


class Severity(enum.StrEnum):
    """How bad a finding is."""

    BROKEN = "broken"
    """A guarantee of the protocol does not hold. Rows may be lost or wrong."""
    LEFTOVER = "leftover"
    """Nothing is wrong. An object is no longer needed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an examination found.

    Attributes:
        invariant: P1 to P9.
        severity: broken or leftover.
        subject: the object, slot or transaction.
        says: what was found.
        remedy: what to do.
    """

    invariant: str
    severity: Severity
    subject: str
    says: str
    remedy: str


class Coverage(enum.StrEnum):
    """How far an invariant was examined."""

    CHECKED = "checked"
    """As far as the store can show it."""
    IN_PART = "in part"
    """By metadata. Data files were not read."""
    NOT_LOOKED_AT = "not looked at"
    """Not in this examination, or a store cannot show it."""


INVARIANTS = {
    "P1": "the log has no gaps, and its entries are what was written",
    "P2": "a transaction has one outcome",
    "P3": "what was acknowledged is durable (only the writers can tell)",
    "P4": "what was reported as failed is not there (only the writers can tell)",
    "P5": "no entry follows one that it conflicts with",
    "P6": "commit times increase",
    "P7": "every file of every readable snapshot is there, and every object of every checkpoint",
    "P8": "there are no leftovers",
    "P9": "the log replays, checkpoints agree with it, each row is in the file group of its key, each key once",
    "P10": "reads are prefixes of the log (only readers can tell)",
    "P11": "writers progress (only the writers can tell)",
}
"""The guarantees, in the numbers of `docs/contributing/verification.md`, as far as an examination can check them."""


@dataclass(slots=True)
class DoctorReport:
    """The result of an examination.

    Attributes:
        url: the store of the log.
        tables: the names of the tables whose log this is, as far as they are known. Empty for the log of a lake's names.
        findings: what was found.
        counts: how much was examined, by name.
        coverage: how far each invariant was examined.
    """

    url: str
    tables: tuple[str, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    coverage: dict[str, Coverage] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, Coverage.NOT_LOOKED_AT))

    @property
    def healthy(self) -> bool:
        """Whether every examined invariant holds, see `coverage`. Leftovers do not count."""
        return not any(finding.severity is Severity.BROKEN for finding in self.findings)

    def cover(self, coverage: Coverage, *invariants: str) -> None:
        """Record how far invariants were examined."""
        self.coverage |= dict.fromkeys(invariants, coverage)

    def broken(self, invariant: str, subject: str, says: str, remedy: str = BACKUP) -> None:
        """Add a finding of a broken invariant."""
        self.findings.append(Finding(invariant, Severity.BROKEN, subject, says, remedy))

    def leftover(self, subject: str, says: str, remedy: str) -> None:
        """Add a finding of a leftover."""
        self.findings.append(Finding("P8", Severity.LEFTOVER, subject, says, remedy))


@dataclass(frozen=True, slots=True)
class Examination:
    """State that the steps share. listed: every object under the log's prefix at the start."""

    timeline: Timeline[Tables]
    report: DoctorReport
    listed: Mapping[str, ObjectMeta]
    entries: Sequence[Entry]
    manifests: Manifests

    @property
    def fileio(self) -> FileIO:
        """The store of the log."""
        return self.timeline.fileio

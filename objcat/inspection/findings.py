"""What a doctor finds: findings with their severity, what was looked at, and the invariants that hold."""

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

BACKUP = "restore that object from a backup of the bucket, or its former version where the bucket keeps versions"


CACHE = (
    "nothing is lost, since a checkpoint is a cache: readers pass over it, and the next one stands for it; "
    "where that does not come, delete the objects below checkpoints/, and head.json"
)


class Severity(enum.StrEnum):
    """How bad a finding is."""

    BROKEN = "broken"
    """A promise of the protocol does not hold: rows may be lost or wrong."""
    LEFTOVER = "leftover"
    """Nothing is wrong; something that nobody needs lies about."""


@dataclass(frozen=True, slots=True)
class Finding:
    """invariant: P1 to P9. subject: the object, slot or transaction. says: what was found. remedy: what mends it."""

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
    """By what metadata say; what only rows can show was not looked at."""
    NOT_LOOKED_AT = "not looked at"
    """Not in this examination, or it is nothing that a store can show."""


INVARIANTS = {
    "P1": "the log has no gaps, and its entries are what was written",
    "P2": "a transaction has one outcome",
    "P3": "what was acknowledged is durable; only who was told could say",
    "P4": "what was reported as failed is not there; only who was told could say",
    "P5": "no entry stands above one that it conflicts with",
    "P6": "commit times increase",
    "P7": "every file of every readable snapshot is there, and every object of every checkpoint",
    "P8": "nothing that nobody needs lies about",
    "P9": "the log folds, checkpoints say the same, each row lies where its key belongs, each key once",
    "P10": "reads are prefixes of the log; only readers could say",
    "P11": "writers progress; only writers could say",
}
"""What is promised, in the numbers of `docs/spec/protocol.md`, as far as an examination goes into it."""


@dataclass(slots=True)
class DoctorReport:
    """What an examination found. counts: what was looked at, by name. coverage: of each invariant, how far it was examined."""

    url: str
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    coverage: dict[str, Coverage] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, Coverage.NOT_LOOKED_AT))

    @property
    def healthy(self) -> bool:
        """Whether every invariant holds, as far as it was examined, see `coverage`. Leftovers are no illness."""
        return not any(finding.severity is Severity.BROKEN for finding in self.findings)

    def cover(self, coverage: Coverage, *invariants: str) -> None:
        """Note how far invariants were examined."""
        self.coverage |= dict.fromkeys(invariants, coverage)

    def broken(self, invariant: str, subject: str, says: str, remedy: str = BACKUP) -> None:
        self.findings.append(Finding(invariant, Severity.BROKEN, subject, says, remedy))

    def leftover(self, subject: str, says: str, remedy: str) -> None:
        self.findings.append(Finding("P8", Severity.LEFTOVER, subject, says, remedy))


@dataclass(frozen=True, slots=True)
class Examination:
    """What the steps share. listed: every object under the log's prefix, as it was when the examination began."""

    timeline: Timeline[Tables]
    report: DoctorReport
    listed: Mapping[str, ObjectMeta]
    entries: Sequence[Entry]
    manifests: Manifests

    @property
    def fileio(self) -> FileIO:
        return self.timeline.fileio

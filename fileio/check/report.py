"""What a check of a store found: verdicts, rows and the whole report."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


class Verdict(enum.StrEnum):
    """What became of one promise."""

    KEPT = "kept"
    IGNORED = "ignored"
    """The store said yes where it had to say no: the dangerous one."""
    REFUSED = "refused"
    """The store said no where it had to say yes."""
    UNSUPPORTED = "unsupported"
    """The store does not claim to do it."""
    FAILED = "failed"
    """An error, or an answer that fits nothing."""


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One check. required: commits rely on it. detail: what was seen, empty when there is nothing to say."""

    check: str
    meaning: str
    required: bool
    verdict: Verdict
    detail: str


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Everything that was looked at. fit: several writers may commit to tables here. why: one sentence for people."""

    url: str
    rows: Sequence[ProbeRow]
    fit: bool
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        rows = [
            {"check": r.check, "meaning": r.meaning, "required": r.required, "verdict": r.verdict.value, "detail": r.detail}
            for r in self.rows
        ]
        return {"url": self.url, "fit": self.fit, "why": self.why, "rows": rows}


Finding: TypeAlias = tuple[Verdict, str]


KEPT: Finding = (Verdict.KEPT, "")

"""What a check of a store found: verdicts, rows and the report."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


class Verdict(enum.StrEnum):
    """The verdict on one promise of a store."""

    KEPT = "kept"
    IGNORED = "ignored"
    """The store accepted what it had to refuse. This is the dangerous one."""
    REFUSED = "refused"
    """The store refused what it had to accept."""
    UNSUPPORTED = "unsupported"
    """The store does not claim to do it."""
    FAILED = "failed"
    """An error, or an unexpected answer."""


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One check.

    Args:
        check: Its name.
        meaning: What it checks.
        required: Whether commits rely on it.
        verdict: The result.
        detail: What was seen. Empty when there is nothing to say.
    """

    check: str
    meaning: str
    required: bool
    verdict: Verdict
    detail: str


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The whole report.

    Args:
        url: The store.
        rows: All checks.
        fit: Several writers may commit to tables here.
        why: The reason, as text for people.
    """

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

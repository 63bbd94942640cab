"""When a commit is due, and how many bad records it may have: `DueTimes` and `BadShare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass

from objcat.errors import TooManyBadRecords
from objcat.ingest.config import IngestConfig
from objcat.ingest.model import BadRecord


@dataclass(slots=True)
class DueTimes:
    """When things were done last, by the monotonic clock. first_s: when the first change of the batch came."""

    now_s: InitVar[float]
    committed_s: float = 0.0
    beat_s: float = 0.0
    discovered_s: float = 0.0
    first_s: float | None = None

    def __post_init__(self, now_s: float) -> None:
        self.committed_s = self.beat_s = self.discovered_s = now_s


class BadShare:
    """Counts bad records among the last ones."""

    def __init__(self, config: IngestConfig) -> None:
        self._config = config
        self._records = 0
        self._bad = 0

    def add(self, rows: int, bad: Sequence[BadRecord], position: str) -> None:
        """Count the records of a commit. Raises TooManyBadRecords."""
        limits = self._config.dead_letters
        bad = [record for record in bad if not record.is_asked]
        if self._records >= limits.window:
            self._records = self._bad = 0
        self._records += rows + len(bad)
        self._bad += len(bad)
        if bad and self._bad > limits.records_max:
            said = self._config.hide(f"{bad[0].table}: {bad[0].error}")
            raise TooManyBadRecords(
                f"{self._bad} of the last {self._records} records of {self._config.name!r} could not be decoded, and {limits.records_max} "
                f"are allowed. The first one of the batch at {position} is of {said}. This batch was not committed. Correct the source, or "
                f"raise records_max in [dead_letters] of {self._config.path}."
            )

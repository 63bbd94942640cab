"""A compaction strategy: file groups whose log rows have waited longest come first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from objcat import CompactionCandidate, FileGroupId


class OldestFirst:
    """The strategy `oldest-first`.

    Args:
        options: `least_s`: only file groups whose log rows have waited for so many seconds; 0 when it is not set.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._least_s = float(options.get("least_s", "0"))

    def choose(self, candidates: Sequence[CompactionCandidate]) -> list[FileGroupId]:
        """The file groups in the order of how long they have waited."""
        old = [candidate for candidate in candidates if candidate.waiting_s >= self._least_s]
        return [candidate.file_group for candidate in sorted(old, key=lambda candidate: (-candidate.waiting_s, candidate.file_group))]

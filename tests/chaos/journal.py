"""What a process was about to do and what came of it: one file per process, which outlives it.

A line of intent is on disk before the call, a line of outcome after it. An intent without an outcome is a process that was killed.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["acknowledged", "failed", "unknown", "settled", "served", "read", "broke"]
"""acknowledged: a commit. settled: other transactions were resolved. served: a service ran. read: a scan. broke: an error that the contract
does not know."""


@dataclass(slots=True)
class Attempt:
    """One call of one process.

    name: unique; it is the metadata of a commit, and every value that the commit writes begins with it. handle: the process, since reads of
    one handle never go backwards. writes: key -> value, None for a deletion. began_ns, ended_ns: by the one monotonic clock of the machine,
    so that those of different processes compare. outcome: None when the process was killed. said: what the outcome came with.
    """

    name: str
    handle: str
    operation: str
    writes: Mapping[int, str | None]
    began_ns: int
    ended_ns: int | None = None
    outcome: Outcome | None = None
    said: Mapping[str, Any] = field(default_factory=dict)


class Journal:
    """Appends to one file; a line is on disk when a method returns."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def begin(self, name: str, handle: str, operation: str, writes: Mapping[int, str | None]) -> None:
        self._append({"begin": name, "handle": handle, "operation": operation, "writes": writes, "at_ns": time.monotonic_ns()})

    def end(self, name: str, outcome: Outcome, said: Mapping[str, Any]) -> None:
        self._append({"end": name, "outcome": outcome, "said": said, "at_ns": time.monotonic_ns()})

    def _append(self, line: Mapping[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")
        os.fsync(self._file)


def read_journals(directory: Path) -> list[Attempt]:
    """All attempts of all processes; in the order of one process, of others in any."""
    attempts: dict[str, Attempt] = {}
    for path in sorted(directory.glob("*.journal")):
        for line in whole_lines(path.read_bytes()):
            if "begin" in line:
                writes = {int(key): value for key, value in line["writes"].items()}
                assert line["begin"] not in attempts, f"two attempts are called {line['begin']}"
                attempts[line["begin"]] = Attempt(line["begin"], line["handle"], line["operation"], writes, line["at_ns"])
            else:
                attempt = attempts[line["end"]]
                attempt.outcome, attempt.said, attempt.ended_ns = line["outcome"], line["said"], line["at_ns"]
    return list(attempts.values())


def whole_lines(data: bytes) -> Sequence[dict[str, Any]]:
    """The lines of a journal; what a killed process left of a last one does not count."""
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


class Tail:
    """How many outcomes of each kind journals hold, counted as they grow; errors are counted by name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self.outcomes: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.commits_of: Counter[str] = Counter()
        """Acknowledged commits by the name of a process."""
        self.ended_of: Counter[str] = Counter()
        """Calls that ended, by the name of a process."""
        self.at_work: dict[str, bool] = {}
        """By the name of a process: whether it is within a call that writes rows."""

    def update(self) -> None:
        for path in self._directory.glob("*.journal"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(data)
            for line in whole_lines(data):
                self.at_work[path.stem] = bool(line.get("writes"))
                if "outcome" in line:
                    self.outcomes[line["outcome"]] += 1
                    self.ended_of[path.stem] += 1
                    self.commits_of[path.stem] += line["outcome"] == "acknowledged"
                    self.errors.update([line["said"]["error"]] if line["outcome"] == "failed" else [])

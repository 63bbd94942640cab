"""`docs/reference/engines.md`: which engine reads the mirrors of which tables, made from the record of a run of the tests.

`./dev docs engines` runs them and keeps the record, `tests/engines/record.json`. `./dev docs reference` makes the page from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from devkit.engines import ENGINES
from devkit.paths import ROOT

RECORD = ROOT / "tests" / "engines" / "record.json"
_TITLES = {
    "iceberg 2": "Iceberg v2, position deletes",
    "iceberg 3": "Iceberg v3, deletion vectors",
    "delta": "Delta, deletion vectors",
}
_HEAD = """\
# Engines

<!-- Written by `./dev docs engines` and `./dev docs reference` from tests/engines/record.json. Do not edit it here. -->

This page says which engine reads which table by its mirrors, as a run of the tests has found it.

Each line is a kind of history of at least 40 commits, which a seed draws: writes, compactions, and what the line names.
An engine reads the newest state as a user does it, and older states by time travel.
Where a mirror waits, its newest state is that of an older slot.
`yes` means that every read had exactly the rows of `table.scan(as_of=slot)`.
A number is a note below: it says what the engine itself cannot do, or does in its own way.
`no` means that the engine refuses; it never gives other rows."""


def engines_page() -> str:
    """The text of the page."""
    record: dict[str, Any] = json.loads(RECORD.read_text())
    notes = _Notes(record["limits"], record["only_with"])
    tables = [_table(record, mirror, notes) for mirror in record["mirrors"]]
    versions = ["| engine | version |", "|---|---|"]
    versions += [f"| {engine['title']} | {engine['versions']} |" for engine in record["engines"].values()]
    parts = [
        _HEAD,
        "## Versions",
        "\n".join(versions),
        *tables,
        "## Notes",
        "\n".join(notes.lines()),
        f"The run read {_count(record['reads']):,} states of histories of seed {record['seed']}." + _left_out(record),
    ]
    return "\n\n".join(parts) + "\n"


def _left_out(record: Mapping[str, Any]) -> str:
    titles = [engine.title for name, engine in ENGINES.items() if name not in record["engines"]]
    return f"\nIt left out {' and '.join(titles)}." if titles else ""


class _Notes:
    """Numbers of limits, in the order in which the page meets them. Limits of one text have one number."""

    def __init__(self, limits: Mapping[str, Mapping[str, Any]], only_with: Sequence[Mapping[str, str]]) -> None:
        self._limits = limits
        self._only_with = {(one["engine"], one["mirror"]): one["why"] for one in only_with}
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        return self._number(self._limits[name]["why"])

    def of_engine(self, engine: str, mirror: str) -> str:
        """What stands behind the name of an engine."""
        why = self._only_with.get((engine, mirror))
        return "" if why is None else f" ({self._number(why)})"

    def _number(self, why: str) -> int:
        return self._numbers.setdefault(why, len(self._numbers) + 1)

    def is_read(self, name: str) -> bool:
        return bool(self._limits[name]["is_read"])

    def lines(self) -> list[str]:
        return [f"{number}. {why}" for why, number in self._numbers.items()]


def _table(record: Mapping[str, Any], mirror: str, notes: _Notes) -> str:
    """One format: kinds of histories by engines."""
    reads = record["reads"]
    engines = [name for name in record["engines"] if mirror in reads.get(name, {})]
    head = ["table", *(record["engines"][name]["title"] + notes.of_engine(name, mirror) for name in engines)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for cell, title in record["cells"].items():
        if not any(cell in reads[name][mirror] for name in engines):
            continue
        said = [_said(reads[name][mirror].get(cell), notes) for name in engines]
        lines.append(f"| {title} | {' | '.join(said)} |")
    return f"## {_TITLES[mirror]}\n\n" + "\n".join(lines)


def _said(outcomes: Mapping[str, int] | None, notes: _Notes) -> str:
    """One engine, one kind of history."""
    if outcomes is None:
        return "not tried"
    if "different" in outcomes:
        return "**wrong**"
    whole = sum(outcomes.values())
    limited = {outcome: outcome.split("+") for outcome in outcomes if outcome != "equal"}
    read = whole - sum(outcomes[outcome] for outcome, limits in limited.items() if not all(map(notes.is_read, limits)))
    said = "yes" if read == whole else "no" if read == 0 else f"{read} of {whole}"
    marks = ", ".join(map(str, sorted({notes.number(name) for limits in limited.values() for name in limits})))
    return f"{said} ({marks})" if marks else said


def _count(reads: Mapping[str, Any]) -> int:
    return sum(count for mirrors in reads.values() for cells in mirrors.values() for told in cells.values() for count in told.values())

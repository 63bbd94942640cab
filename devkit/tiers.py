"""Which test runs when, by `tests/tiers.toml`, and how long each file takes, by `tests/durations.json`."""

from __future__ import annotations

import json
import re
import tomllib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

from devkit.paths import ROOT

TESTS = ROOT / "tests"
TABLE = TESTS / "tiers.toml"
DURATIONS = TESTS / "durations.json"

Tier: TypeAlias = Literal["default", "integration", "all"]
TIERS: tuple[Tier, ...] = get_args(Tier)
"""The tiers, from the one that runs for every change to the one that runs at night."""
NEVER = "never"
OlderTier: TypeAlias = Tier | Literal["never"]
"""The first tier that runs a file on an older PySpark, or that the version lacks what the file is about."""
OLDER = ("3.5", "4.0", "4.1")
"""The older versions of PySpark that tests run on, each as `requirements/spark-<version>.lock` has it. The environment has the newest.
`durations.json` has the time of a file on one under its number."""
UNKNOWN_S = 5.0
"""The assumed seconds of a file without a recorded duration."""


class BadTable(Exception):
    """`tests/tiers.toml` has an entry without a meaning. The message names it."""


@dataclass(frozen=True, slots=True)
class Table:
    """The parts of `tests/tiers.toml`. Entries are folders, files or tests, relative to `tests/`.

    tier: the first tier that runs a test. older: the same for more runs on older PySparks, by version. needs: what is installed before.
    one_in: of how many cases of a test one runs before the last tier.
    """

    tier: Mapping[str, Tier]
    older: Mapping[str, Mapping[str, OlderTier]]
    needs: Mapping[str, Sequence[str]]
    one_in: Mapping[str, int] = field(default_factory=dict)

    def tier_of(self, name: str) -> Tier | None:
        """The tier of a file or a test by its most exact entry; None without an entry."""
        found = closest(self.tier, name)
        return None if found is None else self.tier[found]

    def is_chosen(self, name: str, first: bool) -> bool:
        """Whether a case of a test is among those that run before the last tier. The first case of each test is.

        Of the others a checksum of the name decides, so that no column of a table of cases is left out as a whole.
        """
        found = closest(self.one_in, name)
        return first or found is None or zlib.crc32(name.encode()) % self.one_in[found] == 0

    def may_have(self, file: str, tiers: Sequence[Tier]) -> bool:
        """Whether a file may have tests of these tiers. A marker in the file can move a test to a later tier than the table, never to an
        earlier one."""
        entries = [tier for entry, tier in self.tier.items() if entry.startswith(f"{file}::")]
        own = self.tier_of(file)
        return any(TIERS.index(tier) <= TIERS.index(wanted) for tier in (*entries, own) if tier is not None for wanted in tiers)

    def needs_of(self, path: str) -> set[str]:
        """What the tests of a file, a folder or a single test need."""
        path = path.partition("::")[0].rstrip("/")
        entries = (entry for entry in self.needs if matches(entry, path) or entry.startswith(f"{path}/") or path in ("", "."))
        return {need for entry in entries for need in self.needs[entry]}


@cache
def table() -> Table:
    """The table of this tree. Raises BadTable."""
    parts = tomllib.loads(TABLE.read_text())
    older: dict[str, dict[str, OlderTier]] = {version: parts["pyspark"][version] for version in OLDER}
    for part, entries in [("tier", parts["tier"]), *((f'pyspark."{version}"', some) for version, some in older.items())]:
        for entry, tier in entries.items():
            if tier not in TIERS and (part == "tier" or tier != NEVER):
                raise BadTable(f"tests/tiers.toml, [{part}], {entry!r}: {tier!r} is no tier; there are {', '.join(TIERS)}")
    for entry, number in parts["one-in"].items():
        if not isinstance(number, int) or number < 2:
            raise BadTable(f"tests/tiers.toml, [one-in], {entry!r}: {number!r} is no whole number above 1")
    return Table(parts["tier"], older, parts["needs"], parts["one-in"])


def matches(entry: str, name: str) -> bool:
    """Whether an entry covers a file or a test. A `*` in the name of a test matches anything."""
    if "::" not in entry:
        return name == entry or name.startswith((f"{entry}/", f"{entry}::"))
    if "*" in entry:
        return re.fullmatch(".*".join(map(re.escape, entry.split("*"))), name) is not None
    return name == entry or name.startswith((f"{entry}[", f"{entry}::"))


def closest(entries: Mapping[str, Any], name: str) -> str | None:
    """The longest entry that covers a file or a test."""
    return max((entry for entry in entries if matches(entry, name)), key=len, default=None)


def files() -> list[str]:
    """All files of tests, relative to `tests/`."""
    return sorted(str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py"))


def read_durations() -> dict[str, dict[str, float]]:
    """The last recorded seconds, by file and tier."""
    if not DURATIONS.exists():
        return {}
    found: dict[str, dict[str, float]] = json.loads(DURATIONS.read_text())
    return found


def write_durations(found: Mapping[str, Mapping[str, float]]) -> None:
    """Record seconds by file and tier, for the named files and tiers only. Deleted files are dropped. One line per file."""
    known = read_durations()
    for file, by_tier in found.items():
        known.setdefault(file, {}).update({tier: round(seconds, 1) for tier, seconds in by_tier.items()})
    present = set(files())
    lines = [f"  {json.dumps(file)}: {json.dumps(known[file], sort_keys=True)}" for file in sorted(known) if file in present]
    DURATIONS.write_text("{\n" + ",\n".join(lines) + "\n}\n")

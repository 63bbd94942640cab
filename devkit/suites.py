"""`./dev test`: which tests run, in which processes. The tiers are in `tests/tiers.toml`."""

from __future__ import annotations

import difflib
import os
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from devkit import prepare, toolchain
from devkit.runs import Outcome, Run, print_sum, run_all, run_here, status_of
from devkit.tiers import TESTS, TIERS, UNKNOWN_S, Table, Tier, files, read_durations, table, write_durations

SPARK_SUITE = "spark"
SESSION = "spark"
"""The need of a file that uses the one Spark session of the tests."""
OLDER_VARIABLE = "OBJCAT_TEST_PYSPARK"
"""This variable has the version when tests run on an older PySpark."""
AT_ONCE, AT_ONCE_WITH_SERVERS = 2, 3
"""Processes of pytest at once. Tests of servers and processes wait for them much of the time: with two, a third of the processors idles."""
BATCH_S = 90
"""The work of one process, in seconds: enough to be worth its start, and so little that both sides end at about the same time."""
SESSION_S = 450
"""With more work than this, in seconds, the files that use the Spark session go to two processes. With less, a second JVM costs more than
it saves."""
SEED_VARIABLE = "OBJCAT_TEST_SEED"
"""The seed of a run with `--all`. Without it, a seed is drawn and printed."""


class BadArguments(Exception):
    """The command line asks for something that does not exist. The message lists what exists."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A command line.

    Args:
        names: Suites, files or tests; empty means everything.
        tiers: The tiers to run.
        options: Options for pytest.
        record: Whether to record durations.
    """

    names: Sequence[str]
    tiers: Sequence[Tier]
    options: Sequence[str]
    record: bool = False


def test(arguments: Sequence[str]) -> int:
    """Run tests with pytest. The last line printed is pytest's summary, or the sum of several summaries."""
    try:
        asked = parse(arguments)
        paths = [_path_of(name) for name in asked.names]
    except BadArguments as error:
        print(f"dev test: {error}", file=sys.stderr)
        return 2
    prepare.install(needs(asked, table()))
    began_s = time.monotonic()
    runs = _named(paths, asked) if paths else batches(asked, table())
    at_once = AT_ONCE_WITH_SERVERS if "integration" in asked.tiers else AT_ONCE
    outcomes = [run_here(runs[0])] if len(runs) == 1 else run_all(runs, at_once)
    if len(runs) > 1:
        print_sum(outcomes, time.monotonic() - began_s)
    if asked.record and len(outcomes) == len(runs):
        write_durations(_durations(runs, outcomes))
    return status_of(outcomes)


def install(arguments: Sequence[str]) -> int:
    """`./dev install`: install what the tests need, without running them."""
    try:
        prepare.install(needs(parse(arguments), table()))
    except BadArguments as error:
        print(f"dev install: {error}", file=sys.stderr)
        return 2
    return 0


def suites() -> list[str]:
    """The folders of `tests/` that hold tests."""
    return sorted({file.split("/")[0] for file in files()})


def parse(arguments: Sequence[str]) -> Asked:
    """Parse a command line. Leading names are suites, files or tests. From the first other option on, everything is for pytest.

    `--integration`, `--all`, `--tier` and `--record-durations` may be anywhere. Named tests run up to the tier of integration.
    Raises BadArguments.
    """
    rest, tiers, record = list(arguments), None, False
    for word, chosen in (("--integration", TIERS[:2]), ("--all", TIERS)):
        if word in rest:
            rest.remove(word)
            tiers = chosen
    if "--record-durations" in rest:
        rest.remove("--record-durations")
        record = True
    if "--tier" in rest:
        at = rest.index("--tier")
        wanted = rest[at + 1] if at + 1 < len(rest) else ""
        if wanted not in TIERS:
            raise BadArguments(f"There is no tier {wanted!r}. There are {', '.join(TIERS)}.")
        tiers = tuple(tier for tier in TIERS if tier == wanted)
        del rest[at : at + 2]
    first_option = next((i for i, argument in enumerate(rest) if argument.startswith("-")), len(rest))
    names = rest[:first_option]
    return Asked(names, tiers or (TIERS[:2] if names else TIERS[:1]), rest[first_option:], record)


def needs(asked: Asked, known: Table) -> set[str]:
    """What has to be installed for the tests of a command line."""
    paths = [_relative(_path_of(name)) for name in asked.names] or [file for file in files() if known.may_have(file, asked.tiers)]
    found = {need for path in paths for need in known.needs_of(path)}
    for version, some in _on_older(asked, known).items():
        found.add(f"pyspark-{version}")
        found |= {f"{need}-{version}" for file in some for need in known.needs_of(file) if f"{need}-{version}" in prepare.NEEDS}
    return found


def batches(asked: Asked, known: Table) -> list[Run]:
    """All files of some tiers, dealt to processes by duration, the longest process first.

    Files that use the Spark session share one process with one JVM. Where they take long, they are two processes of about equal time, so
    that both sides have work to the end.
    """
    durations = read_durations()
    seconds = {file: _seconds(durations.get(file), asked.tiers) for file in files() if known.may_have(file, asked.tiers)}
    with_session = {file: took for file, took in seconds.items() if SESSION in known.needs_of(file)}
    others = {file: took for file, took in seconds.items() if file not in with_session}
    sessions = halves(with_session) if sum(with_session.values()) > SESSION_S else [list(with_session)]
    dealt = [*(sorted(some, key=_place_in_session) for some in sessions if some), *deal(others, known.needs_of)]
    runs = [_run(_title(some), some, asked, about_s=sum(seconds[file] for file in some)) for some in dealt]
    for version, some in _on_older(asked, known).items():
        about_s = sum(durations.get(file, {}).get(version, UNKNOWN_S) for file in some)
        runs.append(_older_run(version, some, asked, about_s))
    # The long ones come first, so that both sides end at about the same time.
    return sorted(runs, key=lambda run: -run.about_s)


def _place_in_session(file: str) -> tuple[bool, bool, str]:
    """The suite of Spark begins, and pages end: their examples set up the session as a user would, and leave it so."""
    return not file.startswith(f"{SPARK_SUITE}/"), file.startswith("docs/"), file


def halves(seconds: Mapping[str, float]) -> list[list[str]]:
    """Files in two lists of nearly equal seconds: each file, the longest one first, goes to the list that has less so far."""
    lists: tuple[list[str], list[str]] = ([], [])
    sums = [0.0, 0.0]
    for file in sorted(seconds, key=lambda file: (-seconds[file], file)):
        less = sums.index(min(sums))
        lists[less].append(file)
        sums[less] += seconds[file]
    return list(lists)


def deal(
    seconds: Mapping[str, float], needs_of: Callable[[str], Collection[str]] = lambda _: (), most_s: float = BATCH_S
) -> list[list[str]]:
    """Files in lists of about `most_s` seconds. Files of one folder stay together where they fit: they share servers and fixtures.

    needs_of: what a file needs. Of a folder that does not fit, files with the same needs stay together.
    """
    dealt: list[list[str]] = []
    small: dict[str, float] = {}
    for _folder, group in groupby(sorted(seconds), key=lambda file: file.split("/")[0]):
        inside = sorted(group, key=lambda file: (sorted(needs_of(file)), file))
        if sum(seconds[file] for file in inside) < most_s / 2:
            small |= {file: seconds[file] for file in inside}
        else:
            dealt += _cut(inside, seconds, most_s)
    return [*dealt, *_cut(list(small), seconds, most_s)]


def _cut(some: Sequence[str], seconds: Mapping[str, float], most_s: float) -> list[list[str]]:
    """Files in stretches of about `most_s` seconds."""
    stretches = max(1, round(sum(seconds[file] for file in some) / most_s))
    share = sum(seconds[file] for file in some) / stretches
    parts: list[list[str]] = []
    filled_s = share
    for file in some:
        if filled_s >= share:
            parts.append([])
            filled_s = 0
        parts[-1].append(file)
        filled_s += seconds[file]
    return parts


def _seconds(by_tier: Mapping[str, float] | None, tiers: Sequence[Tier]) -> float:
    return UNKNOWN_S if by_tier is None else sum(by_tier.get(tier, 0) for tier in tiers)


def _title(some: Sequence[str]) -> str:
    counts: dict[str, int] = defaultdict(int)
    for file in some:
        counts[file.split("/")[0]] += 1
    return ", ".join(f"{suite} ({count} {'files' if count > 1 else 'file'})" for suite, count in counts.items())


def _path_of(name: str) -> str:
    file = name.split("::", maxsplit=1)[0]
    for place in (TESTS, Path.cwd()):
        if (place / file).exists():
            return str(place / name)
    near = difflib.get_close_matches(name, suites(), n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(suites())}."
    raise BadArguments(f"There is no suite {name!r}. {hint}")


def _relative(path: str) -> str:
    """A path of tests in the form of `tests/tiers.toml`; "" for all tests."""
    file = Path(path.split("::", maxsplit=1)[0]).resolve()
    return str(file.relative_to(TESTS)) if file.is_relative_to(TESTS) and file != TESTS else ""


def _named(paths: Sequence[str], asked: Asked) -> list[Run]:
    every = Asked(asked.names, asked.tiers, ["--every-case", *asked.options], asked.record)
    runs = [_run(", ".join(asked.names), paths, every)]
    runs += [_older_run(version, some, every, 0) for version, some in _on_older(asked, table()).items()]
    return runs


def _on_older(asked: Asked, known: Table) -> dict[str, list[str]]:
    """The files that run on older PySparks too, by version: for a run of everything, or of the suite of Spark."""
    if asked.names and not any(_relative(_path_of(name)) == SPARK_SUITE for name in asked.names):
        return {}
    chosen = {
        version: [file for file in files() if tiers.get(file, tiers.get(file.partition("/")[0])) in asked.tiers]
        for version, tiers in known.older.items()
    }
    return {version: some for version, some in chosen.items() if some}


def _run(title: str, paths: Sequence[str], asked: Asked, *, about_s: float = 0) -> Run:
    here = [str(TESTS / path) for path in paths]
    environment = {}
    options = [*asked.options]
    if "all" in asked.tiers:
        seed = os.environ.setdefault(SEED_VARIABLE, str(secrets.randbits(32)))
        environment[SEED_VARIABLE] = seed
        if not any(option.startswith("--hypothesis-seed") for option in options):
            options.append(f"--hypothesis-seed={seed}")
    return Run(title, [*here, "--tiers", ",".join(asked.tiers), *options], about_s, environment)


def _older_run(version: str, some: Sequence[str], asked: Asked, about_s: float) -> Run:
    """Whole files on an older PySpark, with their tests of earlier tiers, which ran on the newest PySpark before."""
    tiers = TIERS[: TIERS.index(asked.tiers[-1]) + 1]
    run = _run(
        f"{len(some)} files on PySpark {toolchain.locked_version(f'spark-{version}')}",
        some,
        Asked(asked.names, tiers, asked.options),
        about_s=about_s,
    )
    search = os.pathsep.join(filter(None, [str(prepare.older_pyspark(version)), os.environ.get("PYTHONPATH")]))
    return Run(run.title, run.arguments, run.about_s, {**run.environment, "PYTHONPATH": search, OLDER_VARIABLE: version})


def _durations(runs: Sequence[Run], outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """Seconds by file and tier."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for run, outcome in zip(runs, outcomes, strict=True):
        for name, time_ in outcome.times.items():
            tier = run.environment.get(OLDER_VARIABLE, time_.tier)
            found[name.removeprefix("tests/").partition("::")[0]][tier] += time_.seconds
    return found

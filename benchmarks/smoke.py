"""`./dev bench smoke`: the works of every suite on a few rows. It tells no figures, only whether every side did, held and answered what it
should: a benchmark that has not run for a while is broken, and one that compares wrong answers is worse.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import commit_bench, fileio_bench, index_bench, lookup_bench, lookup_side, metadata_bench, mirror_tables, writers
from benchmarks.data import make_data
from benchmarks.figures import WorkResult, failed, own_side
from benchmarks.fileio_sides import Target
from benchmarks.install import PeerUnavailable
from benchmarks.peers import SIDES, Peer
from benchmarks.remote import SideFailed
from benchmarks.run import Runner, Say
from benchmarks.suites import EARLY_LOOKUP, LOOKUP, SUITES
from benchmarks.tables_bench import ON_S3, selected, sides_of, started
from benchmarks.works import Chain, Step
from devkit.servers import ServerError, Servers

SCALE = 0.001
"""Of TPC-H: 1,500 orders. Spark and pyiceberg take their time for each commit, whatever it holds."""
SMALL_COMMITS = 10
GROUPS = 20
FILES, PARTITIONS, LOG = 100, 10, 100


def small(chain: Chain) -> Chain:
    """The chain with a lookup that finds a row, few successive commits, and each query once."""
    return replace(chain, steps=tuple(_small(step) for step in chain.steps))


def _small(step: Step) -> Step:
    query = EARLY_LOOKUP if step.query == LOOKUP else step.query
    counts = tuple((name, SMALL_COMMITS) for name, _ in step.counts)
    return replace(step, query=query, counts=counts, repeats=1, warm=0)


def check_tables(chains: Sequence[Chain], runner: Runner) -> list[str]:
    """What is wrong in the works of some chains."""
    results = [result for chain in chains for result in runner.run(small(chain))]
    return [*failed(results), *not_done(results)]


def not_done(results: Sequence[WorkResult]) -> list[str]:
    """Works that objcat did not perform: then the absence of errors proves nothing."""
    return [
        f"{result.chain}, {result.work}: {own_side(result)} did not do it: {result.lacks.get(own_side(result), 'it was not asked')}"
        for result in results
        if not result.samples.get(own_side(result)) and own_side(result) not in result.wrong
    ]


def check_index(place: Path) -> list[str]:
    """What is wrong in tables under each index."""
    wrong = []
    for index in index_bench.INDEXES:
        try:
            index_bench.measure(place, index, "random", GROUPS, rounds=1)
        except index_bench.WrongRows as error:
            wrong.append(f"{index}: {error}")
    return wrong


def check_metadata(place: Path) -> list[str]:
    """What is wrong in plans of tables of many files and of many commits."""
    large, log, quiet = str(place / "large"), place / "log", lambda _: None
    metadata_bench.make_large(large, files=FILES, partitions=PARTITIONS, say=quiet)
    metadata_bench.make_long(str(log), log, commits=LOG, say=quiet)
    plan = metadata_bench.plan_cold(large, metadata_bench.name_of(PARTITIONS // 2))
    opened = metadata_bench.open_cold(str(log), hint=True)
    asked = {"files of a partition": (plan["files"], FILES // PARTITIONS), "newest slot": (opened["slot"], LOG - 1)}
    return [f"{what}: {found} instead of {right}" for what, (found, right) in asked.items() if found != right]


def check_mirrors(place: Path) -> list[str]:
    """What is wrong in mirrors of a table of many files. What is measured raises when a mirror does not follow."""
    url, wrong = str(place), []
    mirror_tables.make_mirrored(url, files=FILES, ids=SMALL_COMMITS, say=lambda _: None)
    files = mirror_tables.begin(url, "Iceberg v2")["live files"]
    mirror_tables.follow(url, FILES, SMALL_COMMITS, rounds=1)
    if files != FILES:
        wrong.append(f"files of the mirror: {files} instead of {FILES}")
    return wrong


def check_fileio(place: Path) -> list[str]:
    """What is wrong with objects that were put, read and streamed. Both sides compare the bytes themselves, and raise."""
    place.mkdir()
    fileio_bench.run_store("file", Target("file", str(place)), pairs=1, length=1 << 20, only="all", say=lambda _: None)
    return []


def check_commit(_place: Path) -> list[str]:
    """What is wrong after concurrent commits of several writers, on an S3 server."""
    with Servers() as servers:
        found = [
            commit_bench.run(side, servers.start(commit_bench.SERVER).fresh_bucket(), keys, writers=2, commits=2, latency_ms=0)
            for side in writers.SIDES.values()
            for keys in side.does
        ]
    return [f"{one.side}, {one.keys}: {sentence}" for one in found for sentence in one.wrong]


def check_lookup(place: Path) -> list[str]:
    """What is wrong with lookups of new processes. Each compares its row."""
    place.mkdir()
    found = lookup_bench.measure(
        list(lookup_side.LOOKUP_SIDES), place, commits=SMALL_COMMITS, upserts=2, runs=1, latency_ms=0, say=lambda _: None
    )
    own = [one.count for one in found if one.side == "objcat-local" and one.count > 14 + 2]
    return [f"objcat sent {count} requests" for count in own]


OTHERS: Mapping[str, Callable[[Path], list[str]]] = {
    "index": check_index,
    "metadata": check_metadata,
    "mirrors": check_mirrors,
    "fileio": check_fileio,
    "commit": check_commit,
    "lookup": check_lookup,
}
"""The suites that are not of tables beside others."""


def check(suites: Sequence[str], sides: Sequence[Peer], *, only: str | None, place: Path, say: Say) -> dict[str, list[str]]:
    """What is wrong, by suite. only: works of tables with this in their name. Raises PeerUnavailable and SideFailed when a side does not
    start."""
    found: dict[str, list[str]] = {}
    for suite in (suite for suite in suites if suite in OTHERS):
        say(suite)
        found[suite] = OTHERS[suite](place / suite)
    data = make_data(SCALE, say)
    for engine in dict.fromkeys(side.engine for side in sides):
        chains = {
            suite: [chain for chain in selected(SUITES[suite], only) if chain.engine == engine] for suite in suites if suite in SUITES
        }
        for on_s3 in (False, True):
            asked = {suite: some for suite, some in chains.items() if some and (suite == ON_S3) is on_s3}
            wanted = {side.name for some in asked.values() for side in sides_of(some, engine)}
            if not asked:
                continue
            with started([side for side in sides if side.name in wanted], place, say, on_s3=on_s3, memory="1g", cores=2) as alive:
                runner = Runner(alive, data, None, rounds=1, say=say)
                for suite, some in asked.items():
                    found.setdefault(suite, []).extend(check_tables(some, runner))
    return found


def main(arguments: Sequence[str], sides: Sequence[Peer] = tuple(SIDES.values())) -> int:
    """Run the works. Returns 0 when every answer was right, else 1. `sides`: of the suites of tables."""
    known = [*SUITES, *OTHERS]
    parser = argparse.ArgumentParser(prog="./dev bench smoke", description="The works of all suites on a few rows, each answer checked.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(known)}; all of them without one")
    parser.add_argument("--only", metavar="WORK", help="of tables: works with this in their name, or in their chain's")
    parser.add_argument("--all", action="store_true", help="with objcat, Hudi, Iceberg, Delta Lake and plain tables on Spark: some minutes")
    chosen = parser.parse_args(arguments)
    if unknown := sorted(set(chosen.suites) - set(known)):
        parser.error(f"there is no suite {unknown[0]!r}: there are {', '.join(known)}")
    began_s = time.monotonic()
    taking_part = [side for side in sides if chosen.all or side.engine == "local"]
    with tempfile.TemporaryDirectory(prefix="objcat-bench-") as place:
        try:
            found = check(chosen.suites or known, taking_part, only=chosen.only, place=Path(place), say=_say)
        except (PeerUnavailable, SideFailed, ServerError) as error:
            print(f"bench smoke: {error}")
            return 1
    for suite, wrong in found.items():
        print(f"{suite}: {'right' if not wrong else 'WRONG'}", *wrong, sep="\n  ")
    print(f"{time.monotonic() - began_s:.0f} s")
    if not found:
        print(f"bench smoke: no work has {chosen.only!r} in its name, so nothing was checked")
    return 1 if any(found.values()) or not found else 0


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")

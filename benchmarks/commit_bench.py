"""`./dev bench commit`: tiny commits, one by one and by many processes at once, on an S3 server with and without latency.

deltalake is the other side. The floor is one conditional PUT per commit, at the same server and latency: no commit that the store decides
can take less. Each commit has 100 rows. After each run every row must exist, and each commit must be one of the table's. Otherwise the run
has no figures.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import shlex
import signal
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import environment
from benchmarks.commit_simulated import SimulatedResult, cells_of_simulated, run_simulated
from benchmarks.commit_threads import ThreadsResult, cells_of, run_threads
from benchmarks.slow_proxy import SlowProxy
from benchmarks.writers import KEYS, SIDES, Did, Keys, Side, Wrote, write, wrong_rows
from devkit.handle import ServerHandle
from devkit.servers import ServerName, Servers

SERVER: ServerName = "versitygw"
RUN_S_MAX = 900
SIMULATED_MS = 20.0
IN_TURN = 50
AT_ONCE = 64
"""Commits of a run with one writer, and of all writers of a run together. Each makes at least two."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run.

    Args:
        p50_ms: Median of a commit, its attempts included. Likewise `p99_ms`.
        requests: Per commit, by method, without the opening of tables.
        redone: Attempts beyond the first, per commit.
        orphaned_bytes: Data that no commit names.
        wrong: What failed. Then figures mean nothing.
    """

    side: str
    keys: Keys
    writers: int
    latency_ms: float
    commits: int
    commits_per_s: float = 0
    p50_ms: float = 0
    p99_ms: float = 0
    requests: Mapping[str, float] | None = None
    redone: float = 0
    orphaned_bytes: int = 0
    wrong: tuple[str, ...] = ()


def run(make_side: type[Side], server: ServerHandle, keys: Keys, *, writers: int, commits: int, latency_ms: float) -> Result:
    """Let so many processes write to a new table. `server`: with its own bucket. `commits`: of each writer."""
    make_side(server, keys).make()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.writers"])
    ready, results = context.Barrier(writers + 1), context.Queue()
    with SlowProxy(server.endpoint, latency_ms=latency_ms) as proxy:
        side = make_side(server.through(proxy.url), keys)
        processes = [context.Process(target=write, args=(side, number, commits, ready, results)) for number in range(writers)]
        for process in processes:
            process.start()
        try:
            before, began_s = _begin(ready, proxy)
            wrote = _gathered(processes, results)
            took_s = time.perf_counter() - began_s
        finally:
            for process in processes:
                process.kill()
                process.join()
        sent = {method: count - before.get(method, 0) for method, count in proxy.requests.items()}
    return _result(make_side(server, keys), wrote, sent, took_s, commits=commits, latency_ms=latency_ms)


def _begin(ready: Any, proxy: SlowProxy) -> tuple[dict[str, int], float]:
    """Wait until all writers have opened the table, then start them. Returns the requests so far. A failed writer reports that."""
    try:
        ready.wait(RUN_S_MAX)
        before = proxy.requests
        ready.wait(RUN_S_MAX)
    except threading.BrokenBarrierError:
        before = proxy.requests
    return before, time.perf_counter()


def _gathered(processes: Sequence[Any], results: Any) -> list[Wrote]:
    found: list[Wrote] = []
    deadline_s = time.monotonic() + RUN_S_MAX
    while len(found) < len(processes) and time.monotonic() < deadline_s:
        try:
            found.append(results.get(timeout=1))
        except queue.Empty:
            if not any(process.is_alive() for process in processes):
                break
    return found


def _result(side: Side, wrote: Sequence[Wrote], sent: Mapping[str, int], took_s: float, *, commits: int, latency_ms: float) -> Result:
    """The figures of a run, unless something is wrong. `side`: without latency. `sent`: requests, by method."""
    did = [one for writer in wrote for one in writer.did]
    total = commits * len(wrote)
    run_of = Result(side.name, side.keys, len(wrote), latency_ms, total)
    if wrong := wrong_with(side, wrote, did, commits=commits):
        return replace(run_of, wrong=tuple(wrong))
    ms = [second * 1000 for writer in wrote for second in writer.seconds]
    return replace(
        run_of,
        commits_per_s=total / took_s,
        p50_ms=statistics.median(ms),
        p99_ms=statistics.quantiles(ms, n=100, method="inclusive")[-1],
        requests={method: count / total for method, count in sorted(sent.items()) if count},
        redone=sum(one.attempts - 1 for one in did) / total,
        orphaned_bytes=side.orphaned_bytes(did),
    )


def wrong_with(side: Side, wrote: Sequence[Wrote], did: Sequence[Did], *, commits: int) -> list[str]:
    """What is wrong after a run in which each of the writers made so many commits."""
    if errors := [f"writer {one.writer} failed: {one.error}" for one in wrote if one.error]:
        return errors
    total = commits * len(wrote)
    wrong = []
    if len(did) != total:
        wrong.append(f"{len(did)} commits were answered instead of {total}")
    if len({one.version for one in did}) != total:
        wrong.append(f"{total} commits have only {len({one.version for one in did})} versions")
    if side.commits() != total:
        wrong.append(f"the table has {side.commits()} commits instead of {total}")
    return [*wrong, *wrong_rows(side.keys, side.rows(), writers=len(wrote), commits=commits)]


def runs(*, writers: Sequence[int], keys: Sequence[Keys]) -> list[tuple[Keys, int, int]]:
    """Keys, writers, and the number of commits of each writer."""
    return [(kind, count, IN_TURN if count == 1 else max(2, AT_ONCE // count)) for kind in keys for count in writers]


def main(arguments: Sequence[str]) -> int:
    """Run the suite. Returns 0 when nothing was wrong, else 1."""
    parser = argparse.ArgumentParser(prog="./dev bench commit", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--writers", type=int, nargs="*", default=[1, 2, 8, 32], help="processes that write at once; with 1, commits follow one another"
    )
    parser.add_argument("--keys", nargs="*", default=list(KEYS), choices=KEYS)
    parser.add_argument("--latency", type=float, nargs="*", default=[0, 20], metavar="MS", help="latency of each request")
    parser.add_argument("--sides", nargs="*", default=list(SIDES), choices=list(SIDES))
    parser.add_argument(
        "--threads", type=int, nargs="*", default=[], metavar="N", help="runs of so many threads of one process too, on a local disk"
    )
    parser.add_argument(
        "--simulated", type=int, nargs="*", default=[], metavar="N", help="runs of so many processes in simulated time too, with 20 ms"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures and the environment to this file")
    chosen = parser.parse_args(arguments)
    # A request to end must end the writers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    results: list[Result] = []
    of_threads: list[ThreadsResult] = []
    simulated: list[SimulatedResult] = []
    command, began = shlex.join(["./dev", "bench", "commit", *arguments]), environment.now()
    with Servers() as servers:
        for latency_ms in chosen.latency:
            for number, (keys, writers, commits) in enumerate(runs(writers=chosen.writers, keys=chosen.keys)):
                for name in [name for name in chosen.sides if keys in SIDES[name].does][:: 1 if number % 2 else -1]:
                    server = servers.start(SERVER).fresh_bucket()
                    one = run(SIDES[name], server, keys, writers=writers, commits=commits, latency_ms=latency_ms)
                    results.append(one)
                    sys.stderr.write(f"{one}\n")
                    if chosen.json:
                        _keep(chosen.json, results, environment.machine(command, began=began))
    for threads in chosen.threads:
        for own in (False, True) if threads > 1 else (False,):
            of_threads.append(run_threads(threads=threads, own=own))
            sys.stderr.write(f"{of_threads[-1]}\n")
            if chosen.json:
                _keep(chosen.json, results, environment.machine(command, began=began), of_threads)
    for writers in chosen.simulated:
        for together in (False, True):
            simulated.append(run_simulated(writers=writers, latency_ms=SIMULATED_MS, together=together))
            sys.stderr.write(f"{simulated[-1]}\n")
            if chosen.json:
                _keep(chosen.json, results, environment.machine(command, began=began), of_threads, simulated)
    _show(results)
    _show_threads(of_threads)
    _show_simulated(simulated)
    wrong = [*(one.wrong for one in results), *(one.wrong for one in of_threads), *(one.wrong for one in simulated)]
    return 1 if any(wrong) else 0


def _keep(
    path: str,
    results: Sequence[Result],
    told: Mapping[str, Any],
    of_threads: Sequence[ThreadsResult] = (),
    simulated: Sequence[SimulatedResult] = (),
) -> None:
    said: dict[str, Any] = {"environment": {**told, "store": f"S3 ({SERVER})"}, "results": [asdict(one) for one in results]}
    if of_threads:
        said["threads"] = [asdict(one) for one in of_threads]
    if simulated:
        said["simulated"] = [asdict(one) for one in simulated]
    with open(path, "w") as file:
        json.dump(said, file, indent=1)


def _show_threads(results: Sequence[ThreadsResult]) -> None:
    if not results:
        return
    table = Table("threads", "handles", "commits/s", "p50, ms", "p99, ms", "CPU, ms", "requests", "slots lost")
    for one in results:
        table.add_row(*cells_of(one))
    (Console() if sys.stdout.isatty() else Console(width=140)).print(table)


def _show_simulated(results: Sequence[SimulatedResult]) -> None:
    if not results:
        return
    table = Table("writers", "latency", "group_commit", "commits/s", "p50, ms", "p99, ms", "requests", "slots", "CPU, ms")
    for one in results:
        table.add_row(*cells_of_simulated(one))
    (Console() if sys.stdout.isatty() else Console(width=140)).print(table)


def _show(results: Sequence[Result]) -> None:
    table = Table("keys", "writers", "latency", "side", "commits/s", "p50, ms", "p99, ms", "requests", "redone", "orphaned, KB")
    for one in sorted(results, key=lambda one: (one.keys, one.latency_ms, one.writers, one.side)):
        head = (one.keys, str(one.writers), f"{one.latency_ms:g} ms", one.side)
        if one.wrong:
            table.add_row(*head, "[bold red]WRONG", one.wrong[0][:60])
            continue
        figures = (f"{one.commits_per_s:.1f}", f"{one.p50_ms:,.0f}", f"{one.p99_ms:,.0f}", f"{sum((one.requests or {}).values()):.1f}")
        table.add_row(*head, *figures, f"{one.redone:.2f}", f"{one.orphaned_bytes / 1000:,.0f}")
    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(table)
    for one in results:
        for sentence in one.wrong:
            console.print(f"[bold red]WRONG: {one.side}, {one.keys}, {one.writers} writers, {one.latency_ms:g} ms: {sentence}")

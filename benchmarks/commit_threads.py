"""Many threads of one process that commit to one table on a local disk: rows of `./dev bench commit`.

The peer is one thread alone in the same run: the slots of a table are taken one after the other, so more threads cannot be faster.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import objcat
from benchmarks.writers import SCHEMA, Keys, batch, wrong_rows

COMMITS = 2000
"""Of all threads of a run together. Each makes at least one."""


@dataclass(frozen=True, slots=True)
class ThreadsResult:
    """One run of threads.

    Args:
        handles: "one" for all threads, or "own": each thread has a lake and a handle of its own.
        cpu_ms: Of the process, per commit.
        requests: Per commit, by kind, checkpoints and maintenance included.
        slots_lost: Per commit.
        wrong: What failed. Then figures mean nothing.
    """

    threads: int
    handles: str
    commits: int
    commits_per_s: float = 0
    p50_ms: float = 0
    p99_ms: float = 0
    cpu_ms: float = 0
    requests: Mapping[str, float] | None = None
    slots_lost: float = 0
    wrong: tuple[str, ...] = ()


def run_threads(*, threads: int, own: bool, commits: int = COMMITS) -> ThreadsResult:
    """Let so many threads upsert into a new table, each into its own partition. commits: of all threads together."""
    each = max(1, commits // threads)
    keys: Keys = "disjoint"
    run_of = ThreadsResult(threads, "own" if own else "one", each * threads)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        layout: dict[str, Any] = {"index": objcat.BucketIndex(16), "partition_by": ["part"], "key_scope": "partition"}
        table = objcat.connect(folder).create_table("t", SCHEMA, key=["id"], **layout)
        handles = [objcat.connect(folder).table("t") for _ in range(threads)] if own else [table] * threads
        distinct = list({id(handle): handle for handle in handles}.values())
        before = [handle._context.fileio.metrics.snapshot() for handle in distinct]
        batches = [[batch(keys, number, commit) for commit in range(each)] for number in range(threads)]
        seconds: list[float] = []
        lost: list[int] = []
        errors: list[BaseException] = []
        ready = threading.Barrier(threads + 1)

        def write(number: int) -> None:
            ready.wait()
            try:
                for rows in batches[number]:
                    began_s = time.perf_counter()
                    lost.append(handles[number].upsert(rows).slots_lost)
                    seconds.append(time.perf_counter() - began_s)
            except BaseException as error:  # noqa: BLE001 - the run must know any error
                errors.append(error)

        running = [threading.Thread(target=write, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        ready.wait()
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        for thread in running:
            thread.join()
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        sent: dict[str, int] = {}
        for handle, begun in zip(distinct, before, strict=True):
            for kind, count in (handle._context.fileio.metrics.snapshot() - begun).requests.items():
                sent[kind] = sent.get(kind, 0) + count
        wrong = [f"a thread failed: {error!r}" for error in errors]
        wrong = wrong or wrong_rows(keys, objcat.connect(folder).table("t").scan().to_arrow(), writers=threads, commits=each)
    if wrong:
        return replace(run_of, wrong=tuple(wrong))
    total = each * threads
    return replace(
        run_of,
        commits_per_s=total / took_s,
        p50_ms=statistics.median(seconds) * 1000,
        p99_ms=statistics.quantiles(seconds, n=100, method="inclusive")[-1] * 1000,
        cpu_ms=cpu_s / total * 1000,
        requests={kind: count / total for kind, count in sorted(sent.items()) if count},
        slots_lost=sum(lost) / total,
    )


def cells_of(one: ThreadsResult) -> Sequence[str]:
    """A line of the table: threads, handles, and the figures, or what is wrong."""
    head = (str(one.threads), one.handles)
    if one.wrong:
        return (*head, "[bold red]WRONG", one.wrong[0][:60], "", "", "", "")
    figures = (f"{one.commits_per_s:,.0f}", f"{one.p50_ms:,.1f}", f"{one.p99_ms:,.0f}", f"{one.cpu_ms:.2f}")
    return (*head, *figures, f"{sum((one.requests or {}).values()):.1f}", f"{one.slots_lost:.2f}")

"""`./dev bench write|read`: this project beside what its users would use instead, on the same rows, in one run.

Every side is a process of its own that stays alive. They take turns step by step, so that whatever else the machine does meets all of them.
What they hold and answer is compared with what DuckDB computes from the source files; without equality no ratio is told.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks import page, report
from benchmarks.data import make_data
from benchmarks.figures import WorkResult, failed, raw
from benchmarks.install import PeerUnavailable
from benchmarks.peers import PEERS, SIDES
from benchmarks.remote import Remote, SideFailed
from benchmarks.run import Runner, Say
from benchmarks.suites import SUITES
from benchmarks.works import BUCKETS, CODEC, Chain

WARM_SCALE = 0.05


def selected(chains: Sequence[Chain], only: str | None) -> list[Chain]:
    """The chains with a work whose name (or whose chain's name) has `only` in it; of each the steps up to the last such work."""
    if not only:
        return list(chains)
    wanted = only.casefold()
    found = []
    for chain in chains:
        whole = wanted in chain.name.casefold()
        chosen = [number for number, step in enumerate(chain.steps) if step.work and (whole or wanted in step.work.casefold())]
        if chosen:
            last = len(chain.steps) if whole else chosen[-1] + 1
            checks = tuple(step for step in chain.steps[last:] if step.op == "digest")
            steps = tuple(
                step if number in chosen or not step.work else dataclasses.replace(step, work="", goals=())
                for number, step in enumerate(chain.steps[:last])
            )
            found.append(dataclasses.replace(chain, steps=steps + checks))
    return found


def parser_of(suite: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"bench {suite}", description="Tables beside Hudi, Iceberg and Delta Lake, and beside plain Spark."
    )
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {','.join(PEERS)}; `none` for the floors alone")
    parser.add_argument("--scale", type=float, default=1.0, help="of TPC-H: 0.1 has 150,000 orders")
    parser.add_argument("--rounds", type=int, default=3, help="how often each work is measured")
    parser.add_argument("--only", metavar="WORK", help="works with this in their name, or in their chain's")
    parser.add_argument("--memory", default="3g", help="of each Spark driver")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--no-warm-up", action="store_true", help="leave out the first round, which is small and does not count")
    parser.add_argument("--directory", type=Path, help="where the tables are made; a temporary directory without it")
    parser.add_argument("--json", metavar="FILE", help="write every sample and the environment there")
    parser.add_argument("--html", metavar="FILE", help="write one page with plots there")
    return parser


def main(suite: str, arguments: list[str]) -> int:
    """0 when every check held, 1 otherwise. Goals that were missed are shown and change nothing: a figure depends on the machine."""
    parser = parser_of(suite)
    chosen = parser.parse_args(arguments)
    peers = [] if chosen.peers == "none" else [name.strip() for name in chosen.peers.split(",") if name.strip()]
    if unknown := sorted(set(peers) - set(PEERS)):
        parser.error(f"there is no peer {unknown[0]!r}: there are {', '.join(PEERS)}")
    chains = selected(SUITES[suite], chosen.only)
    if not chains:
        parser.error(f"no work has {chosen.only!r} in its name: there are {', '.join(sorted(_works(SUITES[suite])))}")
    # A request to end shall still end the workers and remove the tables.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console() if sys.stdout.isatty() else Console(width=200)
    try:
        results, about = _measure(chains, peers, chosen, console)
    except (PeerUnavailable, SideFailed) as error:
        console.print(f"[red]bench {suite}: {error}")
        return 1
    environment = environment_of(suite, chosen, about)
    report.show(console, results, environment)
    _keep(chosen, results, environment)
    if chosen.html:
        Path(chosen.html).write_text(page.render(suite, results, environment))
    for sentence in failed(results):
        console.print(f"[bold red]WRONG: {sentence}")
    return 1 if failed(results) else 0


def _keep(chosen: argparse.Namespace, results: Sequence[WorkResult], environment: dict[str, Any]) -> None:
    if chosen.json:
        Path(chosen.json).write_text(json.dumps({"environment": environment, "results": [raw(result) for result in results]}, indent=1))


def _works(chains: Sequence[Chain]) -> set[str]:
    return {step.work for chain in chains for step in chain.steps if step.work}


def _measure(
    chains: Sequence[Chain], peers: Sequence[str], chosen: argparse.Namespace, console: Console
) -> tuple[list[WorkResult], dict[str, Any]]:
    results: list[WorkResult] = []
    about: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="objcat-bench-", dir=chosen.directory) as directory, _progress(console) as say:
        data = make_data(chosen.scale, say)
        warm = None if chosen.no_warm_up else make_data(min(chosen.scale, WARM_SCALE), say)
        for engine in dict.fromkeys(chain.engine for chain in chains):
            names = [side.name for side in SIDES.values() if side.engine == engine and (side.role != "peer" or side.name in peers)]
            with contextlib.ExitStack() as stack:
                sides = {}
                for name in names:
                    say(f"starting {name}")
                    sides[name] = Remote(SIDES[name], Path(directory, name))
                    stack.callback(sides[name].close)
                    sides[name].start(memory=chosen.memory, cores=chosen.cores)
                    about[name] = dict(sides[name].about)
                runner = Runner(sides, data, warm, rounds=chosen.rounds, say=say)
                for chain in chains:
                    if chain.engine == engine:
                        found = runner.run(chain)
                        results += found
                        _keep(chosen, results, {"unfinished": True})
                        report.show_chain(console, found)
    return results, about


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Say]:
    """One line that says what is under way; what is red stays."""
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("")

        def say(text: str) -> None:
            if text.startswith("[red]") or not console.is_terminal:
                console.print(text)
            progress.update(task, description=text)

        yield say


def environment_of(suite: str, chosen: argparse.Namespace, about: dict[str, Any]) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "suite": suite,
        "scale": chosen.scale,
        "rounds": chosen.rounds,
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": f"{os.cpu_count()} cores, {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "cores used": chosen.cores,
        "Spark driver memory": chosen.memory,
        "codec": CODEC,
        "buckets": BUCKETS,
        "load at the end": [round(value, 1) for value in os.getloadavg()],
        "sides": about,
    }

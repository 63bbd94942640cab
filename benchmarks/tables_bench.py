"""`./dev bench write|read|services|local|requests`: objcat and the tools that its users would use instead, on the same rows, in one run.

Every side is a process that stays alive. The sides take turns step by step, so that other load on the machine affects all of them. Their
rows and answers are compared with what DuckDB computes from the source files. Without equality there is no ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks import environment, page, report
from benchmarks.data import make_data
from benchmarks.figures import WorkResult, failed, raw
from benchmarks.install import PeerUnavailable
from benchmarks.peers import PEERS, SIDES, Peer
from benchmarks.remote import Remote, SideFailed
from benchmarks.run import Runner, Say, takes_part
from benchmarks.suites import SUITES
from benchmarks.works import BUCKETS, CODEC, Chain
from devkit.servers import ServerError, ServerName, Servers

WARM_SCALE = 0.05
ON_S3 = "requests"
"""The suite whose tables are on an S3 server."""
SERVER: ServerName = "versitygw"


def selected(chains: Sequence[Chain], only: str | None) -> list[Chain]:
    """The chains with a work whose name contains `only`, each up to its last such step.

    The name of a work includes that of its chain, as in `chain: work`. So `only` may be a part of either name, or, with the colon, of both.
    """
    if not only:
        return list(chains)
    wanted = only.casefold()
    found = []
    for chain in chains:
        whole = wanted in chain.name.casefold()
        chosen = [number for number, step in enumerate(chain.steps) if step.work and wanted in f"{chain.name}: {step.work}".casefold()]
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
    """The arguments of a suite."""
    parser = argparse.ArgumentParser(prog=f"bench {suite}", description="objcat next to Hudi, Iceberg and Delta Lake, and plain Spark.")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {','.join(PEERS)}; `none` for the floors alone")
    scale = 0.01 if suite == ON_S3 else 1.0
    parser.add_argument("--scale", type=float, default=scale, help="of TPC-H: 0.1 has 150,000 orders; %(default)s without it")
    parser.add_argument("--rounds", type=int, default=3, help="how often each work is measured")
    parser.add_argument("--only", metavar="WORK", help="works with this in their name or their chain's, as in `CHAIN: WORK`")
    parser.add_argument("--memory", default="3g", help="of each Spark driver")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--no-warm-up", action="store_true", help="leave out the first round, which is small and does not count")
    parser.add_argument("--directory", type=Path, help="where to create the tables; the default is a temporary directory")
    parser.add_argument("--json", metavar="FILE", help="write every sample and the environment to this file")
    parser.add_argument("--html", metavar="FILE", help="write one page with plots to this file")
    return parser


def main(suite: str, arguments: list[str]) -> int:
    """Run a suite. Returns 0 when every check held, else 1. Missed goals are shown only: a figure depends on the machine."""
    parser = parser_of(suite)
    chosen = parser.parse_args(arguments)
    peers = [] if chosen.peers == "none" else [name.strip() for name in chosen.peers.split(",") if name.strip()]
    if unknown := sorted(set(peers) - set(PEERS)):
        parser.error(f"There is no peer {unknown[0]!r}. There are {', '.join(PEERS)}.")
    chains = selected(SUITES[suite], chosen.only)
    if not chains:
        parser.error(f"No work has {chosen.only!r} in its name. There are {', '.join(sorted(_works(SUITES[suite])))}.")
    # A request to end must end the workers and remove the tables too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console() if sys.stdout.isatty() else Console(width=200)
    began = environment.now()
    try:
        results, about = _measure(chains, peers, chosen, console, on_s3=suite == ON_S3)
    except (PeerUnavailable, SideFailed, ServerError) as error:
        console.print(f"[red]bench {suite}: {error}")
        return 1
    told = environment_of(suite, chosen, about, arguments=arguments, began=began)
    report.show(console, results, told)
    _keep(chosen, results, told)
    if chosen.html:
        Path(chosen.html).write_text(page.render(suite, results, told))
    for sentence in failed(results):
        console.print(f"[bold red]WRONG: {sentence}")
    return 1 if failed(results) else 0


def sides_of(chains: Sequence[Chain], engine: str) -> list[Peer]:
    """The sides that take part in one of the chains of an engine."""
    some = [chain for chain in chains if chain.engine == engine]
    return [side for side in SIDES.values() if side.engine == engine and any(takes_part(side, chain) for chain in some)]


@contextlib.contextmanager
def started(sides: Sequence[Peer], place: Path, say: Say, *, on_s3: bool, memory: str, cores: int) -> Iterator[dict[str, Remote]]:
    """The running sides. `on_s3`: each with its own bucket, on one server. Raises PeerUnavailable, SideFailed or ServerError."""
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(Servers()) if on_s3 else None
        alive: dict[str, Remote] = {}
        for side in sides:
            say(f"starting {side.name}")
            bucket = servers.start(SERVER).fresh_bucket() if servers else None
            alive[side.name] = Remote(side, place / f"{side.name}{'-s3' if on_s3 else ''}", bucket=bucket)
            stack.callback(alive[side.name].close)
            alive[side.name].start(memory=memory, cores=cores)
        yield alive


def _keep(chosen: argparse.Namespace, results: Sequence[WorkResult], told: dict[str, Any]) -> None:
    if chosen.json:
        Path(chosen.json).write_text(json.dumps({"environment": told, "results": [raw(result) for result in results]}, indent=1))


def _works(chains: Sequence[Chain]) -> set[str]:
    return {step.work for chain in chains for step in chain.steps if step.work}


def _measure(
    chains: Sequence[Chain], peers: Sequence[str], chosen: argparse.Namespace, console: Console, *, on_s3: bool
) -> tuple[list[WorkResult], dict[str, Any]]:
    results: list[WorkResult] = []
    about: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="objcat-bench-", dir=chosen.directory) as directory, _progress(console) as say:
        data = make_data(chosen.scale, say)
        warm = None if chosen.no_warm_up else make_data(min(chosen.scale, WARM_SCALE), say)
        for engine in dict.fromkeys(chain.engine for chain in chains):
            wanted = [side for side in sides_of(chains, engine) if side.role != "peer" or side.name in peers]
            with started(wanted, Path(directory), say, on_s3=on_s3, memory=chosen.memory, cores=chosen.cores) as sides:
                about |= {name: dict(side.about) for name, side in sides.items()}
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
    """One line with the current step. Red lines stay."""
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("")

        def say(text: str) -> None:
            if text.startswith("[red]") or not console.is_terminal:
                console.print(text)
            progress.update(task, description=text)

        yield say


def environment_of(
    suite: str, chosen: argparse.Namespace, about: dict[str, Any], *, arguments: Sequence[str], began: environment.Began
) -> dict[str, Any]:
    """What the figures depend on. `arguments`: of the command. `about`: what the sides report about themselves."""
    return {
        "suite": suite,
        "scale": chosen.scale,
        "rounds": chosen.rounds,
        **environment.machine(shlex.join(["./dev", "bench", suite, *arguments]), began=began),
        "cores used": chosen.cores,
        "Spark driver memory": chosen.memory,
        "codec": CODEC,
        "buckets": BUCKETS,
        "store": f"S3 ({SERVER})" if suite == ON_S3 else "local disk",
        "sides": about,
    }

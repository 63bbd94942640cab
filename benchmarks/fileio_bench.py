"""`./dev bench fileio`: `FileIO` and the SDKs, on the same servers, with the same bytes.

Each side is a process. Their measurements alternate in pairs, and the order within a pair alternates, so that other load on the machine
affects both. The report has the median over the pairs, with a one-sided 95 % bound from the order statistics (as of the sign test).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.fileio_sides import Side, Sink, Target, make_side

SMALL_BYTES = 4096
SMALL_CALLS = 100
TRIAL_BYTES_MAX = 64 << 20
TRIALS = 3
SIDES = ("objcat", "sdk")
SERVERS = {"s3": "versitygw", "gcs": "fake-gcs-server", "azure": "azurite"}
SDKS = {"s3": ("boto3",), "gcs": ("google-cloud-storage",), "azure": ("azure-storage-blob",), "file": ()}

GOAL_SMALL_CPU_MS = 0.3
GOAL_STREAM_RATIO = 0.95
GOAL_STREAM_RATIO_LOW = 0.9
GOAL_PEAK_MIB = 150


# ---- one side, in its own process --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. `seconds`: wall time. `cpu_s`: of all threads. `peak_bytes`: resident size above that before the call."""

    seconds: float
    cpu_s: float
    peak_bytes: int


def _resident_bytes(name: str) -> int:
    """`VmRSS`, or `VmHWM` for the highest since `_forget_peak`. 0 where the system does not report it."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        found = re.search(rf"^{name}:\s*(\d+) kB", file.read(), re.MULTILINE)
        return int(found.group(1)) * 1024 if found else 0
    return 0


def _forget_peak() -> None:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _measured(call: Callable[[], object], *, baseline: int) -> Sample:
    _forget_peak()
    began_cpu_s, began_s = time.process_time(), time.perf_counter()
    call()
    seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    return Sample(seconds, cpu_s, _resident_bytes("VmHWM") - baseline)


def _fastest(ways: Mapping[str, Callable[[], None]]) -> str:
    """The way with the shortest of `TRIALS` times. A single way is not tried."""
    if len(ways) == 1:
        return next(iter(ways))
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(TRIALS):
        for way, call in ways.items():
            times[way].append(_measured(call, baseline=0).seconds)
    return min(times, key=lambda way: min(times[way]))


class Worker:
    """Serves the measurements of one side over a pipe."""

    def __init__(self, side: Side, name: str) -> None:
        self._side = side
        self._name = name
        self._best: dict[str, str] = {}
        self._small = os.urandom(SMALL_BYTES)
        side.put(f"small/{name}", self._small)
        assert side.get(f"small/{name}") == self._small, "The store returned other bytes than were written."
        self._baseline = _resident_bytes("VmRSS")

    def put(self, _: int) -> Sample:
        """Time some small puts."""

        def calls() -> None:
            for number in range(SMALL_CALLS):
                self._side.put(f"small/{self._name}-{number}", self._small)

        return _measured(calls, baseline=self._baseline)

    def get(self, _: int) -> Sample:
        """Time some small gets."""
        return _measured(lambda: [self._side.get(f"small/{self._name}") for _ in range(SMALL_CALLS)], baseline=self._baseline)

    def choose(self, length: int) -> dict[str, str]:
        """Try every way, once with a check of the bytes and `TRIALS` times for speed. Returns the names of the fastest."""
        key = f"large/{self._name}-trial"

        def down(way: str, *, check: bool) -> None:
            sink = Sink(check=check)
            self._side.downloads[way](key, sink)
            assert sink.length == length, f"{way} returned {sink.length} of {length} bytes."

        for upload in self._side.uploads.values():
            upload(key, length)
            for way in self._side.downloads:
                down(way, check=True)
        best = {
            "up": _fastest({way: partial(upload, key, length) for way, upload in self._side.uploads.items()}),
            "down": _fastest({way: partial(down, way, check=False) for way in self._side.downloads}),
        }
        self._side.delete(key)
        return best

    def use(self, ways: dict[str, str]) -> None:
        """Use the result of `choose` from another process, whose checks leave memory behind."""
        self._best = ways

    def up(self, length: int) -> Sample:
        """Time an upload."""
        upload = self._side.uploads[self._best["up"]]
        return _measured(lambda: upload(f"large/{self._name}", length), baseline=self._baseline)

    def down(self, length: int) -> Sample:
        """Time a download."""
        download, sink = self._side.downloads[self._best["down"]], Sink(check=False)
        sample = _measured(lambda: download(f"large/{self._name}", sink), baseline=self._baseline)
        assert sink.length == length, f"{sink.length} of {length} bytes arrived."
        return sample

    def delete(self, _: int) -> None:
        """Delete a key."""
        self._side.delete(f"large/{self._name}")


def _serve(pipe: Connection, name: str, target: Target) -> None:
    try:
        worker = Worker(make_side(name, target), name)
        pipe.send(("ready", None))
        while (request := pipe.recv()) is not None:
            method, argument = request
            pipe.send(("done", getattr(worker, method)(argument)))
    except EOFError:
        return
    except BaseException as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
        raise


class Remote:
    """A side, as seen by the process that leads the benchmark."""

    def __init__(self, name: str, target: Target) -> None:
        context = multiprocessing.get_context("spawn")
        self._name = name
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, target), daemon=True)
        self._process.start()
        theirs.close()
        self._receive()

    def ask(self, method: str, argument: object = 0) -> Any:
        """Send one request and wait for its answer."""
        self._pipe.send((method, argument))
        return self._receive()

    def _receive(self) -> Any:
        try:
            state, answer = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"The process of {self._name} ended with status {self._process.exitcode}.") from None
        if state == "failed":
            raise RuntimeError(f"{self._name}: {answer}")
        return answer

    def close(self) -> None:
        """End the process of the side."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()


# ---- pairs and figures ------------------------------------------------------------------------------------------


def bound_rank(pairs: int) -> int:
    """The rank (from 1) of the order statistic that is a one-sided 95 % bound of the median. 0 with too few pairs."""
    below, rank = 0.0, 0
    while (below := below + math.comb(pairs, rank) / 2**pairs) <= 0.05:
        rank += 1
    return rank


def lower_bound(values: Sequence[float]) -> float:
    """The one-sided 95 % lower bound of the median. The minimum with fewer than five values."""
    return sorted(values)[max(0, bound_rank(len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report. `bound`: the worse end, one-sided 95 %. `unit`: of value, bound and goal."""

    store: str
    what: str
    objcat: str
    sdk: str
    value: float
    bound: float
    unit: str
    goal: str
    met: bool
    samples: dict[str, list[Sample]]


def _pairs(sides: dict[str, Remote], method: str, argument: int, pairs: int) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {name: [] for name in SIDES}
    for number in range(pairs):
        for name in SIDES if number % 2 == 0 else reversed(SIDES):
            samples[name].append(sides[name].ask(method, argument))
    return samples


def _small(store: str, sides: dict[str, Remote], method: str, pairs: int) -> Result:
    _pairs(sides, method, 0, 1)  # warm
    samples = _pairs(sides, method, 0, pairs)
    per_call = {name: [sample.cpu_s / SMALL_CALLS * 1000 for sample in samples[name]] for name in SIDES}
    differences = [a - b for a, b in zip(per_call["objcat"], per_call["sdk"], strict=True)]
    value, bound = statistics.median(differences), -lower_bound([-d for d in differences])
    ours, theirs = (f"{statistics.median(per_call[name]):.2f} ms" for name in SIDES)
    met = value <= GOAL_SMALL_CPU_MS
    return Result(store, f"{method} 4 KiB, CPU", ours, theirs, value, bound, "ms more", f"<= {GOAL_SMALL_CPU_MS}", met, samples)


def _stream(store: str, sides: dict[str, Remote], method: str, length: int, pairs: int) -> list[Result]:
    samples = _pairs(sides, method, length, pairs)
    ratios = [b.seconds / a.seconds for a, b in zip(samples["objcat"], samples["sdk"], strict=True)]
    value, bound = statistics.median(ratios), lower_bound(ratios)
    ours, theirs = (f"{length / (1 << 20) / statistics.median(s.seconds for s in samples[name]):.0f} MiB/s" for name in SIDES)
    goal = f">= {GOAL_STREAM_RATIO} (low >= {GOAL_STREAM_RATIO_LOW})"
    met = value >= GOAL_STREAM_RATIO and bound >= GOAL_STREAM_RATIO_LOW
    what = f"{length / (1 << 20):.0f} MiB {method}"
    cpu_a, cpu_b = (statistics.median(s.cpu_s for s in samples[name]) for name in SIDES)
    cpu_ratio = cpu_b / max(cpu_a, 1e-9)
    peak_a, peak_b = (max(s.peak_bytes for s in samples[name]) / (1 << 20) for name in SIDES)
    small = peak_a <= GOAL_PEAK_MIB
    return [
        Result(store, what, ours, theirs, value, bound, "x", goal, met, samples),
        Result(store, f"{what}, CPU", f"{cpu_a:.2f} s", f"{cpu_b:.2f} s", cpu_ratio, cpu_ratio, "x", "", True, {}),
        Result(store, f"{what}, memory", f"{peak_a:.0f} MiB", f"{peak_b:.0f} MiB", peak_a, peak_a, "MiB", f"<= {GOAL_PEAK_MIB}", small, {}),
    ]


def run_store(
    store: str, target: Target, *, pairs: int, length: int, only: str, say: Callable[[str], None]
) -> tuple[list[Result], dict[str, Any]]:
    """All measurements at one store."""
    results: list[Result] = []
    ways: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        sides = {name: Remote(name, target) for name in SIDES}
        for side in sides.values():
            stack.callback(side.close)
        if only in ("all", "small"):
            for method in ("put", "get"):
                say(f"{store}: {method} of small objects")
                results.append(_small(store, sides, method, pairs))
        if only in ("all", "stream"):
            say(f"{store}: checking the bytes and choosing the fastest way of the SDK")
            for name in SIDES:
                with contextlib.closing(Remote(name, target)) as trial:
                    ways[name] = trial.ask("choose", min(length, TRIAL_BYTES_MAX))
                sides[name].ask("use", ways[name])
            for method in ("up", "down"):
                say(f"{store}: {pairs} pairs of {length >> 20} MiB {method} ({ways['objcat'][method]} and {ways['sdk'][method]})")
                results += _stream(store, sides, method, length, pairs)
            for side in sides.values():
                side.ask("delete")
    return results, ways


# ---- the command -------------------------------------------------------------------------------------------------


def parse_bytes(text: str) -> int:
    """The bytes of `1GiB`, `64 MiB` or `4096`."""
    found = re.fullmatch(r"\s*(\d+)\s*(|B|KiB|MiB|GiB)\s*", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size. Write 4096, 64MiB or 1GiB.")
    return int(found.group(1)) << {"": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30}[found.group(2)]


@contextlib.contextmanager
def _targets(stores: Sequence[str], server: str | None) -> Iterator[Iterator[tuple[str, Target]]]:
    from devkit.servers import Servers

    with Servers() as servers, tempfile.TemporaryDirectory() as directory:

        def each() -> Iterator[tuple[str, Target]]:
            for store in stores:
                if store == "file":
                    yield store, Target("file", directory)
                else:
                    handle = servers.start(server or SERVERS[store])  # type: ignore[arg-type]
                    yield store, Target(handle.scheme, handle.url, dict(handle.options))

        yield each()


def _show(console: Console, results: Sequence[Result]) -> None:
    table = Table("store", "work", "objcat", "SDK", "result", "95 % bound", "goal", "")
    for r in results:
        numbers = ["", ""] if r.unit == "MiB" else [f"{r.value:.2f} {r.unit}", f"{r.bound:.2f}" if r.samples else ""]
        table.add_row(r.store, r.what, r.objcat, r.sdk, *numbers, r.goal, "" if not r.goal else "met" if r.met else "[red]missed")
    console.print(table)


def environment_of(stores: Sequence[str]) -> dict[str, Any]:
    """What a figure depends on."""
    packages = [package for store in stores for package in SDKS[store]]
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "packages": {package: version(package) for package in packages},
        "servers": {store: SERVERS[store] for store in stores if store in SERVERS},
        "load": os.getloadavg(),
    }


def main(arguments: list[str]) -> int:
    """Run the suite. Returns 0 when every goal is met, else 1."""
    parser = argparse.ArgumentParser(prog="bench fileio", description="FileIO and the SDKs.")
    parser.add_argument("--store", choices=["s3", "gcs", "azure", "file", "all"], default="all")
    parser.add_argument("--pairs", type=int, default=9, help="measurements of each side; nine for a 95 %% bound that is not the minimum")
    parser.add_argument("--bytes", type=parse_bytes, default=1 << 30, help="size of the streamed object, such as 1GiB")
    parser.add_argument("--only", choices=["small", "stream", "all"], default="all")
    parser.add_argument("--server", help="use this one of `./dev servers` instead of the usual one")
    parser.add_argument("--json", metavar="FILE", help="write every sample and the environment to this file")
    chosen = parser.parse_args(arguments)
    stores = list(SDKS) if chosen.store == "all" else [chosen.store]
    console = Console()
    results: list[Result] = []
    ways: dict[str, Any] = {}
    environment = {**environment_of(stores), **({"server": chosen.server} if chosen.server else {})}
    with _targets(stores, chosen.server) as targets:
        for store, target in targets:
            found, ways[store] = run_store(
                store, target, pairs=chosen.pairs, length=chosen.bytes, only=chosen.only, say=lambda text: console.print(f"[dim]{text}")
            )
            results += found
    _show(console, results)
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump({"environment": environment, "ways": ways, "results": [asdict(r) for r in results]}, file, indent=1)
    return 0 if all(r.met for r in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

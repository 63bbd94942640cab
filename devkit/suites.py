"""`./dev test`: the suites, each a folder of `tests/`; what Spark's version decides once more on the oldest PySpark that we support."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from devkit import toolchain
from devkit.paths import ROOT, cache_dir

TESTS = ROOT / "tests"
SPARK_SUITE = "spark"
COUNTS_VARIABLE = "OBJCAT_TEST_COUNTS"
ON_OLDEST = (
    "test_batching.py",
    "test_format.py",
    "test_format_native.py",
    "test_layout_plans.py",
    "test_native_bits.py",
    "test_native_plans.py",
    "test_native_root.py",
    "test_native_stores.py",
    "test_sorted_files.py",
    "test_spark_jobs.py",
    "test_spark_table.py",
    "test_sql.py",
    "test_stream_sink.py",
    "test_stream_source.py",
    "test_values.py",
    "test_views.py",
)
"""Of the Spark suite, what runs on the oldest PySpark without `--all`.

Versions of Spark differ in what we call of them and in what they call of us: the data source for Python, streams, plans that we look into,
classes that our Java stands on, settings of jobs, and how values come and go through Arrow. Each of that is in one of these files. The
others ask whether rows are right under many kinds of tables, histories and settings; they go the same ways, and one version is enough for
them.
"""
APART = (("docs", "protocol", "services", "sql"), ("explorer", "mutations"), ("chaos", "cluster", "schedules"))
"""Suites with a process of their own for each group, when all are run: whichever of two sides is free takes the next one."""
_INTERRUPTED, _NO_TESTS_COLLECTED = 2, 5


def test(arguments: Sequence[str]) -> int:
    """Run suites (all, without a name) with pytest. The last line printed is pytest's summary, or the sum of several."""
    names, options = split_arguments(arguments)
    unknown = [name for name in names if not (TESTS / name.split("::")[0]).exists() and not Path(name.split("::")[0]).exists()]
    if unknown:
        near = difflib.get_close_matches(unknown[0], suites(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(suites())}"
        print(f"dev test: there is no suite {unknown[0]!r}: {hint}", file=sys.stderr)
        return 2
    paths = [str(TESTS / name) if (TESTS / name.split("::")[0]).exists() else name for name in names]
    chosen = [path for path in paths if Path(path) == TESTS / SPARK_SUITE] if paths else [str(TESTS / SPARK_SUITE)]
    runs = [_Run("", paths, {})] if paths else []
    if not paths:
        # Two processes at a time for two cores, the long ones first.
        apart = [name for group in APART for name in group]
        runs = [_Run("", [str(TESTS / name) for name in suites() if name not in (SPARK_SUITE, *apart)], {})]
        runs.append(_Run(f"tests/{SPARK_SUITE}", chosen, {}))
        runs += [_Run(", ".join(f"tests/{name}" for name in group), [str(TESTS / name) for name in group], {}) for group in APART]
    if chosen and any((TESTS / SPARK_SUITE).glob("test_*.py")):
        version = toolchain.locked_version("spark-oldest")
        oldest = toolchain.install_locked("spark-oldest", cache_dir() / "tools" / f"pyspark-{version}", f"PySpark {version}")
        search = os.pathsep.join(filter(None, [str(oldest), os.environ.get("PYTHONPATH")]))
        some = chosen if "--all" in options else [str(TESTS / SPARK_SUITE / name) for name in ON_OLDEST]
        runs.insert(2, _Run(f"tests/{SPARK_SUITE} on PySpark {version}, the oldest supported", some, {"PYTHONPATH": search}))
    return _run_all(runs, options)


def suites() -> list[str]:
    """The folders of `tests/` that hold tests."""
    return sorted({path.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py")})


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Leading names of suites (or paths of tests); everything from the first option on is pytest's. `--all` may stand anywhere."""
    first_option = next((i for i, argument in enumerate(arguments) if argument.startswith("-") and argument != "--all"), len(arguments))
    names = [argument for argument in arguments[:first_option] if argument != "--all"]
    everything = ["--all"] if "--all" in arguments else []
    return names, everything + [argument for argument in arguments[first_option:] if argument != "--all"]


class _Run:
    """One run of pytest. title: printed before it when not empty. environment: variables in addition."""

    def __init__(self, title: str, paths: Sequence[str], environment: Mapping[str, str]) -> None:
        self.title = title
        self.paths = paths
        self.environment = environment

    def __call__(self, options: Sequence[str], output: IO[str] | None = None) -> tuple[int, Counter[str]]:
        """Run it. output: where to; to the terminal when None."""
        if self.title:
            print(f"\n== {self.title}", flush=True, file=output)
        with tempfile.NamedTemporaryFile("r") as counts:
            command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
            command += ["-o", f"cache_dir={cache_dir() / 'pytest'}", *self.paths, *options]
            environment = {**toolchain.run_environment(), **self.environment, COUNTS_VARIABLE: counts.name, "PYTHONDONTWRITEBYTECODE": "1"}
            status = _wait_for(command, environment, output)
            text = counts.read()
        return status, Counter(json.loads(text) if text else {})


_children: set[subprocess.Popen[bytes]] = set()


def _wait_for(command: Sequence[str], environment: Mapping[str, str], output: IO[str] | None) -> int:
    """Run to the end: Ctrl-C reaches pytest by itself and is left to it."""
    error = None if output is None else subprocess.STDOUT
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=error) as child:
        _children.add(child)
        try:
            while True:
                try:
                    return child.wait()
                except KeyboardInterrupt:
                    continue
        finally:
            _children.discard(child)


def _end_children(*_: object) -> None:
    for child in list(_children):
        child.terminate()


def _run_all(runs: Sequence[_Run], options: Sequence[str]) -> int:
    """Run them, two at a time. The first one prints as it goes; what the others print comes when all have ended."""
    began_s = time.monotonic()
    # A request to terminate is passed on.
    signal.signal(signal.SIGTERM, _end_children)
    found: dict[int, tuple[int, Counter[str]]] = {}
    with ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in runs]
        waiting = deque(range(1, len(runs)))

        def work_off() -> None:
            while waiting:
                try:
                    number = waiting.popleft()
                except IndexError:
                    return
                found[number] = runs[number](options, outputs[number])

        with ThreadPoolExecutor(1) as beside:
            other = beside.submit(work_off)
            found[0] = runs[0](options)
            if found[0][0] == _INTERRUPTED or found[0][0] < 0:
                waiting.clear()
            work_off()
            other.result()
        for output in outputs:
            output.seek(0)
            shutil.copyfileobj(output, sys.stdout)
    outcomes = [found[number] for number in sorted(found)]
    if len(runs) > 1:
        total = sum((counts for _, counts in outcomes), Counter[str]())
        print(f"\n{summary_line(total, time.monotonic() - began_s)}", flush=True)
    failed = [status for status, _ in outcomes if status not in (0, _NO_TESTS_COLLECTED)]
    if failed:
        return failed[0] if failed[0] > 0 else 128 - failed[0]
    return outcomes[0][0]


def summary_line(counts: Mapping[str, int], seconds: float) -> str:
    """The sum of several runs in the words of pytest's own last line."""
    plural = {"error": "errors", "warnings": "warnings"}
    order = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "error")
    parts = [f"{counts[word]} {plural.get(word, word) if counts[word] != 1 else word.rstrip('s')}" for word in order if counts.get(word)]
    return f" {', '.join(parts) or 'no tests ran'} in {seconds:.2f}s ".center(80, "=")

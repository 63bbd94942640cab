"""`./dev test`: the suites, each a folder of `tests/`; those of Spark once more on the oldest PySpark that we support."""

from __future__ import annotations

import difflib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from devkit import toolchain
from devkit.paths import ROOT, cache_dir

TESTS = ROOT / "tests"
SPARK_SUITE = "spark"
COUNTS_VARIABLE = "OBJCAT_TEST_COUNTS"
_INTERRUPTED, _NO_TESTS_COLLECTED = 2, 5


def test(arguments: Sequence[str]) -> int:
    """Run suites (all, without a name) with pytest. The last line printed is pytest's summary, or the sum of two."""
    names, options = split_arguments(arguments)
    unknown = [name for name in names if not (TESTS / name.split("::")[0]).exists() and not Path(name.split("::")[0]).exists()]
    if unknown:
        near = difflib.get_close_matches(unknown[0], suites(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(suites())}"
        print(f"dev test: there is no suite {unknown[0]!r}: {hint}", file=sys.stderr)
        return 2
    paths = [str(TESTS / name) if (TESTS / name.split("::")[0]).exists() else name for name in names]
    chosen = [path for path in paths if Path(path) == TESTS / SPARK_SUITE] if paths else [str(TESTS / SPARK_SUITE)]
    runs = [_Run("", paths or [str(TESTS)], {})]
    if chosen and any((TESTS / SPARK_SUITE).glob("test_*.py")):
        version = toolchain.locked_version("spark-oldest")
        oldest = toolchain.install_locked("spark-oldest", cache_dir() / "tools" / f"pyspark-{version}", f"PySpark {version}")
        search = os.pathsep.join(filter(None, [str(oldest), os.environ.get("PYTHONPATH")]))
        runs.append(_Run(f"tests/{SPARK_SUITE} on PySpark {version}, the oldest supported", chosen, {"PYTHONPATH": search}))
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

    def __call__(self, options: Sequence[str]) -> tuple[int, Counter[str]]:
        if self.title:
            print(f"\n== {self.title}", flush=True)
        with tempfile.NamedTemporaryFile("r") as counts:
            command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
            command += ["-o", f"cache_dir={cache_dir() / 'pytest'}", *self.paths, *options]
            environment = {**toolchain.run_environment(), **self.environment, COUNTS_VARIABLE: counts.name, "PYTHONDONTWRITEBYTECODE": "1"}
            status = _wait_for(command, environment)
            text = counts.read()
        return status, Counter(json.loads(text) if text else {})


def _wait_for(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run to the end: Ctrl-C reaches pytest by itself and is left to it; a request to terminate is passed on."""
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) as child:
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue


def _run_all(runs: Sequence[_Run], options: Sequence[str]) -> int:
    began_s = time.monotonic()
    statuses: list[int] = []
    total: Counter[str] = Counter()
    for run in runs:
        status, counts = run(options)
        statuses.append(status)
        total += counts
        if status == _INTERRUPTED or status < 0:
            return status if status > 0 else 128 - status
    if len(runs) > 1:
        print(f"\n{summary_line(total, time.monotonic() - began_s)}", flush=True)
    failed = [status for status in statuses if status not in (0, _NO_TESTS_COLLECTED)]
    return failed[0] if failed else statuses[0]


def summary_line(counts: Mapping[str, int], seconds: float) -> str:
    """The sum of several runs in the words of pytest's own last line."""
    plural = {"error": "errors", "warnings": "warnings"}
    order = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "error")
    parts = [f"{counts[word]} {plural.get(word, word) if counts[word] != 1 else word.rstrip('s')}" for word in order if counts.get(word)]
    return f" {', '.join(parts) or 'no tests ran'} in {seconds:.2f}s ".center(80, "=")

"""A process of dbt beside the tests, which keeps one session of Spark for all commands. `Dbt` drives it.

Run as a script, it is that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from devkit import toolchain
from devkit.paths import ROOT
from devkit.prepare import dbt

MARK = "@@answer "


@dataclass(frozen=True)
class Answer:
    """What a command of dbt said. results: by node, its status and message. text: what was printed."""

    success: bool
    results: dict[str, tuple[str, str]]
    text: str


def environment() -> dict[str, str]:
    """The environment of a process that can import dbt and the adapter."""
    paths = [str(dbt()), str(ROOT / "dbt-objcat"), str(ROOT)]
    return {
        **toolchain.run_environment(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        "DO_NOT_TRACK": "1",
        "NO_COLOR": "1",
    }


class Dbt:
    """dbt in a process of its own, in one project. Use it as a context manager. The target `other` has a lake of its own, beside `lake`."""

    def __init__(self, project: Path, lake: str | Path, spark: dict[str, str], options: Mapping[str, str] | None = None) -> None:
        self.project = project
        profile = {"type": "objcat", "url": str(lake), "schema": "jaffle", "threads": 2, "spark": spark, "options": dict(options or {})}
        outputs = {"dev": profile, "other": {**profile, "url": f"{lake}-other"}}
        (project / "profiles.yml").write_text(json.dumps({"shop": {"target": "dev", "outputs": outputs}}))
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=self.project,
            env={**environment(), "JAVA_HOME": str(toolchain.java_home())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def run(self, *command: str) -> Answer:
        """Run a command of dbt."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()
        said: list[str] = []
        for line in process.stdout:
            if line.startswith(MARK):
                found: dict[str, Any] = json.loads(line.removeprefix(MARK))
                results = {name: (status, message) for name, status, message in found["results"]}
                return Answer(found["success"], results, "".join(said))
            said.append(line)
        raise AssertionError("dbt ended:\n" + "".join(said)[-4000:])


def serve(commands: IO[str]) -> None:
    """Answer commands until there are no more."""
    from dbt.cli.main import dbtRunner

    for line in commands:
        ended = dbtRunner().invoke(json.loads(line))
        results = [
            (one.node.name, str(one.status), str(one.message)) for one in getattr(ended.result, "results", []) or [] if hasattr(one, "node")
        ]
        print("\n" + MARK + json.dumps({"success": ended.success, "results": results}), flush=True)


if __name__ == "__main__":
    serve(sys.stdin)

"""`SparkReader`: a process with a Spark of its own that reads topics for a test, and that can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from devkit.environments import listed_artifacts, locked_artifacts
from devkit.paths import ROOT
from devkit.toolchain import java_home, run_environment
from tests.ingest.shop import Shop

JARS = "spark-kafka"


class SparkReader:
    """The process. A context manager, for one thread.

    Args:
        log: where it writes what it says besides its answers.
    """

    def __init__(self, log: Path) -> None:
        jars = [str(jar) for jar in locked_artifacts(listed_artifacts(JARS))]
        command = [sys.executable, "-m", "tests.ingest.topics_process", *jars]
        environment = {**run_environment(), "JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._log = log
        with log.open("a") as said:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def order(self, shop: Shop, *, messages_max: int = 1_000_000, options: dict[str, str] | None = None) -> None:
        """Let it read the topics of a shop."""
        assert self._process.stdin is not None
        order = {"config": str(shop.config_path), "lake": str(shop.lake_path), "environment": shop.environment}
        self._process.stdin.write(json.dumps({**order, "messages_max": messages_max, "options": options}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What the order came to."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the process ended with {self._process.poll()}: {self._log.read_text()[-3000:]}"
        found: dict[str, Any] = json.loads(line)
        return found

    def read(self, shop: Shop, **order: Any) -> dict[str, Any]:
        """Read the topics of a shop, and say what was read."""
        self.order(shop, **order)
        found = self.answer()
        assert "error" not in found, found["error"]
        return found

    def refused(self, shop: Shop, **order: Any) -> str:
        """Read the topics of a shop, and say why that was refused."""
        self.order(shop, **order)
        return str(self.answer()["error"])

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it with its JVM and its workers, as by `kill -9`."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()

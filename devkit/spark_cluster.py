"""A standalone Spark cluster of real processes on loopback: one master, and workers of one core each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Self

import pyspark

from devkit import toolchain
from devkit.servers import free_ports

START_S_MAX = 60
HOSTS = ("127.0.0.1", "localhost")
"""Two names of one host: Spark runs no speculative attempt on the host of the first attempt."""


class SparkCluster:
    """A cluster that runs for one `with` block. `directory`: for logs and work."""

    def __init__(self, directory: Path, *, workers: int = 2) -> None:
        self._directory = directory
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port, self._ui_port = free_ports(2)

    @property
    def url(self) -> str:
        """The URL of the master."""
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        master = ["Master", "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._ui_port)]
        try:
            self._spawn("master", master)
            self._wait_for_workers(0)
            for number in range(self._workers):
                (ui_port,) = free_ports(1)
                work = str(self._directory / f"work-{number}")
                worker = ["Worker", "--host", HOSTS[number % len(HOSTS)], "--cores", "1", "--memory", "1g", "--webui-port", str(ui_port)]
                self._spawn(f"worker-{number}", [*worker, "--work-dir", work, self.url])
            self._wait_for_workers(self._workers)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, executors included: each process leads a group."""
        for process in reversed(self._processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()

    def _spawn(self, name: str, arguments: list[str]) -> None:
        script = Path(pyspark.__file__).parent / "bin" / "spark-class"
        environment = os.environ | {
            "JAVA_HOME": str(toolchain.java_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_NO_DAEMONIZE": "1",
        }
        with (self._directory / f"{name}.log").open("wb") as log:
            command = [str(script), f"org.apache.spark.deploy.{arguments[0].lower()}.{arguments[0]}", *arguments[1:]]
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True)
            )

    def _wait_for_workers(self, count: int) -> None:
        """Wait until the master reports so many live workers. Raises RuntimeError with the end of the logs."""
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self._ui_port}/json/", timeout=5) as answer:
                if answer.read().count(b'"ALIVE"') >= count + 1:
                    return
            if any(process.poll() is not None for process in self._processes):
                break
            time.sleep(0.2)
        logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self._directory.glob("*.log")))
        raise RuntimeError(f"The Spark cluster did not start within {START_S_MAX} s. Its logs:\n{logs}")

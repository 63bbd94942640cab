"""Spark's declarative pipelines as a side of `./dev bench derived`: materialized views over Parquet files.

`python -m benchmarks.peers.derived_pipelines FOLDER SETTINGS`. A server of Spark Connect stays, and what the command `spark-pipelines run`
calls runs in this process: a run takes neither the start of Python nor that of Java. The first run is the command itself.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.derived_worker import serve
from benchmarks.peers.configuration import spark_session

_SOURCES = """\
from pyspark import pipelines as dp
"""
_SOURCE = """

@dp.temporary_view
def {name}():
    return spark.read.parquet({path!r})
"""
STARTED_WITHIN_S = 600


class PipelinesSide:
    """A project of pipelines. settings: `queries`, by name a text and its key; `memory` and `cores` of the server."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        self._queries = settings["queries"]
        self._pyspark = Path(str(importlib.import_module("pyspark").__file__)).parent
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        session = dict(spark_session(folder, cores=settings["cores"], memory=settings["memory"]))
        session["spark.connect.grpc.binding.address"] = "127.0.0.1"
        session["spark.connect.grpc.binding.port"] = str(port)
        given = [word for name, value in session.items() for word in ("--conf", f"{name}={value}")]
        server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", *given]
        self.server = subprocess.Popen([str(self._pyspark / "bin" / "spark-submit"), *server, "spark-internal"], stdin=subprocess.DEVNULL)
        self._port = port
        os.environ["SPARK_REMOTE"] = f"sc://127.0.0.1:{port}"

    def wait(self) -> None:
        """Until the server takes connections."""
        until = time.monotonic() + STARTED_WITHIN_S
        while time.monotonic() < until:
            if self.server.poll() is not None:
                raise RuntimeError(f"the server of Spark Connect ended with status {self.server.returncode}")
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.2)
        raise RuntimeError(f"the server of Spark Connect took no connection within {STARTED_WITHIN_S} s")

    def load(self, sources: Mapping[str, str]) -> None:
        """Write the project. sources: by name, a folder or a file of Parquet."""
        made = self._folder / "made"
        made.mkdir()
        (made / "sources.py").write_text(_SOURCES + "".join(_SOURCE.format(name=name, path=path) for name, path in sources.items()))
        for name, (query, _) in self._queries.items():
            (made / f"{name}.sql").write_text(f"CREATE MATERIALIZED VIEW {name}_view AS {query};\n")
        spec = {"name": "bench", "storage": (self._folder / "storage").as_uri(), "libraries": [{"glob": {"include": "made/**"}}]}
        (self._folder / "spark-pipeline.yml").write_text(json.dumps(spec))

    def command(self, name: str) -> float:
        """The seconds of the command of a run of one view."""
        words = [str(self._pyspark / "bin" / "spark-pipelines"), "run", "--spec", str(self._folder / "spark-pipeline.yml")]
        began = time.perf_counter()
        done = subprocess.run(
            [*words, "--refresh", f"{name}_view"], capture_output=True, text=True, check=False, cwd=self._folder, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            raise RuntimeError(f"spark-pipelines ended with status {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
        return time.perf_counter() - began

    def run(self, name: str) -> float:
        """The seconds of a run of one view."""
        pipelines: Any = importlib.import_module("pyspark.pipelines.cli")
        began = time.perf_counter()
        pipelines.run(self._folder / "spark-pipeline.yml", [], False, [f"{name}_view"], False)
        return time.perf_counter() - began

    def rows(self, name: str) -> str:
        """The folder of Parquet files of a view."""
        return str(self._folder / "warehouse" / f"{name}_view")

    def about(self) -> dict[str, str]:
        """Versions."""
        return {"pyspark": importlib.import_module("pyspark").__version__}


def main() -> None:
    """Serve requests until the pipe closes, then end the server."""
    side = PipelinesSide(Path(sys.argv[1]), json.loads(sys.argv[2]))
    try:
        side.wait()
        serve({name: getattr(side, name) for name in ("load", "command", "run", "rows", "about")})
    finally:
        side.server.terminate()
        side.server.wait(60)


if __name__ == "__main__":
    main()

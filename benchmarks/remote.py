"""A worker, as seen by the process that leads the benchmark: requests, peak memory of its process tree, files below a directory."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.install import environment_of, jars_of, worker_environment
from benchmarks.peers import Peer
from benchmarks.slow_proxy import SlowProxy
from benchmarks.works import difference
from devkit.handle import ServerHandle, s3_client
from devkit.paths import ROOT

SAMPLE_EVERY_S = 0.05
ANSWER_WITHIN_S = 3600.0


class SideFailed(Exception):
    """A side failed, or its process ended. The message begins with a verb. Its further lines are the end of the side's output."""


class SideLacks(Exception):
    """A side has no such operation. The message is the reason."""


class UseMeter(threading.Thread):
    """The highest sum of resident sizes of a process and its children while it runs, and the CPU seconds that they use.

    Shared memory counts for each process.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self._ended = threading.Event()
        self.peak_bytes = resident_bytes(self._process)
        self.cpu_seconds = -cpu_seconds(self._process)

    def run(self) -> None:
        """The loop of the measuring thread."""
        while not self._ended.wait(SAMPLE_EVERY_S):
            self.peak_bytes = max(self.peak_bytes, resident_bytes(self._process))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()
        self.peak_bytes = max(self.peak_bytes, resident_bytes(self._process))
        self.cpu_seconds = max(0.0, self.cpu_seconds + cpu_seconds(self._process))


def resident_bytes(process: psutil.Process) -> int:
    """The resident bytes of the process and its children. 0 once it has ended."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += one.memory_info().rss
    return total


def cpu_seconds(process: psutil.Process) -> float:
    """The CPU seconds of the process and its children so far. 0 once it has ended."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                used = one.cpu_times()
                total += used.user + used.system
    return total


class Remote:
    """A side in its own environment and process. directory: for its tables and its output. bucket: on a server of S3, for its tables; they
    are counted there, by a proxy of the side's own."""

    def __init__(self, peer: Peer, directory: Path, *, bucket: ServerHandle | None = None) -> None:
        self.peer = peer
        self.directory = directory
        self._bucket = bucket
        self._proxy = SlowProxy(bucket.endpoint) if bucket else None
        self._log_path = directory / "output.txt"
        directory.mkdir(parents=True)
        python = environment_of(peer)
        environment = worker_environment(python) | {"PYTHONPATH": str(ROOT)}
        with self._log_path.open("w") as log:
            self._process = subprocess.Popen(
                [str(python), "-m", "benchmarks.worker", peer.module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                cwd=directory,
            )
        self.about: Mapping[str, str] = {}

    def start(self, *, memory: str, cores: int) -> None:
        """Start the side. `memory`: of Spark's driver. Raises PeerUnavailable or SideFailed."""
        jars = [str(jar) for jar in jars_of(self.peer, on_s3=self._bucket is not None)]
        told = {"directory": str(self.directory), "memory": memory, "cores": cores, "jars": jars, "store": self._store()}
        self.about = self.ask("start", **told)["about"]

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """The answer, with `peak_bytes` and `cpu_seconds` of the tree of processes meanwhile.

        Also `requests` by method, where a proxy counts them. Raises SideFailed, SideLacks.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(ANSWER_WITHIN_S, self._process.kill)
        timer.start()
        used: dict[str, float] = {}
        before = self._proxy.requests if self._proxy else {}
        try:
            with UseMeter(self._process.pid) as meter:
                self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            used = {"peak_bytes": meter.peak_bytes, "cpu_seconds": meter.cpu_seconds}
        except (OSError, ValueError, psutil.NoSuchProcess):  # a pipe that broke, or is closed
            line = ""
        finally:
            timer.cancel()
        if not line:
            status = self._process.wait()
            raise SideFailed(f"ended with status {status} during {what}\n{self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        if answer["ok"]:
            if self._proxy:
                answer["requests"] = difference(self._proxy.requests, before)
            return answer | used
        if answer["kind"] == "not available":
            raise SideLacks(answer["error"])
        raise SideFailed(f"failed at {what}: {answer['error']}\n{self._tail()}")

    def files(self, place: str) -> Files:
        """The bytes of each file of a table. `place`: as the side reported it."""
        if self._bucket is None:
            return files_below(Path(place))
        bucket, _, prefix = place.partition("://")[2].partition("/")
        pages = s3_client(self._bucket).get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return {Path(one["Key"]): one["Size"] for page in pages for one in page.get("Contents", ())}

    def _store(self) -> dict[str, str] | None:
        """The bucket, as the worker reaches it."""
        if self._bucket is None or self._proxy is None:
            return None
        names = {name: self._bucket.options[name] for name in ("region", "access_key", "secret_key")}
        return {"endpoint": self._proxy.url, "bucket": self._bucket.url.removeprefix("s3://"), **names}

    def close(self) -> None:
        """End the process and its children."""
        children = []
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._process.pid).children(recursive=True)
        with contextlib.suppress(SideFailed, SideLacks):
            self.ask("stop")
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._proxy:
            self._proxy.close()

    def _tail(self) -> str:
        return self._log_path.read_text(errors="replace")[-1500:]


Files = Mapping[Path, int]


def files_below(directory: Path) -> Files:
    """The bytes of each file, without the checksums that Hadoop writes for files on a local disk only."""
    found: dict[Path, int] = {}
    for root, _directories, names in os.walk(directory):  # files that vanish meanwhile are left out
        for path in (Path(root, name) for name in names if not name.endswith(".crc")):
            with contextlib.suppress(FileNotFoundError):
                found[path] = path.stat().st_size
    return found


def written(before: Files, after: Files) -> tuple[int, int]:
    """The number of new or grown files, and their bytes. Files that a side wrote and removed again are not seen."""
    grown = {path: size - before.get(path, 0) for path, size in after.items() if path not in before or size > before[path]}
    return len(grown), sum(grown.values())


def removed(before: Files, after: Files) -> int:
    """The number of removed files."""
    return len(before.keys() - after.keys())

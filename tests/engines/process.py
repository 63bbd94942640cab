"""The processes of engines: each starts when it is first asked, answers many requests, and is started again after a crash."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from devkit.engines import ENGINES
from devkit.environments import environment_dir
from tests.engines.readers.serve import Request

READERS = "tests.engines.readers"


class ReadRefused(Exception):
    """An engine did not read a state. The message is the engine's own, or says how its process ended."""


class EngineProcess:
    """An engine that runs in its own environment until the end of a `with` block."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.engine = ENGINES[name]
        self._folder = tempfile.TemporaryDirectory(prefix=f"objcat-{name}-", ignore_cleanup_errors=True)
        self._log = Path(self._folder.name, "log")
        self._process: subprocess.Popen[str] | None = None

    @property
    def folder(self) -> Path:
        """Its own, until it ends."""
        return Path(self._folder.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._folder.cleanup()

    def read(self, request: Request) -> pa.Table:
        """The rows. Raises ReadRefused."""
        if self._process is None:
            self._start()
        answer = self._ask(json.dumps(asdict(request)))
        if "error" in answer:
            raise ReadRefused(answer["error"])
        file = Path(answer["file"])
        with pa.OSFile(str(file), "rb") as source:
            rows = pa.ipc.open_file(source).read_all()
        file.unlink()
        return rows

    def _start(self) -> None:
        python = environment_dir(self.engine.lock) / "bin" / "python"
        command = [str(python), "-W", "ignore", "-m", f"{READERS}.serve", f"{READERS}.{self.engine.reader}", self._folder.name]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.engine.environment(),
                cwd=self._folder.name,
                text=True,
            )
        answer = self._answer()
        if "ready" not in answer:
            raise RuntimeError(f"{self.engine.title} does not start. Its log ends with: {answer['error']}")

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process is not None and self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        status = self._process.wait()
        self._close()
        return {"error": f"the process ended with status {status}: {self._log.read_text(errors='replace')[-2000:]}"}

    def _end(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process = None


class Engines:
    """Engines by name, each started once."""

    def __init__(self) -> None:
        self._running: dict[str, EngineProcess] = {}

    def __getitem__(self, name: str) -> EngineProcess:
        if name not in self._running:
            self._running[name] = EngineProcess(name)
        return self._running[name]

    def end(self, name: str) -> None:
        """End one, so that its memory is free for the next."""
        if name in self._running:
            self._running.pop(name).__exit__()


@contextmanager
def running_engines() -> Iterator[Engines]:
    """Engines that end with the block."""
    engines = Engines()
    try:
        yield engines
    finally:
        for name in [*engines._running]:
            engines.end(name)

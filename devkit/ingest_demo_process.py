"""`objcat ingest` in processes of its own, as a user calls it. What `run` prints with --json is read while it runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

WAIT_S_MAX = 90.0
"""How long one wait for an ingest takes at most."""
COMMAND = (sys.executable, "-m", "objcat.cli", "ingest")


class IngestFailed(Exception):
    """An ingest ended by itself, or did not do in time what it was to do."""


class IngestProcess:
    """A running `objcat ingest run`.

    Attributes:
        process: it.
        mark: that of `demo_hunter.Victim`: this process is the only writer of its lake, so any transaction is its own.
        commits: what it said of each commit: `slot`, `is_consistent`, `table` that is being read, `changes` and more.
    """

    def __init__(self, config: Path) -> None:
        self.mark = ""
        self.commits: list[Mapping[str, Any]] = []
        self._log = config.with_suffix(".log")
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "run", str(config), "--json"], stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        self._reader = threading.Thread(target=self._read, name="ingest", daemon=True)
        self._reader.start()

    def wait(self, what: str, is_done: Callable[[IngestProcess], bool]) -> None:
        """Wait for it. `what`: for the message. Raises IngestFailed."""
        end_s = time.monotonic() + WAIT_S_MAX
        while not is_done(self):
            if self.process.poll() is not None:
                self._reader.join()
                raise IngestFailed(f"objcat ingest run ended by itself before {what}. Its last words: {self._last_words()}")
            if time.monotonic() > end_s:
                raise IngestFailed(f"objcat ingest run did not come to {what} in {WAIT_S_MAX:.0f} s. Its last words: {self._last_words()}")
            time.sleep(0.005)

    @property
    def is_consistent(self) -> bool:
        """Whether its last commit was of whole transactions."""
        return bool(self.commits and self.commits[-1]["is_consistent"])

    @property
    def reads(self) -> str | None:
        """The table that it reads, None when it reads none."""
        return self.commits[-1]["table"] if self.commits else None

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.kill()
        self._end()

    def stop(self) -> None:
        """End it by SIGTERM, as a machine does that shuts down."""
        self.process.send_signal(signal.SIGTERM)
        self._end()

    def close(self) -> None:
        """End it if it runs. May be called again."""
        self.kill()

    def _end(self) -> None:
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):
                said = json.loads(line)
                if "slot" in said:  # The last line of a process that ends by a signal sums up.
                    self.commits.append(said)

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace").strip()[-1000:] or "none"


def call_ingest(command: str, config: Path, *options: str) -> str:
    """Call a command of `objcat ingest` that ends. Returns what it printed. Raises IngestFailed."""
    done = subprocess.run(
        [*COMMAND, command, str(config), *options],
        capture_output=True,
        text=True,
        timeout=WAIT_S_MAX,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        raise IngestFailed(f"objcat ingest {command} ended with {done.returncode}: {done.stderr.strip()[-1000:]}")
    return done.stdout.strip()

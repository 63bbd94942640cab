"""`Hunter`: kills a writer in mid-write, after its data is in the store and before its commit is."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from typing import Protocol

from fileio.store import FileIO
from objcat.timeline.entry import Txn, data_prefix
from objcat.timeline.log import Log


class Victim(Protocol):
    """A writer that may be killed.

    Attributes:
        mark: the beginning of the ids of its transactions; empty when nobody else writes.
        process: it.
    """

    mark: str
    process: subprocess.Popen[str]


class Hunter(threading.Thread):
    """Watches the store for data of the victim that no slot names, and kills the victim there.

    New data stops the victim (SIGSTOP). If the log has its commit already, the victim continues and the next commit is tried. If not, it is
    killed (SIGKILL). `txn`: the interrupted write; None while there is none. `tries`: commits that were too quick.
    """

    def __init__(self, fileio: FileIO, victim: Victim) -> None:
        super().__init__(name="hunter", daemon=True)
        self.txn: str | None = None
        self.tries = 0
        self._fileio = fileio
        self._victim = victim
        self._seen = "data/"
        self._head = -1
        self._ended = threading.Event()

    def hunt(self, *, after: str) -> None:
        """Start to watch for transactions of the victim later than `after`."""
        self._seen = _after(after)
        self.start()

    def end(self) -> None:
        """Stop watching. May be called again, and without a hunt."""
        self._ended.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """The loop of the watching thread."""
        while not self._ended.is_set():
            listed = self._fileio.list_keys("data/", start_after=self._seen)
            keys = [key for key in listed if _txn_of(key).split("-")[1].startswith(self._victim.mark)]
            if not keys:
                time.sleep(0.0005)  # Polling without a time limit: the watch ends when it has seen new data.
                continue
            txn = _txn_of(keys[-1])
            if self._kill_unless_committed(txn):
                return
            self._seen = _after(txn)

    def _kill_unless_committed(self, txn: str) -> bool:
        """Stop the victim, look, and kill it or let it continue."""
        process = self._victim.process
        process.send_signal(signal.SIGSTOP)
        try:
            entries = Log(self._fileio).read_after(self._head)
            if all(entry.txn != txn for entry in entries):
                process.kill()
                self.txn = txn
                return True
            self.tries += 1
            self._head = entries[-1].slot
            return False
        finally:
            process.send_signal(signal.SIGCONT)


def _txn_of(key: str) -> str:
    return key.split("/")[1]


def _after(txn: str) -> str:
    """A key behind all data of a transaction, and before that of later ones."""
    return f"{data_prefix(Txn(txn))}~"

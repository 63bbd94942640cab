"""`IngestMetrics`: what an ingest says of itself to Prometheus, and the page that serves it."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fileio.env import Env

_HELP: Mapping[str, tuple[str, str]] = {
    "objcat_ingest_lag_seconds": ("gauge", "Age of the newest committed change by the source's clock. 0 at the head of the source."),
    "objcat_ingest_clock_offset_seconds": ("gauge", "How far the clock of the source is ahead of the one of this machine."),
    "objcat_ingest_behind_bytes": ("gauge", "Bytes of the source's log after the committed position."),
    "objcat_ingest_behind_events": ("gauge", "Events of the source after the committed position."),
    "objcat_ingest_retained_bytes": ("gauge", "Bytes that the source keeps for this reader."),
    "objcat_ingest_consistent": ("gauge", "1 when all tables are handed over from their snapshot to the stream."),
    "objcat_ingest_snapshot_rows": ("gauge", "Rows of the last snapshot of a table so far."),
    "objcat_ingest_table_consistent": ("gauge", "1 when a table is handed over, 0 while it is read or set aside."),
    "objcat_ingest_queue_bytes": ("gauge", "Bytes of changes that wait to be written."),
    "objcat_ingest_queue_rows": ("gauge", "Changes that wait to be written."),
    "objcat_ingest_slot": ("gauge", "Slot of the last commit."),
    "objcat_ingest_commits_total": ("counter", "Commits since the start."),
    "objcat_ingest_commit_seconds_total": ("counter", "Seconds of these commits."),
    "objcat_ingest_commit_seconds": ("gauge", "Seconds of the last commit."),
    "objcat_ingest_rows_total": ("counter", "Rows that were written since the start."),
    "objcat_ingest_transactions_total": ("counter", "Transactions of the source that were applied since the start."),
    "objcat_ingest_changes_total": ("counter", "Changes of the source that were read since the start."),
    "objcat_ingest_dead_total": ("counter", "Records in the dead letters, since the first start."),
    "objcat_ingest_schema_changes_total": ("counter", "Changes of schemas since the start."),
    "objcat_ingest_chunks_repeated_total": ("counter", "Chunks that had not seen an applied transaction and were read again."),
    "objcat_ingest_nulled_total": ("counter", "Values that no type of the lake holds, and that became null, since the first start."),
    "objcat_ingest_reconnects_total": ("counter", "Times that the source was away."),
    "objcat_ingest_store_waits_total": ("counter", "Times that the bucket was away for longer than its own retries."),
}


class IngestMetrics:
    """Values by metric and labels. Safe for many threads."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._computed: dict[str, Callable[[], float | None]] = {}

    def set(self, metric: str, value: float | None, **labels: str) -> None:
        """Set a value; None removes it."""
        assert f"objcat_ingest_{metric}" in _HELP, metric
        key = (f"objcat_ingest_{metric}", tuple(sorted(labels.items())))
        with self._lock:
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value

    def compute(self, metric: str, function: Callable[[], float | None]) -> None:
        """Let a value be computed whenever it is asked for. The function is called by many threads."""
        assert f"objcat_ingest_{metric}" in _HELP, metric
        self._computed[metric] = function

    def add(self, metric: str, value: float = 1) -> None:
        """Add to a counter."""
        assert f"objcat_ingest_{metric}" in _HELP, metric
        with self._lock:
            key = (f"objcat_ingest_{metric}", ())
            self._values[key] = self._values.get(key, 0) + value

    def value(self, metric: str, **labels: str) -> float | None:
        """A value, None when it was not set."""
        self._compute()
        with self._lock:
            return self._values.get((f"objcat_ingest_{metric}", tuple(sorted(labels.items()))))

    def values(self) -> dict[str, Any]:
        """All values without labels, by the short name of the metric."""
        self._compute()
        with self._lock:
            return {name.removeprefix("objcat_ingest_"): value for (name, labels), value in self._values.items() if not labels}

    def text(self) -> str:
        """All metrics in the text format of Prometheus."""
        self._compute()
        with self._lock:
            found = sorted(self._values.items())
        lines: list[str] = []
        for metric, (kind, meaning) in _HELP.items():
            mine = [(labels, value) for (name, labels), value in found if name == metric]
            if mine:
                lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} {kind}"]
            for labels, value in mine:
                said = ",".join(f'{name}="{_escaped(text)}"' for name, text in (("source", self._source), *labels))
                lines.append(f"{metric}{{{said}}} {_number(value)}")
        return "".join(f"{line}\n" for line in lines)

    def _compute(self) -> None:
        for metric, function in self._computed.items():
            self.set(metric, function())


def serve_metrics(metrics: Callable[[], str], *, host: str, port: int, env: Env) -> tuple[int, Callable[[], None]]:
    """Serve metrics at `/metrics` in a thread.

    Args:
        metrics: makes the text.
        host, port: where to listen; port 0: a free one.
        env: gives the thread.

    Returns:
        The port, and a function that stops it. Raises OSError when the port cannot be had.
    """

    class Page(http.server.BaseHTTPRequestHandler):
        """Answers one request."""

        timeout = 10

        def do_GET(self) -> None:
            """The metrics."""
            if self.path.split("?")[0] != "/metrics":
                self.send_error(HTTPStatus.NOT_FOUND, "There is /metrics.")
                return
            body = metrics().encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
            """Nothing is logged."""

    server = http.server.ThreadingHTTPServer((host, port), Page)
    server.daemon_threads = True
    is_stopped = threading.Event()

    def serve() -> None:
        if not is_stopped.is_set():
            server.serve_forever(poll_interval=0.2)

    # A repetition has a thread of its own, which ends with the process.
    stop_thread = env.repeat(serve, every_s=3600.0, first_s=0.0)

    def stop() -> None:
        is_stopped.set()
        stop_thread()
        server.shutdown()
        server.server_close()

    return server.server_address[1], stop


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

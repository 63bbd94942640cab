"""One side in its own process: `python -m benchmarks.worker MODULE` reads JSON lines and answers JSON lines.

Requests: `start`, `create`, the operations of `benchmarks.works.Op`, `mark` (later requests go back to the newest version), `drop`, `stop`.
An answer has `ok`, or `error` with its `kind`: `not available` where the side has no such operation, else `failed`. Times are taken here,
around the call alone.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.base import BenchTable, Rows, Settings, Side, Store
from benchmarks.works import NotAvailable, comparable, decoded_layout, decoded_query, decoded_statement, difference

Answer = dict[str, Any]


class Worker:
    """Serves the requests for one side."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._tables: dict[str, BenchTable] = {}

    def start(self, request: Mapping[str, Any]) -> Answer:
        """Start the side."""
        store = Store(**request["store"]) if request["store"] else None
        settings = Settings(Path(request["directory"]), request["memory"], request["cores"], tuple(request["jars"]), store)
        return {"about": self._side.start(settings)}

    def create(self, request: Mapping[str, Any]) -> Answer:
        """Create the tables."""
        table = BenchTable(request["table"], decoded_layout(request["layout"]))
        self._tables[table.name] = table
        return {"place": self._side.create(table)}

    def load(self, request: Mapping[str, Any]) -> Answer:
        """Load the first rows."""
        table = self._tables[request["table"]]
        (path,) = request["paths"]
        seconds, called = _timed(lambda: self._side.load(table, Path(path)))
        return {"seconds": [seconds], "called": called, "requests": self._side.requests(table)}

    def upsert(self, request: Mapping[str, Any]) -> Answer:
        """Upsert batches."""
        return self._committed(request, self._side.upsert)

    def append(self, request: Mapping[str, Any]) -> Answer:
        """Append batches."""
        return self._committed(request, self._side.append)

    def delete(self, request: Mapping[str, Any]) -> Answer:
        """Delete the keys of batches."""
        return self._committed(request, self._side.delete)

    def mark(self, request: Mapping[str, Any]) -> Answer:
        """Remember the newest version."""
        table = self._tables[request["table"]]
        table.versions.append(self._side.version(table))
        return {}

    def compact(self, request: Mapping[str, Any]) -> Answer:
        """Compact the table."""
        return self._counted(request, self._side.compact)

    def cluster(self, request: Mapping[str, Any]) -> Answer:
        """Cluster the table."""
        return self._counted(request, lambda table: self._side.cluster(table, request["by"], zorder=request["zorder"]))

    def clean(self, request: Mapping[str, Any]) -> Answer:
        """Remove old versions."""
        return self._counted(request, self._side.clean)

    def query(self, request: Mapping[str, Any]) -> Answer:
        """Run a query."""
        query, back = decoded_query(request["query"]), request["back"]
        return self._counted(request, lambda table: self._side.query(table, query, as_of=table.versions[-1 - back] if back else None))

    def statement(self, request: Mapping[str, Any]) -> Answer:
        """Run a statement over tables."""
        tables = {source: self._tables[name] for source, name in request["tables"].items()}
        statement = decoded_statement(request["statement"])
        seconds, (rows, exchanges) = _timed(lambda: self._side.statement(tables, statement))
        return {"seconds": [seconds], "rows": comparable(rows), "exchanges": exchanges}

    def incremental(self, request: Mapping[str, Any]) -> Answer:
        """Read the rows of the last commits."""
        query, back = decoded_query(request["query"]), request["back"]
        return self._counted(request, lambda table: self._side.incremental(table, query, table.versions[-1 - back]))

    def changes(self, request: Mapping[str, Any]) -> Answer:
        """Read the changes of the last commits."""
        query, back = decoded_query(request["query"]), request["back"]
        return self._counted(request, lambda table: self._side.changes(table, query, table.versions[-1 - back]))

    def open(self, request: Mapping[str, Any]) -> Answer:
        """Open the table and plan a lookup."""
        table, query = self._tables[request["table"]], decoded_query(request["query"])
        self._side.reopen(table)
        seconds, planned = _timed(lambda: self._side.plan(table, query))
        if not planned:
            raise RuntimeError("The plan reads nothing.")
        return {"seconds": [seconds]}

    def digest(self, request: Mapping[str, Any]) -> Answer:
        """The digest of all rows."""
        return {"rows": comparable(self._side.digest(self._tables[request["table"]]))}

    def drop(self, request: Mapping[str, Any]) -> Answer:
        """Drop the tables."""
        self._side.drop(self._tables.pop(request["table"]))
        return {}

    def stop(self, _request: Mapping[str, Any]) -> Answer:
        """Stop the side."""
        self._side.stop()
        return {}

    def _committed(self, request: Mapping[str, Any], commit: Callable[[BenchTable, Any], None]) -> Answer:
        """Commit some batches, each timed. They are read before."""
        table = self._tables[request["table"]]
        before = self._side.requests(table)
        batches = [self._side.read(Path(path)) for path in request["paths"]]
        gc.collect()
        seconds = [_timed(lambda batch=batch: commit(table, batch), collect=False)[0] for batch in batches]  # type: ignore[misc]
        return {"seconds": seconds, "requests": _difference(self._side.requests(table), before)}

    def _counted(self, request: Mapping[str, Any], call: Callable[[BenchTable], Rows | None]) -> Answer:
        """One timed call, with its requests and its answer."""
        table = self._tables[request["table"]]
        before = self._side.requests(table)
        seconds, rows = _timed(lambda: call(table))
        return {"seconds": [seconds], "rows": comparable(rows or ()), "requests": _difference(self._side.requests(table), before)}


def _timed(call: Callable[[], Any], *, collect: bool = True) -> tuple[float, Any]:
    if collect:
        gc.collect()
    began_s = time.perf_counter()
    result = call()
    return time.perf_counter() - began_s, result


def _difference(after: Mapping[str, int] | None, before: Mapping[str, int] | None) -> dict[str, int] | None:
    return None if after is None or before is None else difference(after, before)


def answer(worker: Worker, request: Mapping[str, Any]) -> Answer:
    """The answer to one request. Never raises."""
    try:
        handler: Callable[[Mapping[str, Any]], Answer] = getattr(worker, request["do"])
        return {"ok": True, **handler(request)}
    except NotAvailable as reason:
        return {"ok": False, "kind": "not available", "error": str(reason)}
    except Exception as error:  # noqa: BLE001 - eight libraries raise here, and the caller must know the error
        traceback.print_exc()
        return {"ok": False, "kind": "failed", "error": f"{type(error).__name__}: {str(error).strip()[:600]}"}


def main(module: str) -> None:
    """Serve requests until the pipe closes. `module`: of the side. Standard output is the pipe, so all other output goes to stderr."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    side: Side = importlib.import_module(module).Side()
    worker = Worker(side)
    for line in sys.stdin:
        pipe.write(json.dumps(answer(worker, json.loads(line))) + "\n")
        pipe.flush()


if __name__ == "__main__":
    main(sys.argv[1])

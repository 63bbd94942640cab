"""One side in a process of its own, kept alive: `python -m benchmarks.worker MODULE`, a JSON line in, a JSON line out.

Requests: `start`, `create`, `load`, `upsert`, `compact`, `query`, `join`, `last_commit`, `digest`, `drop`, `stop`. An answer has `ok`, or
`error` with its `kind`: `not available` where the side has no such thing, else `failed`. Times are taken here, around the call alone.
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

from benchmarks.peers.base import BenchTable, Settings, Side
from benchmarks.works import NotAvailable, comparable, decoded_layout, decoded_query

Answer = dict[str, Any]


class Worker:
    """Serves the requests for one side."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._tables: dict[str, BenchTable] = {}

    def start(self, request: Mapping[str, Any]) -> Answer:
        settings = Settings(Path(request["directory"]), request["memory"], request["cores"], tuple(request["jars"]))
        return {"about": self._side.start(settings)}

    def create(self, request: Mapping[str, Any]) -> Answer:
        table = BenchTable(request["table"], decoded_layout(request["layout"]))
        self._tables[table.name] = table
        return {"directory": str(self._side.create(table))}

    def load(self, request: Mapping[str, Any]) -> Answer:
        table = self._tables[request["table"]]
        seconds, called = _timed(lambda: self._side.load(table, Path(request["path"])))
        return {"seconds": [seconds], "called": called, "requests": self._requests(table)}

    def upsert(self, request: Mapping[str, Any]) -> Answer:
        """Some batches, each a commit: read before, timed one by one."""
        table = self._tables[request["table"]]
        before = self._requests(table)
        batches = [self._side.read(Path(path)) for path in request["paths"]]
        gc.collect()
        seconds = [_timed(lambda batch=batch: self._side.upsert(table, batch), collect=False)[0] for batch in batches]  # type: ignore[misc]
        return {"seconds": seconds, "requests": _difference(self._requests(table), before)}

    def compact(self, request: Mapping[str, Any]) -> Answer:
        table = self._tables[request["table"]]
        before = self._requests(table)
        seconds, _ = _timed(lambda: self._side.compact(table))
        return {"seconds": [seconds], "requests": _difference(self._requests(table), before)}

    def query(self, request: Mapping[str, Any]) -> Answer:
        table, query = self._tables[request["table"]], decoded_query(request["query"])
        before = self._requests(table)
        seconds, rows = _timed(lambda: self._side.query(table, query))
        return {"seconds": [seconds], "rows": comparable(rows), "requests": _difference(self._requests(table), before)}

    def join(self, request: Mapping[str, Any]) -> Answer:
        orders, lineitem = (self._tables[name] for name in request["tables"])
        seconds, (rows, exchanges) = _timed(lambda: self._side.join(orders, lineitem))
        return {"seconds": [seconds], "rows": comparable(rows), "exchanges": exchanges}

    def last_commit(self, request: Mapping[str, Any]) -> Answer:
        table, query = self._tables[request["table"]], decoded_query(request["query"])
        seconds, rows = _timed(lambda: self._side.last_commit(table, query))
        return {"seconds": [seconds], "rows": comparable(rows)}

    def digest(self, request: Mapping[str, Any]) -> Answer:
        return {"rows": comparable(self._side.digest(self._tables[request["table"]]))}

    def drop(self, request: Mapping[str, Any]) -> Answer:
        self._side.drop(self._tables.pop(request["table"]))
        return {}

    def stop(self, _request: Mapping[str, Any]) -> Answer:
        self._side.stop()
        return {}

    def _requests(self, table: BenchTable) -> dict[str, int] | None:
        return self._side.requests(table)


def _timed(call: Callable[[], Any], *, collect: bool = True) -> tuple[float, Any]:
    if collect:
        gc.collect()
    began_s = time.perf_counter()
    result = call()
    return time.perf_counter() - began_s, result


def _difference(after: Mapping[str, int] | None, before: Mapping[str, int] | None) -> dict[str, int] | None:
    if after is None or before is None:
        return None
    return {kind: count - before.get(kind, 0) for kind, count in after.items() if count > before.get(kind, 0)}


def answer(worker: Worker, request: Mapping[str, Any]) -> Answer:
    """What one request comes to; never raises."""
    try:
        handler: Callable[[Mapping[str, Any]], Answer] = getattr(worker, request["do"])
        return {"ok": True, **handler(request)}
    except NotAvailable as reason:
        return {"ok": False, "kind": "not available", "error": str(reason)}
    except Exception as error:  # noqa: BLE001 - libraries of eight kinds raise here, and the one who asked must hear of it
        traceback.print_exc()
        return {"ok": False, "kind": "failed", "error": f"{type(error).__name__}: {str(error).strip()[:600]}"}


def main(module: str) -> None:
    """module: of the side. Until the pipe closes. Standard output is the pipe, so whatever else writes there goes to standard error."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    side: Side = importlib.import_module(module).Side()
    worker = Worker(side)
    for line in sys.stdin:
        pipe.write(json.dumps(answer(worker, json.loads(line))) + "\n")
        pipe.flush()


if __name__ == "__main__":
    main(sys.argv[1])

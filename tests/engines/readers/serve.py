"""A process in an engine's own environment: it answers one request a line, and writes rows as an Arrow file.

`python serve.py read_duckdb FOLDER` imports that module beside this one. It knows nothing of objcat: only the standard library, pyarrow and
the engine are there. A request is a JSON object of the fields of `Request`. An answer is one too: `{"file": ...}`, or `{"error": ...}`.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Request:
    """What is to be read.

    format: `iceberg` or `delta`. prefix: the folder of the table, an absolute path.
    way: `newest`, by the prefix alone as a user does it; `travel`, the state of a slot by the newest metadata; `pinned`, by the metadata
    file of that slot; `write`, nothing is read, and Spark does the statements of `sql`.
    slot: of objcat. metadata: the Iceberg metadata file to begin at.
    settings: of the engine's session, as SET takes them.
    catalog: the URL of an Iceberg REST catalog, which has the table as `default.t`; empty: the engine finds the table by path.
    sql: what to select, with `{t}` for the table and `{columns}` quoted as the engine does; None: all rows.
    """

    format: str
    prefix: str
    way: str
    slot: int
    metadata: str
    sql: str | None = None
    columns: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    catalog: str = ""

    @property
    def snapshot_id(self) -> int | None:
        """Of Iceberg; None: what the metadata says is current."""
        return self.slot + 1 if self.way == "travel" else None

    @property
    def version(self) -> int | None:
        """Of Delta; None: the newest."""
        return None if self.way == "newest" else self.slot

    def query(self, table: str, quote: str) -> str:
        """The statement over a table of that name. quote: around names of columns."""
        names = [quote + name.replace(quote, quote * 2) + quote for name in self.columns]
        return "select * from " + table if self.sql is None else self.sql.format(*names, t=table)


def main(module: str, folder: str) -> None:
    # The engine may print: only this process's own answers go to the first pipe.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine: Any = importlib.import_module(module)
    read = engine.start(folder)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    numbers = itertools.count()
    for line in sys.stdin:
        try:
            request = json.loads(line)
            given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in request.items()}
            rows = read(Request(**given))
            file = f"{folder}/{next(numbers)}.arrow"
            with pa.OSFile(file, "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
                writer.write_table(rows)
            answer = {"file": file}
        except BaseException as error:  # noqa: BLE001 - crashes of Rust come as exceptions of their own kind
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

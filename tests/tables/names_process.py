"""One process of `test_catalog_races`: waits for a line, changes names of a lake, and prints what came of it as JSON."""

from __future__ import annotations

import json
import sys

import pyarrow as pa

import objcat
from objcat.errors import ObjcatError

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.string())])


def main() -> None:
    job = json.loads(sys.argv[1])
    lake = objcat.connect(job["url"], job["options"])
    print("ready", flush=True)
    sys.stdin.readline()
    outcomes = []
    for name in job["names"]:
        try:
            table = lake.create_table(name, SCHEMA, key=["id"], index=objcat.BucketIndex(1), shared_log=job["domain"])
            table.upsert([{"id": job["number"], "value": name}])
            outcomes.append({"name": name, "won": table.id, "log": table._context.fileio.url})
        except ObjcatError as error:
            outcomes.append({"name": name, "lost": type(error).__name__, "says": str(error)})
    print(json.dumps(outcomes), flush=True)


if __name__ == "__main__":
    main()

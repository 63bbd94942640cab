"""Reads a lake that an ingest writes to, in a process of its own: when each slot is seen, and when its rows are read.

`python -m benchmarks.ingest_watch slots LAKE SOURCE FILE` looks at the log every few milliseconds. With every new position it also reads
the rows of `shop.probes` that came with it. `python -m benchmarks.ingest_watch scans LAKE SOURCE FILE` reads all rows of `shop.orders` and
`shop.accounts` at one slot again and again, and sums the balances. Both go on until SIGTERM, and write a line for each event.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any, TextIO

import pyarrow.compute as pc

import objcat
from objcat.lake.lake import Lake

LOOK_EVERY_S = 0.02
SCAN_EVERY_S = 2.0


class _Ended(Exception):
    """SIGTERM came."""


def watch_slots(lake: Lake, source: str, target: TextIO) -> None:
    """Write, of each new position: when it was seen, its slot, when that was committed, the position, and the probes read with it."""
    last_version, last_probe, table = -2, 0, None
    while True:
        stored = lake.source_position(source, shared_log=source)
        seen_s = time.time()
        if stored is None or stored.version == last_version:
            time.sleep(LOOK_EVERY_S)
            continue
        last_version = stored.version
        table = table if table is not None else lake.table("shop.probes")
        found = table.scan(where=f"id > {last_probe}", columns=["id"]).to_arrow()["id"].to_pylist()
        read_s = time.time()
        last_probe = max([last_probe, *found])
        position: Any = stored.state["position"]
        event = {
            "seen_s": seen_s,
            "slot": stored.slot,
            "committed_s": stored.committed_at_ms / 1000,
            "number": int(str(position["gtids"]).rpartition("-")[2] or 0),
            "probes": sorted(found),
            "read_s": read_s,
        }
        target.write(json.dumps(event) + "\n")


def watch_scans(lake: Lake, target: TextIO) -> None:
    """Write, of each scan: its seconds, its slot, the rows of both tables, and the sum of all balances."""
    accounts, orders = lake.table("shop.accounts"), lake.table("shop.orders")
    while True:
        began_s = time.time()
        slot = accounts.refresh().slot
        balances = accounts.scan(columns=["balance"], as_of=slot).to_arrow()["balance"]
        totals = orders.scan(columns=["id", "total"], as_of=slot).to_arrow()
        took_s = time.time() - began_s
        event = {"slot": slot, "seconds": took_s, "accounts": len(balances), "orders": totals.num_rows, "sum": pc.sum(balances).as_py()}
        target.write(json.dumps(event) + "\n")
        time.sleep(max(0.0, SCAN_EVERY_S - took_s))


def main() -> None:
    """Watch as the command line says."""

    def end(*_: object) -> None:
        raise _Ended

    signal.signal(signal.SIGTERM, end)
    what, url, source, path = sys.argv[1:]
    lake = objcat.connect(url)
    with open(path, "w", buffering=1) as target:
        try:
            if what == "slots":
                watch_slots(lake, source, target)
            else:
                watch_scans(lake, target)
        except _Ended:
            return


if __name__ == "__main__":
    main()

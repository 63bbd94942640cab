"""A process whose main thread has ended: `ending_process.py HOW URL OPTIONS`. Prints the slot of each write, or what it raised."""

from __future__ import annotations

import atexit
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import objcat
from objcat.timeline.commit import Committer


def works(table: objcat.Table) -> list[Callable[[], Any]]:
    """One commit each, the last of which leaves nothing but the rows of the newest slot."""
    return [
        lambda: table.upsert([{"id": key, "v": 0} for key in range(100)]),
        lambda: table.update({"v": "v + 1"}),
        lambda: table.delete([{"id": 0}]),
        lambda: table.delete("id = 1"),
        lambda: table.merge([{"id": 2, "v": 9}]).when_matched_update().execute(),
        table.maintenance.compact,
        lambda: table.maintenance.clean(keep_slots=1),
    ]


def tell(work: Callable[[], Any]) -> None:
    try:
        print(work().slot, flush=True)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the test judges
        print(f"{type(error).__name__}: {error}", flush=True)


def main(how: str, url: str, options: str) -> None:
    table = objcat.connect(url, json.loads(options)).table("t")

    def work() -> None:
        for one in works(table):
            tell(one)

    def work_after_it() -> None:
        threading.main_thread().join()
        work()

    if how == "thread":
        # That the pools are there already makes a difference to Python.
        table.upsert([{"id": 0, "v": 0}])
        threading.Thread(target=work_after_it).start()
    elif how == "new thread":
        threading.Thread(target=work_after_it).start()
    elif how == "exit":
        atexit.register(work)
    elif how == "while it commits":
        did = Committer.try_commit

        def late(*given: Any, **named: Any) -> Any:
            threading.main_thread().join()
            return did(*given, **named)

        Committer.try_commit = late  # type: ignore[method-assign]
        threading.Thread(target=tell, args=(works(table)[1],)).start()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What each seed is: a table, some operations on it, and comparisons after each.

`./dev run python -m tests.combinations.seeds 1000 1200` runs the seeds from 1000 on, below 1200, and prints those that fail.
With `several` after it they are tables with several ordering columns.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence

import pytest

from objcat.datafile import log_reader, parquet
from objcat.tasks import row_order
from objcat.tasks import scan as scan_tasks
from tests.combinations import followers, maintenance, writes
from tests.combinations.comparisons import compare_after_a_step, compare_at_the_end
from tests.combinations.tables import DrawnTable, SeveralOrderings

OPERATIONS = {
    writes.upsert: 10.0,
    writes.upsert_and_delete: 3,
    writes.delete: 4,
    writes.delete_where: 3.5,
    writes.update_where: 3,
    writes.merge: 4,
    writes.upsert_partial: 2,
    writes.transaction: 2,
    writes.append: 6,
    writes.write_that_alters: 2.5,
    writes.write_by_a_stale_handle: 4,
    writes.overwrite: 2,
    writes.insert_overwrite: 1.5,
    writes.delete_partition: 1,
    writes.restore: 3,
    writes.soft_delete: 1.2,
    writes.erase: 0.7,
    followers.follow: 2.5,
    maintenance.compact: 4,
    maintenance.execute_plans: 1,
    maintenance.cluster: 2,
    maintenance.split: 1,
    maintenance.savepoint: 1,
    maintenance.release: 1,
    maintenance.clean: 1.2,
    maintenance.tidy: 0.7,
    maintenance.maintain: 0.5,
    maintenance.wait: 1.5,
    maintenance.open_again: 1,
    maintenance.drop_and_bring_back: 0.3,
    maintenance.work_beside: 2,
    maintenance.set_partitioning: 4,
    maintenance.alter: 7,
}
"""Each does nothing, and tells nothing, where the table has none of it. With how often it is drawn."""


def run(seed: int, drawn: DrawnTable | None = None) -> None:
    """All of a seed. What it raises has the seed and the operations so far as a note. drawn: its table, where it is a special one."""
    table = DrawnTable(seed) if drawn is None else drawn
    try:
        with pytest.MonkeyPatch.context() as patch:
            _use_few_rows(table, patch)
            _do(table)
    except BaseException as error:
        lines = "\n".join(f"  {number}. {line}" for number, line in enumerate(table.story))
        error.add_note(f"This was seed {seed}; it did, and failed in or after the last of these:\n{lines}")
        raise


def _use_few_rows(table: DrawnTable, patch: pytest.MonkeyPatch) -> None:
    """Mostly, row groups of a few rows; at times, rows of logs are streamed, and so is what is sorted."""
    if table.rng.random() < 0.7:
        base, log = table.rng.choice([2, 4]), table.rng.choice([2, 3])
        table.tell(f"row groups of {base} rows in base files, of {log} in logs")
        patch.setattr(parquet, "BASE_ROW_GROUP_ROWS", base)
        patch.setattr(parquet, "LOG_ROW_GROUP_ROWS", log)
    if table.rng.random() < 0.3:
        table.tell("rows of logs are streamed")
        patch.setattr(scan_tasks, "GROUP_LOGS_BYTES_MAX", -1)
        patch.setattr(log_reader, "HELD_BYTES_MAX", 0)
        patch.setattr(row_order, "SORTED_BYTES_MAX", 1)


def _do(table: DrawnTable) -> None:
    table.create()
    done = 0
    while done < table.steps:
        told = len(table.story)
        (operation,) = table.rng.choices(list(OPERATIONS), list(OPERATIONS.values()))
        operation(table)
        if len(table.story) > told:
            done += 1
            compare_after_a_step(table)
    compare_at_the_end(table)


def run_all(seeds: Sequence[int], run_one: Callable[[int], None]) -> int:
    """The exit code of a run of many. Says how far it is as it goes."""
    failed = []
    for number, seed in enumerate(seeds, 1):
        try:
            run_one(seed)
        except Exception:  # noqa: BLE001 - whatever a seed raises is what is looked for
            failed.append(seed)
            traceback.print_exc()
        print(f"{number} of {len(seeds)} seeds, {f'failed: {failed}' if failed else 'none failed'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    several = sys.argv[3:] == ["several"]
    sys.exit(run_all(range(int(sys.argv[1]), int(sys.argv[2])), lambda seed: run(seed, SeveralOrderings(seed) if several else None)))

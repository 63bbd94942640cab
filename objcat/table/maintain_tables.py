"""`maintain_tables`: a round of maintenance of many tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fileio.env import Env
from fileio.errors import FileIOError
from objcat.common.progress import shown_progress
from objcat.common.validation import seconds, whole_number
from objcat.errors import ObjcatError
from objcat.inspection.verify_files import VERIFIED_BYTES
from objcat.maintenance.maintain import MaintenanceReport, MaintenanceStep
from objcat.table.maintenance import TableMaintenance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def maintain_tables(
    names: Sequence[str],
    open_table: Callable[[str], TableMaintenance],
    env: Env,
    *,
    io_bytes_max: int | None,
    seconds_max: float | None,
    verify_bytes_max: int = VERIFIED_BYTES,
    spark: SparkSession | None = None,
) -> list[MaintenanceReport]:
    """A round of maintenance of some tables, within one budget for all.

    It goes in the order of the names, from a random one on. So a small budget reaches all of them in time, and several machines do not
    begin with the same table. A table that cannot be opened is reported.
    """
    if io_bytes_max is not None:
        whole_number(io_bytes_max, what="io_bytes_max", least=1)
    if seconds_max is not None:
        seconds(seconds_max, what="seconds_max")
    first = int(env.random() * len(names))
    left, began_s = io_bytes_max, env.monotonic_s()
    done: list[MaintenanceReport] = []
    with shown_progress(env, "objcat: maintain", len(names), unit="tables") as advance:
        for name in (*names[first:], *names[:first]):
            time_left = None if seconds_max is None else max(0.0, seconds_max - (env.monotonic_s() - began_s))
            try:
                maintained = open_table(name).run(io_bytes_max=left, seconds_max=time_left, verify_bytes_max=verify_bytes_max, spark=spark)
            except (ObjcatError, FileIOError) as error:
                maintained = MaintenanceReport(
                    table=name, steps=(MaintenanceStep(service="open", done=False, why=str(error), failed=True),)
                )
            if left is not None:
                left = max(1, left - maintained.io_bytes)
            done.append(maintained)
            advance(1)
    return sorted(done, key=lambda maintained: maintained.table)

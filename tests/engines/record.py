"""Asks engines what they read and keeps it for the page: `./dev docs engines [NAME...] [--all]`. With `--all`, every slot.

The record is written after each engine, as long as every read was explained.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from devkit.engines import ENGINES
from devkit.engines_page import RECORD
from tests.engines.cells import CELLS
from tests.engines.checks import SLOW
from tests.engines.matrix import Run, all_slots, read_all, some_slots, write_histories, write_record
from tests.engines.process import running_engines

SEED = 1
READS = 5
READS_OF_SLOW = 3
"""Reads of each history by each engine, where not every slot is read."""


def main(arguments: Sequence[str]) -> int:
    whole = "--all" in arguments
    names = [argument for argument in arguments if argument != "--all"] or list(ENGINES)
    run = Run()
    with tempfile.TemporaryDirectory(prefix="objcat-engines-") as folder, running_engines() as engines:
        began_s = time.monotonic()
        histories = list(write_histories(SEED, Path(folder)))
        print(f"{len(histories)} histories in {time.monotonic() - began_s:.0f} s", flush=True)
        for name in names:
            began_s, rng, count = time.monotonic(), random.Random(f"{name} {SEED}"), READS_OF_SLOW if name in SLOW else READS
            for mirrored in histories:
                read_all(engines[name], mirrored, all_slots if whole else partial(some_slots, count=count, rng=rng), run)
            engines.end(name)
            print(f"{name} in {time.monotonic() - began_s:.0f} s", flush=True)
            if not run.differences:
                # A run takes long, and one that is cut short keeps what it has asked.
                write_record(run, RECORD, seed=SEED, names=names[: names.index(name) + 1], cells=CELLS)
    for difference in run.differences:
        print(difference, file=sys.stderr)
    unmet = run.unmet(names)
    if unmet:
        print(f"No read met {', '.join(unmet)}. Take these out of tests/engines/limits.py.")
    return 1 if run.differences or unmet else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

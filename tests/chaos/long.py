"""Chaos on one server for as long as you like: `./dev run python -m tests.chaos.long SERVER KIND SECONDS`.

It prints what happened, and ends with status 1 when the auditor or the doctor found anything. `CHAOS_SEED=...` chooses the seed.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, cast

from devkit.servers import ServerName, Servers
from objcat.inspection.doctor import examine
from tests.chaos.auditor import audit
from tests.chaos.journal import read_journals
from tests.chaos.operations import open_table
from tests.chaos.supervisor import Plan, run_chaos, where
from tests.chaos.worker import TABLE

NEVER = 1 << 60
"""More than ever happens, so that the time ends the run."""


def main(server: ServerName, kind: Any, seconds: float) -> int:
    seed = int(os.environ.get("CHAOS_SEED") or secrets.randbits(32))
    print(f"chaos on {server}, {kind}, for {seconds:.0f} s, CHAOS_SEED={seed}", flush=True)
    plan = Plan(local=3, commits=NEVER, kills=NEVER, lost=0, unknown=0, fenced=0, seconds_max=seconds, kind=kind)
    with Servers() as servers, tempfile.TemporaryDirectory() as directory:
        store = servers.start(server).fresh_bucket()
        run = Path(directory) / "run"
        happened = run_chaos(store, plan, seed=seed, directory=run)
        attempts: Any = read_journals(run)
        table, objects = open_table(*where(store), TABLE)
        verdict = audit(table, objects, attempts)
        report = examine(table._context.timeline, deep=True)
        broke = Counter(attempt.operation for attempt in attempts if attempt.outcome == "broke")
    print(f"{happened}; {dict(sorted(verdict.counts.items()))}; broke: {dict(broke)}")
    for problem in [*verdict.problems, *([] if report.healthy else map(str, report.findings))]:
        print("PROBLEM", problem)
    return 1 if verdict.problems or not report.healthy else 0


if __name__ == "__main__":
    sys.exit(main(cast("ServerName", sys.argv[1]), sys.argv[2], float(sys.argv[3])))

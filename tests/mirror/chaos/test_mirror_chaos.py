"""Four writers, two processes that mirror, services and erasures on a real server; they are killed, answers are lost, an auditor reads.

`CHAOS_SEED=...` chooses again what the seed that a run prints has chosen. The moments of a run are its own, so a replay is a similar run.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from devkit.handle import ServerHandle
from devkit.servers import ServerName
from tests.mirror.chaos.supervisor import MirrorChaos, MirrorHappened, MirrorPlan, mirror_put

SHORT = MirrorPlan(seconds_max=400, after_puts=3, kinds=2, lost=8, writes=20, compactions=1, erasures=0, slots=8)
LONG = MirrorPlan(seconds_max=1500, after_puts=60, kinds=6, lost=150, writes=300, compactions=15, erasures=5, slots=150)


def run(store: ServerHandle, plan: MirrorPlan, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or secrets.randbits(32))
    told = f"mirrors on {store.name}, Iceberg {plan.version} and Delta, CHAOS_SEED={seed}"
    print(told)
    happened, problems = MirrorChaos(store, plan, seed=seed, directory=directory).run()
    with capsys.disabled():
        print(f"\n{told}: {happened}")
    assert problems == [], "\n".join([told, *problems])
    assert happened.lacks(plan) == [], f"too little happened for the run to mean anything: {happened.lacks(plan)}"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", ["2", pytest.param("3", marks=pytest.mark.tier("all"))])
@pytest.mark.parametrize(
    "store",
    [
        "versitygw",
        *(pytest.param(name, marks=pytest.mark.tier("all")) for name in ("seaweedfs", "fake-gcs-server", "azurite")),
    ],
)
def test_mirrors_beside_processes_that_are_killed(
    servers: Callable[[ServerName], ServerHandle], store: ServerName, version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(servers(store).fresh_bucket(), replace(SHORT, version=version), tmp_path / "run", capsys)


@pytest.mark.tier("all")
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("version", ["2", "3"])
@pytest.mark.parametrize("store", ["versitygw", "seaweedfs", "fake-gcs-server", "azurite"])
def test_mirrors_for_minutes(
    servers: Callable[[ServerName], ServerHandle], store: ServerName, version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(servers(store).fresh_bucket(), replace(LONG, version=version), tmp_path / "run", capsys)


def test_a_run_without_a_kill_after_a_put_does_not_count() -> None:
    calls = Counter({"upsert": 500, "compact": 50, "erase": 50})
    rich = MirrorHappened(kills=99, lost=999, calls=calls, slots=Counter(iceberg=500, delta=500))
    missing = [
        f"0 processes killed after a put of a mirror, of {LONG.after_puts}",
        f"0 kinds of objects after which they were, of {LONG.kinds}",
    ]
    assert rich.lacks(LONG) == missing
    rich.after_puts = Counter({"hint": 99})
    assert rich.lacks(LONG) == ["1 kinds of objects after which they were, of 6"]
    kinds = ("snap", "m0", "pos", "metadata file", "commit", "vectors")
    assert replace(rich, after_puts=Counter(dict.fromkeys(kinds, 10))).lacks(LONG) == []


@pytest.mark.parametrize(
    ("method", "path", "query", "body", "kind"),
    [
        ("PUT", "/bucket/lake/tables/1/metadata/v3.metadata.json", "", b"", "metadata file"),
        ("PUT", "/account/container/lake/tables/1/metadata/m0-3-0123456789abcdef.avro", "", b"", "m0"),
        (
            "POST",
            "/upload/storage/v1/b/bucket/o",
            "uploadType=multipart",
            b'{"name": "lake/tables/1/_delta_log/00000000000000000003.json"}',
            "commit",
        ),
        ("PUT", "/bucket/lake/tables/1/deltavectors/deletion_vector_0.bin", "", b"", "vectors"),
        ("GET", "/bucket/lake/tables/1/metadata/v3.metadata.json", "", b"", None),
        ("PUT", "/bucket/lake/tables/1/data/2/x.parquet", "", b"", None),
        ("PUT", "/bucket/lake/tables/1/log/00000000000000000003.json", "", b"", None),
    ],
)
def test_puts_of_mirrors_are_known_on_every_store(method: str, path: str, query: str, body: bytes, kind: str | None) -> None:
    assert mirror_put(SimpleNamespace(method=method, path=path, query=query, body=body)) == kind

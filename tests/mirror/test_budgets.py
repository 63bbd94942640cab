"""What a slot of a mirror costs in requests and objects: the same for few files and for many, and nothing in the commit's own path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import objcat
from benchmarks.mirror_tables import FORMATS, REAL_GROUPS, Follower, commit, make_mirrored, opened, places, some_rows
from fileio.env import SystemEnv

FILES = (100, 10_000)
IDS = 20
PUTS = {
    # The position file or vectors, two manifests, the list, the metadata file; and the hint.
    "Iceberg v2": {"no file": (1, 1), "100 rows": (5, 1), "compaction": (5, 1)},
    "Iceberg v3": {"no file": (1, 1), "100 rows": (5, 1), "compaction": (5, 1)},
    "Delta": {"no file": (1, 0), "100 rows": (2, 0), "compaction": (1, 0)},
}
"""By format and kind of commit: objects that are put if absent, and others. A compaction may need fewer."""
READS_MAX = 8
"""The slots of the log and of the mirror in which newer ones are looked for."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """The URL of a table of so many files, which is made once."""
    known: dict[int, str] = {}

    def at(files: int) -> str:
        if files not in known:
            known[files] = str(tmp_path_factory.mktemp(f"files-{files}"))
            make_mirrored(known[files], files=files, ids=IDS, say=lambda _: None)
        return known[files]

    return at


@pytest.mark.parametrize("form", FORMATS)
def test_a_warm_slot_of_each_kind_has_a_budget(made: Callable[[int], str], form: str) -> None:
    small, large = (warm_slots(made(files), files, form) for files in FILES)
    for kind, (if_absent, others) in PUTS[form].items():
        for sent in (small[kind], large[kind]):
            # Vectors of a compaction may need no manifest of their own, and small manifests are merged.
            least = if_absent - 2 if kind == "compaction" else if_absent
            assert least <= sent["put_create"] <= if_absent, (kind, sent)
            assert sent.get("put", 0) + sent.get("put_update", 0) == others, (kind, sent)
            assert set(sent) <= {"get", "list", "put", "put_update", "put_create"} and sent.get("list", 0) <= 2, (kind, sent)
            # The new log file is all that is read of the data: the keys of the base files are known.
            assert sent["get"] <= READS_MAX + (kind == "100 rows"), (kind, sent)
        assert kind == "compaction" or small[kind] == large[kind], kind


def warm_slots(url: str, files: int, form: str) -> dict[str, dict[str, int]]:
    """What the newest slot of each kind costs a process that mirrors all of them, in requests by kind."""
    table = opened(url)
    # Nothing of an earlier format is left.
    table.set_properties({"mirrors": "none"})
    assert table.maintenance.mirror() == []
    table.set_properties(FORMATS[form])
    follower = Follower(url)
    assert follower.catch_up()["slots"] == 1
    found = {}
    for _ in range(2):
        # The first upsert after a compaction reads the keys of its base files.
        for kind in ("no file", "100 rows", "100 rows", "compaction"):
            commit(table, kind, places(files), ids=IDS, seed=table.refresh().slot)
            sample = follower.catch_up()
            assert sample["slots"] == 1
            found[kind] = {name.removeprefix("request "): int(number) for name, number in sample.items() if name.startswith("request ")}
    return found


@pytest.mark.parametrize("form", FORMATS)
def test_a_commit_sends_no_request_for_its_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    sent = {}
    for name, properties in (("off", {}), ("on", FORMATS[form])):
        url = str(tmp_path / name)
        make_mirrored(url, files=REAL_GROUPS * 2, ids=IDS, say=lambda _: None)
        opened(url).set_properties({"note": "", **properties})
        table = objcat.table_at(url)
        if properties:
            table.maintenance.mirror()
        later: list[Callable[[], object]] = []
        fileio = table._context.fileio
        with monkeypatch.context() as patch:
            # What the end of the commit submits runs when the commit has returned.
            _defer_mirrors(patch, later)
            before = fileio.metrics.snapshot()
            table.upsert(some_rows(places(REAL_GROUPS * 2), 100, ids=IDS, seed=3))
            sent[name] = (fileio.metrics.snapshot() - before).requests
        assert len(later) == bool(properties)
        for work in later:
            work()
        assert all(not report.lag for report in table.maintenance.mirror())
    assert sent["on"] == sent["off"]


def _defer_mirrors(patch: pytest.MonkeyPatch, later: list[Callable[[], object]]) -> None:
    submit = SystemEnv.submit

    def deferred(env: SystemEnv, function: Callable[[], object], *, idle: bool = False) -> object:
        if getattr(getattr(function, "func", None), "__name__", "") == "_quietly":
            later.append(function)
            return None
        return submit(env, function, idle=idle)

    patch.setattr(SystemEnv, "submit", deferred)

"""Compaction strategies of other packages: the example, what is refused, and what a process without one does."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import objcat
from objcat import CompactionCandidate, CompactionStrategy, FileGroupId
from objcat.errors import InvalidInput, PluginFailed, PluginMissing
from objcat.maintenance import auto
from tests.plugins.examples import python, run_tests

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def table_at(path: Path, **properties: str) -> objcat.Table:
    table = objcat.connect(path).create_table("t", SCHEMA, key=["id"], index=objcat.BucketIndex(4), properties=properties)
    table.insert([{"id": number, "v": "-"} for number in range(100)])
    table.upsert([{"id": number, "v": "x"} for number in range(100)])
    return table


def test_the_example_passes_the_suite(oldest_first: Path, tmp_path: Path) -> None:
    assert run_tests("objcat-oldest-first", oldest_first, cwd=tmp_path) == 47, "two subjects with 23 tests each, and one of its own"


PROCESS = """
import objcat
lake = objcat.connect("lake")
table = lake.table("t")
before = table.scan().to_arrow().sort_by("id")
report = table.maintenance.run(verify_bytes_max=0)
print([(step.service, step.failed, step.why) for step in report.steps])
print(table.inspect.stats().groups_unmerged, table.scan().to_arrow().sort_by("id") == before)
"""


def test_a_process_without_the_package_says_so_and_one_with_it_compacts(oldest_first: Path, tmp_path: Path) -> None:
    table_at(tmp_path / "lake", compact_strategy="oldest-first", compact_after_commits="1", compact_plan_only="true", auto_clean="false")
    lacking = python("-c", PROCESS, cwd=tmp_path).stdout.splitlines()
    assert lacking[0].startswith(
        "[('compact', True, \"No installed package offers the compaction strategy 'oldest-first'. None is installed. Install the package "
        "that has the entry point 'oldest-first' of the group 'objcat.compaction_strategies', in this environment.\")]"
    )
    assert lacking[1] == "4 True"
    having = python("-c", PROCESS, cwd=tmp_path, sites=[oldest_first]).stdout.splitlines()
    assert having[0].startswith("[('compact', False, ") and having[1] == "0 True"


def test_sql_and_calls_name_it(oldest_first: Path, tmp_path: Path) -> None:
    table_at(tmp_path / "lake")
    code = textwrap.dedent("""
        import objcat
        from objcat.errors import PluginMissing
        lake = objcat.connect("lake")
        try:
            lake.table("t").maintenance.compact(strategy=objcat.CompactionStrategy(plugin="oldest"))
        except PluginMissing as error:
            print(error)
        print(lake.sql("CALL compact('t', plugin => 'oldest-first', io_bytes_max => 1)").num_rows)
        print(lake.table("t").inspect.stats().groups_unmerged)
    """)
    done = python("-c", code, cwd=tmp_path, sites=[oldest_first])
    assert done.stderr == ""
    refused, *others = done.stdout.splitlines()
    assert refused == (
        "No installed package offers the compaction strategy 'oldest'. Installed are 'oldest-first' (did you mean 'oldest-first'?). "
        "Install the package that has the entry point 'oldest' of the group 'objcat.compaction_strategies', in this environment."
    )
    assert others == ["1", "3"]


class Odd:
    """A strategy that answers what a test wants."""

    answer: Any = ()

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    def choose(self, candidates: Sequence[CompactionCandidate]) -> Any:
        found = type(self).answer
        return found(self, candidates) if callable(found) else found


@pytest.fixture
def installed(entry_points: list[EntryPoint]) -> Iterator[list[EntryPoint]]:
    """Entry points of the group, as if packages had them."""
    entry_points.append(EntryPoint("odd", f"{__name__}:Odd", "objcat.compaction_strategies"))
    yield entry_points
    Odd.answer = ()


def raises(strategy: Odd, candidates: Sequence[CompactionCandidate]) -> list[FileGroupId]:
    raise KeyError("hot")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (raises, "failed with KeyError: 'hot'"),
        (None, "failed with TypeError"),
        ([FileGroupId("", 0, 8)], "no candidate or was chosen before"),
        (lambda _, candidates: [candidates[0].file_group] * 2, "no candidate or was chosen before"),
        (["t"], "chose 't'"),
        ([[]], "chose \\[\\]"),
    ],
    ids=["raises", "nothing", "another group", "one twice", "text", "a list"],
)
def test_what_a_strategy_must_not_answer_is_refused_and_changes_nothing(
    tmp_path: Path, installed: list[EntryPoint], answer: Any, said: str
) -> None:
    table = table_at(tmp_path)
    slot = table.snapshot.slot
    Odd.answer = answer if not callable(answer) else staticmethod(answer)
    with pytest.raises(PluginFailed, match=said):
        table.maintenance.compact(strategy=CompactionStrategy(plugin="odd"))
    assert table.refresh().slot == slot and table.scan().count() == 100


def test_it_gets_the_options_of_the_table_and_what_waits(tmp_path: Path, installed: list[EntryPoint]) -> None:
    table = table_at(tmp_path, **{"compact_strategy.hot": "7", "compact_strategy.colour": "red"})
    seen: list[Any] = []

    def looks(strategy: Odd, candidates: Sequence[CompactionCandidate]) -> list[FileGroupId]:
        seen.extend([strategy.options, candidates])
        return [candidates[2].file_group, candidates[0].file_group]

    Odd.answer = staticmethod(looks)
    done = table.maintenance.compact(strategy=CompactionStrategy(plugin="odd", io_bytes_max=1))
    assert seen[0] == {"hot": "7", "colour": "red"}
    assert [one.file_group.bucket for one in seen[1]] == [0, 1, 2, 3]
    assert all(one.log_count == 1 and 0 < one.log_bytes < one.io_bytes and one.base_bytes and one.waiting_s >= 0 for one in seen[1])
    assert done is not None and [group.bucket for group in done.file_groups] == [2]


def test_two_packages_and_broken_ones_are_told_apart(tmp_path: Path, installed: list[EntryPoint]) -> None:
    table = table_at(tmp_path)
    installed.append(EntryPoint("wreck", "no_such_module:Thing", "objcat.compaction_strategies"))
    installed.append(EntryPoint("odd", f"{__name__}:Odd", "objcat.compaction_strategies"))
    with pytest.raises(PluginMissing, match="Several packages offer the compaction strategy 'odd'"):
        table.maintenance.compact(strategy=CompactionStrategy(plugin="odd"))
    with pytest.raises(PluginMissing, match="cannot be imported from 'no_such_module:Thing'"):
        table.maintenance.compact(strategy=CompactionStrategy(plugin="wreck"))


@pytest.mark.parametrize("name", ["", "a b", "os:system", "../x", "ü", 7])
def test_a_name_is_no_path_to_code(tmp_path: Path, name: Any) -> None:
    with pytest.raises(InvalidInput, match="is not the name of a plug-in"):
        CompactionStrategy(plugin=name)
    if isinstance(name, str):
        with pytest.raises(InvalidInput, match="is not the name of a plug-in"):
            table_at(tmp_path, compact_strategy=name)


def test_an_order_and_a_strategy_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="exclude each other"):
        CompactionStrategy(plugin="odd", order="newest")
    with pytest.raises(InvalidInput, match="exclude each other"):
        table_at(tmp_path, compact_strategy="odd", compact_order="newest")


def test_writers_without_the_package_write_and_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The round after a write goes on to cleaning, and the log says what is missing."""
    monkeypatch.setattr(auto, "CLEANED_SLOTS_MIN", 1)
    table = table_at(tmp_path, compact_strategy="nowhere", compact_after_commits="1", keep_commits="1")
    cleaned: list[str] = []
    monkeypatch.setattr(auto, "is_clean_due", lambda *_, **__: True)
    monkeypatch.setattr(auto, "clean", lambda _timeline, name, **_: cleaned.append(name))
    context = table._context
    auto.maintain_after(context.timeline, context.view, table.id, context.manifests, since_slot=0)
    assert cleaned == [table.id]
    assert "No installed package offers the compaction strategy 'nowhere'" in caplog.text
    assert table.inspect.stats().groups_unmerged == 4

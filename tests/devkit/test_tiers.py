"""Every file of tests has a tier, no entry of the table is dead, and files are dealt to processes without losing one."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from devkit import prepare, suites, tiers
from devkit.paths import ROOT
from devkit.runs import Outcome, Timing, print_sum, summary_line
from devkit.suites import BadArguments, batches, deal, halves, needs, parse
from devkit.tiers import TIERS, Table, closest, files, matches, table


def test_every_file_has_a_tier_by_its_name_or_its_folder() -> None:
    assert [file for file in files() if table().tier_of(file) is None] == []


def test_every_folder_and_file_of_the_table_exists() -> None:
    entries = [*table().tier, *(entry for some in table().older.values() for entry in some), *table().needs, *table().one_in]
    assert [entry for entry in entries if not (tiers.TESTS / entry.partition("::")[0]).exists()] == []


def test_every_test_of_the_table_exists() -> None:
    entries = [entry for entry in (*table().tier, *table().one_in) if "::" in entry]
    some = sorted({str(tiers.TESTS / entry.partition("::")[0]) for entry in entries})
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-p", "no:cacheprovider"]
    listed = subprocess.run([*command, "--collect-only", "-q", "--all", *some], cwd=ROOT, capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stdout + listed.stderr
    found = [line.removeprefix("tests/") for line in listed.stdout.splitlines() if "::" in line]
    assert len(found) > 100
    assert [entry for entry in entries if not any(matches(entry, test) for test in found)] == []


def test_everything_that_is_needed_can_be_installed() -> None:
    assert {need for some in table().needs.values() for need in some} <= set(prepare.NEEDS)
    assert {name for need in prepare.NEEDS.values() for name in need.after} <= set(prepare.NEEDS)


def test_the_longest_entry_that_fits_counts() -> None:
    found = Table({"a": "default", "a/test_b.py": "integration", "a/test_b.py::test_c": "all", "a/test_b.py::*[moto*": "default"}, {}, {})
    assert found.tier_of("a/test_x.py::test_c") == "default"
    assert found.tier_of("a/test_b.py::test_x[1]") == "integration"
    assert found.tier_of("a/test_b.py::test_c") == "all"
    assert found.tier_of("a/test_b.py::test_c[1]") == "all"
    assert found.tier_of("a/test_b.py::test_cd") == "integration"
    assert found.tier_of("a/test_b.py::test_c[moto-1]") == "default"
    assert found.tier_of("ab/test_x.py") is None
    assert closest(found.tier, "b") is None
    assert not matches("a/test_b.py::*[x]", "a/test_b.py::test_c[y]")


def test_of_many_cases_the_first_and_some_others_run_early() -> None:
    found = Table({}, {}, {}, {"a": 3, "a/test_b.py::test_c": 2})
    names = [f"a/test_x.py::test_y[{store}-{number}]" for store in ("s3", "gs", "az") for number in range(100)]
    chosen = [name for name in names if found.is_chosen(name, first=False)]
    assert 80 < len(chosen) < 120 and all(any(store in name for name in chosen) for store in ("s3", "gs", "az"))
    assert all(found.is_chosen(name, first=True) for name in names)
    assert 130 < sum(found.is_chosen(f"a/test_b.py::test_c[{number}]", first=False) for number in range(300)) < 170
    assert found.is_chosen("b/test_x.py::test_y[1]", first=False)


def test_a_named_file_runs_with_every_case() -> None:
    assert "--every-case" in suites._named(["tests/devkit"], suites.Asked(["devkit"], ("default",), []))[0].arguments
    assert not any("--every-case" in run.arguments for run in batches(suites.Asked([], ("default",), []), table()))


def test_a_file_with_one_entry_of_an_earlier_tier_takes_part_in_it() -> None:
    found = Table({"a": "integration", "a/test_b.py::test_c": "default"}, {}, {})
    assert found.may_have("a/test_b.py", ["default"])
    assert not found.may_have("a/test_x.py", ["default"])
    assert found.may_have("a/test_x.py", ["all"]), "a marker may say so"


@pytest.mark.parametrize("chosen", [("default",), ("integration",), ("default", "integration"), ("all",), TIERS])
def test_every_file_of_a_tier_is_in_one_process(chosen: tuple[tiers.Tier, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "older_pyspark", lambda version: ROOT)
    runs = [run for run in batches(suites.Asked([], chosen, []), table()) if suites.OLDER_VARIABLE not in run.environment]
    dealt = [argument.removeprefix(f"{tiers.TESTS}/") for run in runs for argument in run.arguments if argument.endswith(".py")]
    assert sorted(dealt) == [file for file in files() if table().may_have(file, chosen)]


@pytest.mark.parametrize(("chosen", "processes"), [(TIERS[:1], 1), (TIERS[1:2], 2), (TIERS[:2], 2), (TIERS, 2)])
def test_files_that_use_the_session_are_in_one_process_or_in_two_equal_ones(
    chosen: tuple[tiers.Tier, ...], processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "older_pyspark", lambda version: ROOT)
    runs = [run for run in batches(suites.Asked([], chosen, []), table()) if suites.OLDER_VARIABLE not in run.environment]
    listed = [[file.removeprefix(f"{tiers.TESTS}/") for file in run.arguments if file.endswith(".py")] for run in runs]
    with_session = [files for files in listed if any(suites.SESSION in table().needs_of(file) for file in files)]
    assert len(with_session) == processes
    for some in with_session:
        assert all(suites.SESSION in table().needs_of(file) for file in some)
        places = [file.startswith("docs/") for file in some]
        assert some[0].startswith("spark/") and places == sorted(places), "pages change the session, so they come last"
    longest = [run.about_s for run, some in zip(runs, listed, strict=True) if some in with_session]
    assert max(longest) - min(longest) < 0.05 * max(longest)


def test_two_lists_have_nearly_equal_time_and_every_file() -> None:
    seconds = {"a": 100.0, "b": 40.0, "c": 35.0, "d": 30.0, "e": 1.0, "f": 0.0}
    lists = halves(seconds)
    assert sorted(file for some in lists for file in some) == sorted(seconds)
    assert sorted(sum(seconds[file] for file in some) for some in lists) == [101.0, 105.0]
    assert halves({}) == [[], []]


def test_files_are_dealt_in_stretches_of_about_one_length() -> None:
    seconds = {f"a/test_{n}.py": 10.0 for n in range(30)} | {"b/test_x.py": 1.0, "c/test_x.py": 2.0, "d/test_long.py": 500.0}
    dealt = deal(seconds, most_s=60)
    assert sorted(file for some in dealt for file in some) == sorted(seconds)
    assert ["d/test_long.py"] in dealt
    assert ["b/test_x.py", "c/test_x.py"] in dealt
    assert all(sum(seconds[file] for file in some) <= 70 for some in dealt if some != ["d/test_long.py"])
    assert deal({}) == [[]] or deal({}) == []


def test_names_come_first_and_own_options_anywhere() -> None:
    assert parse([]) == suites.Asked([], ("default",), [])
    assert parse(["tables", "spark"]) == suites.Asked(["tables", "spark"], ("default", "integration"), [])
    assert parse(["tables/test_scan.py", "-k", "x", "--all", "-x"]) == suites.Asked(["tables/test_scan.py"], TIERS, ["-k", "x", "-x"])
    assert parse(["--integration", "--durations=10"]) == suites.Asked([], ("default", "integration"), ["--durations=10"])
    assert parse(["--tier", "integration", "--record-durations"]) == suites.Asked([], ("integration",), [], record=True)
    with pytest.raises(BadArguments, match="There are default, integration, all"):
        parse(["--tier", "nightly"])


def test_a_name_that_is_no_suite_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert suites.test(["tabels"]) == 2
    assert "There is no suite 'tabels'. Did you mean 'tables'?" in capsys.readouterr().err


def test_what_a_selection_needs_is_known_before_it_runs() -> None:
    known = Table({"a": "default", "b": "integration"}, {"3.5": {"spark": "all"}}, {"a": ["java"], "a/test_x.py": ["azurite"], "b": ["go"]})
    assert known.needs_of("a/test_x.py::test_y") == {"java", "azurite"}
    assert known.needs_of("a/test_z.py") == {"java"}
    assert known.needs_of("a") == {"java", "azurite"}
    assert known.needs_of("") == {"java", "azurite", "go"}
    assert {"pyspark-3.5", "pyspark-4.0", "pyspark-4.1", "s3-connector-3.5"} <= needs(parse(["spark", "--all"]), table())
    assert "pyspark-4.1" in needs(parse(["spark"]), table())
    assert not any(need.startswith("pyspark-") for need in needs(parse(["spark/test_sql.py"]), table()) | needs(parse([]), table()))
    assert "azurite" in needs(parse(["fileio/test_conformance.py::test_put"]), table())


def test_the_sum_is_said_in_the_words_of_pytest(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    assert (
        summary_line({"failed": 1, "passed": 2, "error": 1, "deselected": 3}, 1.5).strip("= ")
        == "1 failed, 2 passed, 3 deselected, 1 error in 1.50s"
    )
    outcome = Outcome(0, Counter(passed=2), {"a": Timing("default", 11), "b": Timing("default", 12, "it waits"), "c": Timing("all", 13)})
    monkeypatch.setenv("OBJCAT_TEST_SUM", str(tmp_path / "sum"))
    print_sum([outcome], 3)
    first = capsys.readouterr().out
    assert "2 passed in 3.00s" in first.splitlines()[-1]
    warned = first.partition("without a `reason` marker")[2]
    assert " a\n" in warned and " b\n" not in warned and " c\n" not in warned
    print_sum([outcome, outcome], 4)
    assert "6 passed in 7.00s" in capsys.readouterr().out.splitlines()[-1]

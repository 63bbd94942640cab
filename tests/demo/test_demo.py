"""The demo for real, in small: real processes, a real SIGKILL, and every check of its own."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from devkit.demo import main
from devkit.paths import ROOT

CHECKS = (
    "every acknowledged commit is in the log with its txn",
    "nothing else is in the log",
    "the slots have no gaps",
    "commit times strictly increase",
    "a writer was killed between its data and its commit",
    "the killed transaction is either rolled back whole or committed whole",
    "every flight exists once",
    "no flight was lost or added",
    "key by key the table is the replay of the acknowledged commits",
    "several writers wrote the same keys",
    "before the upserts the table was the schedule",
)
READERS = ("pyiceberg", "deltalake")
"""Who reads the table by its mirrors, as of the insert and as of the end."""


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "devkit.demo", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)


def test_three_local_writers_and_a_kill(tmp_path) -> None:
    done = run_demo("--no-spark", "--days", "8", "--path", str(tmp_path / "lake"))
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [line.removeprefix("ok").strip() for line in done.stdout.splitlines() if line.startswith("ok ")]
    told = [line.rsplit(" (", 1)[0] for line in passed]
    assert told[: len(CHECKS)] == list(CHECKS)
    read = [f"{reader} reads the same rows at slot {slot} by the mirror" for reader in READERS for slot in ("1", r"\d+")]
    assert len(told) == len(CHECKS) + len(read)
    assert all(re.fullmatch(expected, found) for expected, found in zip(read, told[len(CHECKS) :], strict=True))
    assert "SIGKILL to local-3" in done.stdout
    assert "local-1 takes over" in done.stdout
    assert "scan(as_of=1)" in done.stdout

    again = run_demo("--no-spark", "--days", "8", "--path", str(tmp_path / "lake"))
    assert again.returncode == 1
    assert "The table 'flights' exists" in again.stderr
    assert "Traceback" not in again.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--days", "2"], "--days 2 is out of range. Use 8 to 31."),
        (["--store", "s3", "--path", "lake"], "--path needs --store file."),
        (["--store", "ftp"], "invalid choice: 'ftp'"),
        (["--store", "s3", "--engines"], "--engines needs --store file."),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err

"""The queries of TPC-DS: answers are compared, and a wrong one has no ratio."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest

from benchmarks.tpcds_bench import QueryResult, comparable, difference, run_query, totals


class Answering:
    """A session that has an answer for each text."""

    def __init__(self, answers: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
        self._answers = answers
        self._asked = ""

    def sql(self, text: str) -> Answering:
        if text not in self._answers:
            raise ValueError(f"no answer to {text}\nand more")
        self._asked = text
        return self

    def collect(self) -> Sequence[tuple[Any, ...]]:
        return self._answers[self._asked]


def test_rows_in_another_order_and_sums_in_another_order_are_equal() -> None:
    assert comparable([(1, 0.1 + 0.2), (None, Decimal("1.50"))]) == comparable([(None, Decimal("1.5")), (1, 0.3)])
    assert difference(comparable([(1, 2.0)]), comparable([(1, 2.00001)])) == "(1, 2.00001) instead of (1, 2.0)"
    assert difference([(1,)], []) == "0 rows instead of 1"


def test_what_a_limit_chooses_among_equal_rows_does_not_count() -> None:
    text, whole = "select a from t order by b\nLIMIT 1", "select a from t order by b\n"
    alike = run_query(
        "q", text, Answering({text: [(1,)], whole: [(1,), (2,)]}), Answering({text: [(2,)], whole: [(2,), (1,)]}), 2, flip=True
    )
    assert alike.wrong is None and len(alike.plain_s) == len(alike.objcat_s) == 2
    lacking = run_query("q", text, Answering({text: [(1,)], whole: [(1,), (2,)]}), Answering({text: [(2,)], whole: [(2,)]}), 1, flip=False)
    assert lacking.wrong == "1 rows instead of 2"
    failed = run_query("q", text, Answering({text: [(1,)]}), Answering({}), 1, flip=False)
    assert failed.wrong is not None and failed.wrong.startswith("objcat: ValueError: no answer to select a")


def test_a_wrong_answer_has_no_ratio() -> None:
    right, wrong = QueryResult("q1", [2.0, 3.0, 2.5], [3.0], 1), QueryResult("q2", [9.0], [1.0], 1, "0 rows instead of 1")
    assert totals([right, wrong]) == {"plain_s": 2.5, "objcat_s": 3.0, "ratio": pytest.approx(1.2)}
    assert math.isnan(totals([wrong])["ratio"])


@pytest.mark.timeout(7200)
def test_all_queries_have_the_answers_of_plain_parquet() -> None:
    """By `spark.sql`, over tables that a MERGE has changed."""
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "tpcds", "--scale", "0.1", "--rounds", "1"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    assert re.search(r"^103 queries, 103 with equal answers", run.stdout, re.MULTILINE)

"""Physical plans, as tests look at them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession


def text_of(frame: DataFrame) -> str:
    """The plan of a frame before it runs."""
    return str(frame._jdf.queryExecution().executedPlan().toString())


def exchanges(frame: DataFrame) -> int:
    """Shuffles in the plan of a frame before it runs, as many as it says at first (an adaptive plan)."""
    return sum(line.lstrip(" :+-*()0123456789").startswith("Exchange ") for line in text_of(frame).splitlines())


def shuffled(frame: DataFrame) -> set[str]:
    """Of the relations of ours whose rows are shuffled, what they hold: `base` or `log`. Of the plan before it runs."""
    return {held for node in _nodes(frame._jdf.queryExecution().executedPlan()) if _is(node, "ShuffleExchangeExec") for held in _held(node)}


def _held(plan: Any) -> Iterator[str]:
    for node in _nodes(plan):
        if _is(node, "FileSourceScanExec"):
            yield str(node.relation().location().toString()).rpartition(" ")[2]


def _nodes(plan: Any) -> Iterator[Any]:
    """A node of a plan and all below it; not what a broadcast holds, which is no shuffle."""
    if _is(plan, "AdaptiveSparkPlanExec"):
        plan = plan.initialPlan()
    yield plan
    if _is(plan, "BroadcastExchangeExec"):
        return
    children = plan.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))


def _is(node: Any, name: str) -> bool:
    return bool(node.getClass().getSimpleName() == name)


def files_read(frame: DataFrame) -> int:
    """How many files the scans of a frame listed, once it has run; of a plan that is not adaptive."""
    return rows_and_files(frame)[1]


def rows_and_files(frame: DataFrame) -> tuple[list[Row], int]:
    """The rows of a frame, and how many files its scans listed for them; of a plan that is not adaptive."""
    rows = frame.collect()
    return rows, _sum_over_scans(frame, "numFiles")


def rows_decoded(frame: DataFrame) -> int:
    """How many rows the scans of a frame decoded, before any filter, once it has run; of a plan that is not adaptive."""
    frame.collect()
    return _sum_over_scans(frame, "numOutputRows")


def _sum_over_scans(frame: DataFrame, metric: str) -> int:
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    scans = [leaves.apply(i) for i in range(leaves.size())]
    return sum(int(scan.metrics().apply(metric).value()) for scan in scans if scan.metrics().contains(metric))


def jobs_of(spark: SparkSession, described: str) -> int:
    """How many jobs Spark did under a description."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    found = [jobs.apply(number).description() for number in range(jobs.size())]
    return sum(one.isDefined() and one.get().startswith(described) for one in found)

"""The suites `write`, `read`, `services` and `local`: which works there are, on which tables, and what they must show. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.data import SMALL_BATCHES
from benchmarks.works import COLUMNS, EVENT_TIMES, Chain, Goal, Kind, Layout, Query, Step

ORDERS, LINEITEM = "orders", "lineitem"
_NUMBERS = ("bigint", "int", "decimal(15,2)")

SCANS: Mapping[str, Query] = {
    ORDERS: Query(
        ("o_totalprice", "o_orderdate", "o_orderpriority"),
        ("count(1)", "sum(o_totalprice)", "max(o_orderdate)", "sum(length(o_orderpriority))"),
    ),
    LINEITEM: Query(
        ("l_quantity", "l_extendedprice", "l_discount", "l_shipdate"),
        ("count(1)", "sum(l_quantity)", "sum(l_extendedprice)", "sum(l_discount)", "max(l_shipdate)"),
    ),
}
LOOKUP = Query(("o_orderkey", "o_custkey", "o_totalprice", "o_comment"), where="o_orderkey = 100000")
RANGE = Query(
    ("o_totalprice", "o_orderdate"),
    ("count(1)", "sum(o_totalprice)"),
    where="o_orderdate between date '1995-03-01' and date '1995-03-02'",
)
ALL_COLUMNS = Query(
    tuple(COLUMNS[ORDERS]),
    ("count(1)", *(f"sum({name})" if kind in _NUMBERS else f"max({name})" for name, kind in COLUMNS[ORDERS].items())),
)

_WRITE_GOALS: Mapping[tuple[str, str], tuple[Goal, ...]] = {
    ("merge_on_read", "one"): (Goal("iceberg", faster=4), Goal("hudi", faster=12)),
    ("merge_on_read", "ten"): (Goal("iceberg", faster=2.5), Goal("hudi", faster=12)),
    ("copy_on_write", "one"): (Goal("iceberg", faster=2), Goal("hudi", faster=8)),
    ("copy_on_write", "ten"): (Goal("iceberg", faster=2), Goal("hudi", faster=8)),
}
_SPARK_COUNTS = (("objcat", SMALL_BATCHES), ("hudi", 10), ("iceberg", 20), ("delta", 10))
_LOCAL_COUNTS = (("objcat-local", SMALL_BATCHES), ("deltalake", 20), ("pyiceberg", 10))
_PER_CENT = {"one": "1 %", "ten": "10 %"}
_KINDS: Mapping[Kind, str] = {"merge_on_read": "merge-on-read", "copy_on_write": "copy-on-write"}


def _spark_writes(kind: Kind) -> Chain:
    layout = Layout("orders", ORDERS, kind)
    # The floor shows once what writing the layout costs; it has no upserts.
    load_goals = (Goal("plain", share=1.2), Goal("hudi", faster=4)) if kind == "merge_on_read" else ()
    load_sides = () if kind == "merge_on_read" else ("objcat", "hudi", "iceberg", "delta")
    upserting = ("objcat", "hudi", "iceberg", "delta")
    return Chain(
        f"orders, {_KINDS[kind]}",
        "spark",
        (layout,),
        (
            Step("load", ("orders",), "bulk load", sides=load_sides, goals=load_goals),
            *(
                Step("upsert", ("orders",), f"upsert {text}", batch=batch, sides=upserting, goals=_WRITE_GOALS[kind, batch])
                for batch, text in _PER_CENT.items()
            ),
            Step("digest", ("orders",)),
        ),
    )


def _local_writes(kind: Kind) -> Chain:
    goals = (Goal("deltalake", share=1.0),)
    return Chain(
        f"orders, {_KINDS[kind]}, without Spark",
        "local",
        (Layout("orders", ORDERS, kind),),
        (
            Step("load", ("orders",), "bulk load"),
            Step("upsert", ("orders",), "upsert 1 %", batch="one", goals=goals),
            Step("upsert", ("orders",), "upsert 10 %", batch="ten", goals=goals),
            Step("digest", ("orders",)),
        ),
    )


def _small_writes(engine: str) -> Chain:
    spark = engine == "spark"
    counts = _SPARK_COUNTS if spark else _LOCAL_COUNTS
    goals = (Goal(seconds=0.25 if spark else 0.015), Goal(slowest=3))
    sides = tuple(name for name, _ in counts)
    return Chain(
        f"small commits{'' if spark else ', without Spark'}",
        "spark" if spark else "local",
        (Layout("orders", ORDERS),),
        (
            Step("load", ("orders",), sides=sides),
            Step("upsert", ("orders",), "100-row upserts in turn", batch="small", sides=sides, counts=counts, blocks=10, goals=goals),
            Step("digest", ("orders",), sides=sides),
        ),
        anew=False,
    )


def _reads_without_logs() -> Chain:
    names = (ORDERS, LINEITEM)

    def scan(source: str) -> Step:
        return Step("query", (source,), f"scan {source}", query=SCANS[source], warm=2, goals=(Goal("plain", share=1.1),))

    return Chain(
        "without logs",
        "spark",
        tuple(Layout(name, name) for name in names),
        (
            *(Step("load", (name,)) for name in names),
            *(scan(name) for name in names),
            Step("query", (ORDERS,), "point lookup", query=LOOKUP, repeats=3, warm=3, goals=(Goal(seconds=0.08),)),
            Step("query", (ORDERS,), "two days", query=RANGE, repeats=3, warm=2, goals=(Goal(seconds=0.13),)),
            Step("join", names, "join orders and lineitem", warm=1, goals=(Goal("plain", share=1.05), Goal(exchanges=1))),
            *(Step("digest", (name,)) for name in names),
        ),
        anew=False,
    )


def _reads_with_logs(source: str, *, event_time: bool) -> Chain:
    shares = {"one": 1.3, "ten": 2.0}

    def scan(batch: str) -> Step:
        goals = [Goal("plain", share=shares[batch])] if not event_time else []
        if source == LINEITEM and not event_time:
            goals += [Goal("hudi", faster=2), Goal("delta", faster=2)]
        return Step(
            "query", (source,), f"scan {source}, {_PER_CENT[batch]} of keys in logs", query=SCANS[source], warm=2, goals=tuple(goals)
        )

    return Chain(
        f"{source} with logs, {'event-time' if event_time else 'commit'} order",
        "spark",
        (Layout(source, source, ordering=EVENT_TIMES[source] if event_time else None),),
        (
            Step("load", (source,)),
            Step("upsert", (source,), batch="one"),
            scan("one"),
            Step("upsert", (source,), batch="ten"),
            scan("ten"),
            Step("digest", (source,)),
        ),
        anew=False,
    )


def _incremental() -> Chain:
    sides = ("objcat", "hudi", "iceberg", "delta")
    return Chain(
        "last commit",
        "spark",
        (Layout("orders", ORDERS, changes=True),),
        (
            Step("load", ("orders",)),
            Step("upsert", ("orders",), batch="ten"),
            Step("last_commit", ("orders",), "rows of the last commit, 10 %", query=ALL_COLUMNS, warm=2, goals=(Goal(seconds=0.4),)),
        ),
        anew=False,
        sides=sides,
    )


def _compaction() -> Chain:
    sides = ("objcat", "hudi", "iceberg", "delta")
    goals = (Goal("iceberg", faster=1.5), Goal("hudi", faster=5))

    def after(batch: str) -> tuple[Step, Step]:
        return (
            Step("upsert", ("orders",), batch=batch, sides=sides),
            Step("compact", ("orders",), f"compaction after an upsert of {_PER_CENT[batch]}", sides=sides, goals=goals),
        )

    return Chain(
        "orders, compaction",
        "spark",
        (Layout("orders", ORDERS),),
        (Step("load", ("orders",), sides=sides), *after("one"), *after("ten"), Step("digest", ("orders",), sides=sides)),
        sides=sides,
    )


_WITHOUT_SPARK: Mapping[str, str] = {"objcat": "objcat-local", "delta": "deltalake", "iceberg": "pyiceberg"}
"""Of each side on Spark that has one, the side without."""


def without_spark(chain: Chain) -> Chain:
    """The same works by the sides without Spark, of which nothing is asked but the right answer."""

    def names(sides: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_WITHOUT_SPARK[name] for name in sides if name in _WITHOUT_SPARK)

    steps = tuple(replace(step, sides=names(step.sides), goals=()) for step in chain.steps)
    return replace(chain, name=f"{chain.name}, without Spark", engine="local", steps=steps, sides=names(chain.sides))


_READS = (
    _reads_without_logs(),
    *(_reads_with_logs(source, event_time=event_time) for event_time in (False, True) for source in (ORDERS, LINEITEM)),
    _incremental(),
)

SUITES: Mapping[str, tuple[Chain, ...]] = {
    "write": (
        _spark_writes("merge_on_read"),
        _spark_writes("copy_on_write"),
        _small_writes("spark"),
        _local_writes("merge_on_read"),
        _local_writes("copy_on_write"),
        _small_writes("local"),
    ),
    "read": _READS,
    "services": (_compaction(),),
    "local": tuple(without_spark(chain) for chain in (*_READS, _compaction())),
}

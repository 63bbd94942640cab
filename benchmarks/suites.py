"""The suites `write`, `read`, `services` and `local`: which works there are, on which tables, and what they must show. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.data import SMALL_BATCHES
from benchmarks.works import COLUMNS, EVENT_TIMES, KEYS, Chain, Goal, Index, Kind, Layout, Query, Statement, Step

ORDERS, LINEITEM = "orders", "lineitem"
_NUMBERS = ("bigint", "int", "decimal(15,2)")
_WARM = 15
"""Calls of a short query that do not count: Java compiles what Spark makes of it while the first ones run, some 2x slower."""

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
COMPARED: Mapping[str, Query] = {
    source: Query((*SCANS[source].columns, *KEYS[source]), (*SCANS[source].aggregates, f"count(1) filter (where {compared})"))
    for source, compared in ((ORDERS, "o_orderkey * 2 <> 1"), (LINEITEM, "(l_orderkey * 8 + l_linenumber) * 2 <> 1"))
}
"""The same scans with the least that can be done with the key of each row. What takes log rows over base rows has to do as much."""
LOOKUP = Query(("o_orderkey", "o_custkey", "o_totalprice", "o_comment"), where="o_orderkey = 100000")
EARLY_LOOKUP = replace(LOOKUP, where="o_orderkey = 2976")
"""Of a key that is there at every scale, and below which there are others in nearly every batch: bounds shall not leave it out by luck."""
RANGE = Query(
    ("o_totalprice", "o_orderdate"),
    ("count(1)", "sum(o_totalprice)"),
    where="o_orderdate between date '1995-03-01' and date '1995-03-02'",
)
ALL_COLUMNS = Query(
    tuple(COLUMNS[ORDERS]),
    ("count(1)", *(f"sum({name})" if kind in _NUMBERS else f"max({name})" for name, kind in COLUMNS[ORDERS].items())),
)
JOIN = Statement(
    "select o_orderpriority, count(1), sum(l_extendedprice) from {orders} join {lineitem} on o_orderkey = l_orderkey "
    "group by o_orderpriority",
    {ORDERS: ("o_orderkey", "o_orderpriority"), LINEITEM: ("l_orderkey", "l_extendedprice")},
)
AGGREGATE = Statement(
    "select count(1), sum(_quantity), max(_price) from "
    "(select l_orderkey, sum(l_quantity) as _quantity, max(l_extendedprice) as _price from {lineitem} group by l_orderkey)",
    {LINEITEM: ("l_orderkey", "l_quantity", "l_extendedprice")},
)
WINDOW = Statement(
    "select count(1), sum(l_extendedprice) from (select l_extendedprice, row_number() over "
    "(partition by l_orderkey order by l_extendedprice desc, l_linenumber) as _rank from {lineitem}) where _rank = 1",
    {LINEITEM: (*KEYS[LINEITEM], "l_extendedprice")},
)
"""The most expensive line of each order."""

_WRITE_GOALS: Mapping[tuple[str, str], tuple[Goal, ...]] = {
    ("merge_on_read", "one"): (Goal("iceberg", faster=4), Goal("hudi", faster=12)),
    ("merge_on_read", "ten"): (Goal("iceberg", faster=2.5), Goal("hudi", faster=12)),
    ("copy_on_write", "one"): (Goal("iceberg", faster=2), Goal("hudi", faster=8)),
    ("copy_on_write", "ten"): (Goal("iceberg", faster=2), Goal("hudi", faster=8)),
}
_TABLES = ("objcat", "hudi", "iceberg", "delta")
"""The sides on Spark whose tables can be changed."""
_SQL = "objcat-sql"
_LOCAL_TABLES = ("objcat-local", "deltalake", "pyiceberg")
_LOCAL_SIDES = ("objcat-local", "duckdb", "deltalake", "pyiceberg")
_LOAD_GOALS = (Goal("deltalake", share=1.0), Goal("duckdb-buckets", share=1.15))
"""Of loads without Spark. DuckDB sorts the rows as objcat does."""
_SPARK_COUNTS = (("objcat", SMALL_BATCHES), ("hudi", 10), ("iceberg", 20), ("delta", 10))
_LOCAL_COUNTS = (("objcat-local", SMALL_BATCHES), ("deltalake", 20), ("pyiceberg", 10))
_PER_CENT = {"one": "1 %", "ten": "10 %"}
_KINDS: Mapping[Kind, str] = {"merge_on_read": "merge-on-read", "copy_on_write": "copy-on-write"}


def _spark_writes(kind: Kind) -> Chain:
    layout = Layout("orders", ORDERS, kind)
    # The floor shows once what writing the layout costs; it has no upserts.
    load_goals = (Goal("plain", share=1.2), Goal("hudi", faster=4)) if kind == "merge_on_read" else ()
    load_sides = () if kind == "merge_on_read" else _TABLES
    return Chain(
        f"orders, {_KINDS[kind]}",
        "spark",
        (layout,),
        (
            Step("load", ("orders",), "bulk load", sides=load_sides, goals=load_goals),
            *(
                Step("upsert", ("orders",), f"upsert {text}", batch=batch, sides=_TABLES, goals=_WRITE_GOALS[kind, batch])
                for batch, text in _PER_CENT.items()
            ),
            Step("digest", ("orders",)),
        ),
    )


def _sql_writes(kind: Kind) -> Chain:
    """The upserts once more, by `MERGE INTO` of spark.sql. The others have no other way, so their figures are those of a MERGE too."""
    faster = 5 if kind == "merge_on_read" else 2
    goals = (Goal("iceberg", faster=faster, of=_SQL), Goal("delta", faster=faster, of=_SQL), Goal("objcat", share=1.1, of=_SQL))
    return Chain(
        f"orders, {_KINDS[kind]}, MERGE",
        "spark",
        (Layout("orders", ORDERS, kind),),
        (
            Step("load", ("orders",)),
            *(Step("upsert", ("orders",), f"MERGE of {text}", batch=batch, goals=goals) for batch, text in _PER_CENT.items()),
            Step("digest", ("orders",)),
        ),
        sides=("objcat", _SQL, "iceberg", "delta"),
    )


def _local_writes(kind: Kind) -> Chain:
    goals = (Goal("deltalake", share=1.0),)
    return Chain(
        f"orders, {_KINDS[kind]}, without Spark",
        "local",
        (Layout("orders", ORDERS, kind),),
        (
            Step("load", ("orders",), sides=_LOCAL_TABLES),
            Step("upsert", ("orders",), "upsert 1 %", batch="one", sides=_LOCAL_TABLES, goals=goals),
            Step("upsert", ("orders",), "upsert 10 %", batch="ten", sides=_LOCAL_TABLES, goals=goals),
            Step("digest", ("orders",)),
        ),
    )


def _local_load(source: str) -> Chain:
    return Chain(
        f"{source}, load, without Spark",
        "local",
        (Layout(source, source),),
        (Step("load", (source,), f"bulk load of {source}", goals=_LOAD_GOALS), Step("digest", (source,))),
    )


def _other_writes(kind: Kind) -> Chain:
    """Batches of other sizes and kinds than those that goals are about."""
    return Chain(
        f"orders, {_KINDS[kind]}, other batches",
        "spark",
        (Layout("orders", ORDERS, kind),),
        (
            Step("load", ("orders",)),
            Step("upsert", ("orders",), "upsert 0.1 %", batch="tenth"),
            Step("upsert", ("orders",), "upsert 1 %, keys drawn towards the newest", batch="recent"),
            Step("delete", ("orders",), "delete 1 %", batch="gone"),
            Step("digest", ("orders",)),
            Step("upsert", ("orders",), "upsert 100 %", batch="all"),
            Step("digest", ("orders",)),
        ),
        sides=_TABLES,
    )


def _indexed_writes(kind: Kind, index: Index, sides: tuple[str, ...]) -> Chain:
    """Under an index that has to be asked where keys are; the bucket index is in the other chains."""
    return Chain(
        f"orders, {_KINDS[kind]}, {index} index",
        "spark",
        (Layout("orders", ORDERS, kind, index=index),),
        (
            Step("load", ("orders",), "bulk load"),
            Step("upsert", ("orders",), "upsert 1 %", batch="one"),
            Step("upsert", ("orders",), "upsert 1 %, keys drawn towards the newest", batch="recent"),
            Step("delete", ("orders",), "delete 1 %", batch="gone"),
            Step("digest", ("orders",)),
        ),
        sides=sides,
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
        goals = (Goal("plain", share=1.1),)
        return Step("query", (source,), f"scan {source}", query=SCANS[source], repeats=3, warm=_WARM, goals=goals)

    def compared(source: str) -> Step:
        return Step("query", (source,), f"scan {source}, the key compared", query=COMPARED[source], repeats=3, warm=_WARM)

    def asked(tables: tuple[str, ...], work: str, statement: Statement, *goals: Goal) -> Step:
        # What is by the key needs no exchange, so the only one left is that of the last aggregate.
        return Step("statement", tables, work, statement=statement, warm=1, goals=(*goals, Goal(exchanges=1)))

    return Chain(
        "without logs",
        "spark",
        tuple(Layout(name, name) for name in names),
        (
            *(Step("load", (name,)) for name in names),
            *(step(name) for name in names for step in (scan, compared)),
            Step("query", (ORDERS,), "point lookup", query=LOOKUP, repeats=3, warm=_WARM, goals=(Goal(seconds=0.08),)),
            Step("query", (ORDERS,), "two days", query=RANGE, repeats=3, warm=_WARM),
            asked(names, "join orders and lineitem", JOIN, Goal("plain", share=1.05)),
            asked((LINEITEM,), "aggregate by the key", AGGREGATE),
            asked((LINEITEM,), "window on the key", WINDOW),
            *(Step("digest", (name,)) for name in names),
        ),
        anew=False,
    )


def _sorted_files() -> Chain:
    """Queries of files in that order."""
    return Chain(
        "sorted files",
        "spark",
        (Layout("orders", ORDERS, keyed=False),),
        (
            Step("load", ("orders",)),
            Step("append", ("orders",), batch="ten"),
            Step("cluster", ("orders",), by=("o_orderdate",)),
            Step("query", ("orders",), "two days of sorted files", query=RANGE, repeats=3, warm=_WARM, goals=(Goal(seconds=0.13),)),
            Step("digest", ("orders",)),
        ),
        anew=False,
    )


def _reads_with_logs(source: str) -> Chain:
    shares = {"one": 1.3, "ten": 2.0}

    def scan(batch: str) -> Step:
        goals = [Goal("plain", share=shares[batch])]
        if source == LINEITEM:
            goals += [Goal("hudi", faster=2), Goal("delta", faster=2)]
        work = f"scan {source}, {_PER_CENT[batch]} of keys in logs"
        return Step("query", (source,), work, query=SCANS[source], repeats=3, warm=_WARM, goals=tuple(goals))

    return Chain(
        f"{source} with logs, commit order",
        "spark",
        (Layout(source, source),),
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


_STREAMS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "ordered": ("in order", {}),
    "late": ("1 % late", {"one": 1.5, "ten": 2.0}),
    "": ("no order", {"one": 2.2, "ten": 3.0}),
}
"""How changes come in event time, by the stream of their batches: in words, and the time of plain Spark that scans may take."""


def _reads_by_event_time(source: str, stream: str) -> Chain:
    """Scans in event-time order, each beside the same rows in a table in commit order."""
    words, shares = _STREAMS[stream]
    layouts = (Layout(source, source, ordering=EVENT_TIMES[source]), Layout(f"{source}_commits", source))

    def after(batch: str) -> tuple[Step, ...]:
        named = f"{batch}-{stream}" if stream else batch
        goals = (Goal("plain", share=shares[batch]),) if batch in shares else ()
        work = f"scan {source}, {_PER_CENT[batch]} of keys in logs, {words}"
        return (
            *(Step("upsert", (layout.name,), batch=named) for layout in layouts),
            Step("query", (source,), work, query=SCANS[source], repeats=3, warm=_WARM, goals=goals),
            Step("query", (layouts[1].name,), f"{work}, in commit order", query=SCANS[source], repeats=3, warm=_WARM),
        )

    return Chain(
        f"{source} with logs, event-time order, {words}",
        "spark",
        layouts,
        (
            *(Step("load", (layout.name,)) for layout in layouts),
            *after("one"),
            *after("ten"),
            *(Step("digest", (layout.name,)) for layout in layouts),
        ),
        anew=False,
    )


def _work_with_logs() -> Chain:
    """What is by the key, of a table with log rows: these alone are shuffled, and what the last aggregate leaves."""

    def after(batch: str) -> tuple[Step, ...]:
        said = f", {_PER_CENT[batch]} of lineitem in logs"
        shuffled = Goal(exchanges=2)
        return (
            Step("upsert", (LINEITEM,), batch=batch),
            Step(
                "statement",
                (ORDERS, LINEITEM),
                f"join orders and lineitem{said}",
                statement=JOIN,
                warm=_WARM,
                goals=(Goal("plain", share=1.3), shuffled),
            ),
            Step("statement", (LINEITEM,), f"aggregate by the key{said}", statement=AGGREGATE, warm=2, goals=(shuffled,)),
            Step("statement", (LINEITEM,), f"window on the key{said}", statement=WINDOW, warm=2, goals=(shuffled,)),
        )

    return Chain(
        "work on the key with logs",
        "spark",
        tuple(Layout(name, name) for name in (ORDERS, LINEITEM)),
        (
            Step("load", (ORDERS,)),
            Step("load", (LINEITEM,)),
            *after("one"),
            *after("ten"),
            Step("digest", (LINEITEM,)),
        ),
        anew=False,
    )


def _last_commit() -> Chain:
    return Chain(
        "last commit",
        "spark",
        (Layout("orders", ORDERS, changes=True),),
        (
            Step("load", ("orders",)),
            Step("upsert", ("orders",), batch="ten"),
            Step(
                "incremental", ("orders",), "rows of the last commit, 10 %", query=ALL_COLUMNS, back=1, warm=2, goals=(Goal(seconds=0.4),)
            ),
        ),
        anew=False,
        sides=_TABLES,
    )


def _history() -> Chain:
    """Queries of older versions. The batches overlap, and each has rows that no other one has."""
    return Chain(
        "history",
        "spark",
        (Layout("orders", ORDERS, changes=True),),
        (
            Step("load", ("orders",)),
            Step("delete", ("orders",), batch="gone"),
            Step("upsert", ("orders",), batch="ten"),
            Step("upsert", ("orders",), batch="recent"),
            Step("query", ("orders",), "time travel, 2 commits back", query=SCANS[ORDERS], back=2, warm=2),
            Step("incremental", ("orders",), "rows of the last 2 commits", query=ALL_COLUMNS, back=2, warm=2),
            Step("changes", ("orders",), "changes of the last 3 commits", query=ALL_COLUMNS, back=3, warm=2),
            Step("digest", ("orders",)),
        ),
        anew=False,
        sides=_TABLES,
    )


def _compaction() -> Chain:
    goals = (Goal("iceberg", faster=1.5), Goal("hudi", faster=5))

    def after(batch: str) -> tuple[Step, Step]:
        return (
            Step("upsert", ("orders",), batch=batch),
            Step("compact", ("orders",), f"compaction after an upsert of {_PER_CENT[batch]}", goals=goals),
        )

    return Chain(
        "orders, compaction",
        "spark",
        (Layout("orders", ORDERS),),
        (Step("load", ("orders",)), *after("one"), *after("ten"), Step("digest", ("orders",))),
        sides=_TABLES,
    )


_COUNTED = 5
"""Successive commits whose requests are counted."""


def _requests() -> Chain:
    """What is sent for tables on S3. As many commits come before those that count: a table is seldom written to for the first time."""
    keyed, grown = Layout("orders", ORDERS), Layout("events", ORDERS, keyed=False)
    counts = tuple((name, _COUNTED) for name in _TABLES)
    return Chain(
        "on S3",
        "spark",
        (keyed, grown),
        (
            Step("load", ("orders",)),
            Step("load", ("events",)),
            Step("upsert", ("orders",), batch="small", counts=counts),
            Step("upsert", ("orders",), "upsert of 100 rows", batch="small", counts=counts),
            Step("append", ("events",), batch="small", counts=counts),
            Step("append", ("events",), "append of 100 rows", batch="small", counts=counts),
            Step("open", ("orders",), "open and plan a lookup", query=EARLY_LOOKUP),
            Step("query", ("orders",), "point lookup", query=EARLY_LOOKUP),
            Step("digest", ("orders",)),
            Step("digest", ("events",)),
        ),
        sides=_TABLES,
    )


def _clustering(by: tuple[str, ...], *, zorder: bool) -> Chain:
    """Of a table without a key, loaded in the order of its source, with a commit on top; what it is good for is asked before and after."""
    how = "z-order" if zorder else "sorted"
    asked = _asked_of_clustered(zorder=zorder)
    return Chain(
        f"orders, clustering, {how}",
        "spark",
        (Layout("orders", ORDERS, keyed=False),),
        (
            Step("load", ("orders",)),
            Step("append", ("orders",), batch="ten"),
            Step("query", ("orders",), "two days, before", query=asked),
            Step("cluster", ("orders",), f"clustering by {' and '.join(by)}, {how}", by=by, zorder=zorder),
            Step("query", ("orders",), "two days, after", query=asked),
            Step("digest", ("orders",)),
        ),
        sides=_TABLES,
    )


def _keyed_clustering(index: Index, by: tuple[str, ...], *, zorder: bool) -> Chain:
    """Of a table with a key, with updates on top of its load, and more of them afterwards: keys must still be found where they went. Under
    the bucket index rows stay in their file groups, elsewhere they move."""
    how = "z-order" if zorder else "sorted"
    asked = _asked_of_clustered(zorder=zorder)
    return Chain(
        f"orders with a key, clustering, {index} index, {how}",
        "spark",
        (Layout("orders", ORDERS, index=index),),
        (
            Step("load", ("orders",)),
            Step("upsert", ("orders",), batch="ten"),
            Step("query", ("orders",), "two days, before", query=asked),
            Step("cluster", ("orders",), f"clustering by {' and '.join(by)}, {how}", by=by, zorder=zorder),
            Step("query", ("orders",), "two days, after", query=asked),
            Step("digest", ("orders",)),
            Step("upsert", ("orders",), "upsert 1 %, after", batch="recent"),
            Step("delete", ("orders",), batch="gone"),
            Step("digest", ("orders",)),
        ),
        sides=_TABLES,
    )


def _asked_of_clustered(*, zorder: bool) -> Query:
    """A query that the clustering speeds up."""
    return Query(RANGE.columns, RANGE.aggregates, f"{RANGE.where} and o_custkey < 10000") if zorder else RANGE


def _cleaning() -> Chain:
    """The cleaning of what two upserts left: every file of the first load, and those in between."""
    return Chain(
        "orders, cleaning",
        "spark",
        (Layout("orders", ORDERS, "copy_on_write"),),
        (
            Step("load", ("orders",)),
            Step("upsert", ("orders",), batch="one"),
            Step("upsert", ("orders",), batch="ten"),
            Step("clean", ("orders",), "cleaning of all versions but the newest"),
            Step("digest", ("orders",)),
        ),
        sides=_TABLES,
    )


_WITHOUT_SPARK: Mapping[str, str] = {"objcat": "objcat-local", "delta": "deltalake", "iceberg": "pyiceberg", "plain": "duckdb"}
"""The side without Spark, for each side on Spark that has one."""


def without_spark(chain: Chain) -> Chain:
    """The same works by the sides without Spark. They need only give the right answer."""

    def names(sides: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_WITHOUT_SPARK[name] for name in sides if name in _WITHOUT_SPARK)

    steps = tuple(
        replace(
            step,
            sides=names(step.sides),
            goals=(),
            counts=tuple((_WITHOUT_SPARK[name], count) for name, count in step.counts if name in _WITHOUT_SPARK),
        )
        for step in chain.steps
    )
    return replace(chain, name=f"{chain.name}, without Spark", engine="local", steps=steps, sides=names(chain.sides) or _LOCAL_SIDES)


def _copy_on_write_goals(chain: Chain) -> Chain:
    """The chain with goals for copy-on-write, which deltalake has too."""
    (layout,) = chain.layouts
    goals = (Goal("deltalake", share=1.0),)
    is_due = layout.kind == "copy_on_write"
    return replace(
        chain, steps=tuple(replace(step, goals=goals) if is_due and step.batch in ("gone", "all") else step for step in chain.steps)
    )


_READS = (
    _reads_without_logs(),
    _sorted_files(),
    *(_reads_with_logs(source) for source in (ORDERS, LINEITEM)),
    *(_reads_by_event_time(source, stream) for stream in _STREAMS for source in (ORDERS, LINEITEM)),
    _work_with_logs(),
    _last_commit(),
    _history(),
)
_CLUSTERINGS: tuple[tuple[tuple[str, ...], bool], ...] = ((("o_orderdate",), False), (("o_orderdate", "o_custkey"), True))
_CLUSTERED_INDEXES: tuple[Index, ...] = ("bucket", "record")
_SERVICES = (
    _compaction(),
    *(_clustering(by, zorder=zorder) for by, zorder in _CLUSTERINGS),
    *(_keyed_clustering(index, by, zorder=zorder) for index in _CLUSTERED_INDEXES for by, zorder in _CLUSTERINGS),
    _cleaning(),
)
_BOTH: tuple[Kind, ...] = ("merge_on_read", "copy_on_write")
_OTHER_WRITES = tuple(_other_writes(kind) for kind in _BOTH)
_INDEXES: Mapping[Index, tuple[str, ...]] = {"bloom": ("objcat", "hudi"), "record": ("objcat", "hudi"), "simple": ("objcat",)}
_INDEXED_WRITES = tuple(_indexed_writes(kind, index, sides) for index, sides in _INDEXES.items() for kind in _BOTH)

SUITES: Mapping[str, tuple[Chain, ...]] = {
    "write": (
        _spark_writes("merge_on_read"),
        _spark_writes("copy_on_write"),
        *(_sql_writes(kind) for kind in _BOTH),
        _small_writes("spark"),
        *(_local_load(source) for source in (ORDERS, LINEITEM)),
        _local_writes("merge_on_read"),
        _local_writes("copy_on_write"),
        _small_writes("local"),
        *_OTHER_WRITES,
        *_INDEXED_WRITES,
        *(_copy_on_write_goals(without_spark(chain)) for chain in _OTHER_WRITES),
        *(without_spark(chain) for chain in (*_INDEXED_WRITES, *(_indexed_writes(kind, "memory", ("objcat",)) for kind in _BOTH))),
    ),
    "read": _READS,
    "services": _SERVICES,
    "requests": (_requests(), without_spark(_requests())),
    "local": tuple(without_spark(chain) for chain in (*_READS, *_SERVICES)),
}

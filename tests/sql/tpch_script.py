"""One script of MERGE, UPDATE and DELETE over orders and lineitem of TPC-H, and what is asked of them afterwards.

It is the same text for whoever runs it: objcat on both engines, Delta Lake on Spark, and DuckDB on tables of its own.
Needs nothing but Python itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

SCALE = "0.01"
KEYS = {"orders": ("o_orderkey",), "lineitem": ("l_orderkey", "l_linenumber")}

_ORDER = "o_orderkey, o_custkey, o_orderstatus, o_totalprice, o_orderdate, o_orderpriority, o_clerk, o_shippriority, o_comment"

STATEMENTS: Sequence[str] = (
    # Every clause at once.
    f"""
    MERGE INTO orders AS t USING (
        SELECT o_orderkey, o_custkey, 'O' AS o_orderstatus, o_totalprice, o_orderdate, o_orderpriority, o_clerk, o_shippriority, o_comment
        FROM orders WHERE o_orderkey % 4 = 1
        UNION ALL
        SELECT o_orderkey + 10000000, o_custkey, o_orderstatus, CAST(o_totalprice + 1 AS DECIMAL(15, 2)), o_orderdate, o_orderpriority,
            o_clerk, o_shippriority, o_comment
        FROM orders WHERE o_orderkey % 9 = 2
    ) AS s ON t.o_orderkey = s.o_orderkey
    WHEN MATCHED AND s.o_totalprice > 200000 THEN DELETE
    WHEN MATCHED AND t.o_orderstatus <> s.o_orderstatus
        THEN UPDATE SET o_orderstatus = s.o_orderstatus, o_totalprice = t.o_totalprice + s.o_totalprice
    WHEN NOT MATCHED AND s.o_orderpriority <> '5-LOW'
        THEN INSERT ({_ORDER}) VALUES ({", ".join(f"s.{name}" for name in _ORDER.split(", "))})
    WHEN NOT MATCHED BY SOURCE AND t.o_orderdate < DATE '1993-01-01' THEN UPDATE SET o_clerk = concat('formerly ', t.o_clerk)
    WHEN NOT MATCHED BY SOURCE AND t.o_orderstatus = 'P' THEN DELETE
    """,
    # A key of two columns, and a source that is a join with another table.
    """
    MERGE INTO lineitem AS t USING (
        SELECT l.l_orderkey, l.l_linenumber, o.o_orderpriority AS priority
        FROM lineitem AS l JOIN orders AS o ON l.l_orderkey = o.o_orderkey WHERE o.o_orderstatus = 'O' AND l.l_linenumber <= 4
    ) AS s ON t.l_orderkey = s.l_orderkey AND t.l_linenumber = s.l_linenumber
    WHEN MATCHED AND s.priority = '1-URGENT' AND t.l_quantity > 40 THEN DELETE
    WHEN MATCHED AND s.priority IN ('2-HIGH', '3-MEDIUM') THEN UPDATE SET l_quantity = t.l_quantity + 1, l_shipinstruct = 'COLLECT COD'
    """,
    # Lines of the new orders.
    """
    MERGE INTO lineitem AS t USING (
        SELECT l_orderkey + 10000000 AS l_orderkey, l_partkey, l_suppkey, l_linenumber, l_quantity, l_extendedprice, l_discount, l_tax,
            l_returnflag, l_linestatus, l_shipdate, l_commitdate, l_receiptdate, l_shipinstruct, l_shipmode, l_comment
        FROM lineitem WHERE l_orderkey % 9 = 2
    ) AS s ON t.l_orderkey = s.l_orderkey AND t.l_linenumber = s.l_linenumber
    WHEN NOT MATCHED THEN INSERT *
    """,
    "UPDATE lineitem SET l_tax = l_discount, l_returnflag = 'R' WHERE l_shipmode = 'AIR' AND l_orderkey % 7 = 3",
    "DELETE FROM lineitem WHERE l_shipmode IN ('RAIL', 'FOB') AND l_quantity >= 48",
    # Lines whose order is gone.
    """
    MERGE INTO lineitem AS t USING (
        SELECT l.l_orderkey, l.l_linenumber FROM lineitem AS l LEFT JOIN orders AS o ON l.l_orderkey = o.o_orderkey
        WHERE o.o_orderkey IS NULL
    ) AS s ON t.l_orderkey = s.l_orderkey AND t.l_linenumber = s.l_linenumber
    WHEN MATCHED THEN DELETE
    """,
    # Orders by what their lines come to, and those without lines.
    """
    MERGE INTO orders AS t USING (
        SELECT l_orderkey AS k, CAST(sum(l_extendedprice) AS DECIMAL(15, 2)) AS total, CAST(count(*) AS INT) AS n
        FROM lineitem GROUP BY l_orderkey
    ) AS s ON t.o_orderkey = s.k
    WHEN MATCHED AND s.n > 5 THEN UPDATE SET o_totalprice = s.total, o_shippriority = s.n
    WHEN NOT MATCHED BY SOURCE THEN DELETE
    """,
    "DELETE FROM orders WHERE o_orderdate >= DATE '1998-07-01'",
    "UPDATE orders SET o_orderpriority = '4-NONE', o_totalprice = o_totalprice * 2 WHERE o_orderstatus = 'F' AND o_custkey % 9 = 1",
)

QUERIES: Sequence[str] = (
    # 1, without what is divided.
    """
    SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice), sum(l_extendedprice * (1 - l_discount)),
        sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)), count(*)
    FROM lineitem WHERE l_shipdate <= DATE '1998-09-02' GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus
    """,
    # 4.
    """
    SELECT o_orderpriority, count(*) FROM orders
    WHERE o_orderdate >= DATE '1993-07-01' AND o_orderdate < DATE '1993-10-01'
        AND EXISTS (SELECT * FROM lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
    GROUP BY o_orderpriority ORDER BY o_orderpriority
    """,
    # 12.
    """
    SELECT l_shipmode, sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END), count(*)
    FROM orders JOIN lineitem ON o_orderkey = l_orderkey
    WHERE l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
        AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1995-01-01'
    GROUP BY l_shipmode ORDER BY l_shipmode
    """,
    # All that the script changes.
    """
    SELECT o_orderstatus, o_orderpriority, count(*), sum(o_orderkey), sum(o_custkey), sum(o_totalprice), sum(o_shippriority),
        min(o_orderdate), max(o_orderdate), count(DISTINCT o_clerk), count(DISTINCT o_comment)
    FROM orders GROUP BY o_orderstatus, o_orderpriority ORDER BY o_orderstatus, o_orderpriority
    """,
    """
    SELECT l_shipinstruct, l_shipmode, l_returnflag, count(*), sum(l_orderkey), sum(l_linenumber), sum(l_partkey), sum(l_quantity),
        sum(l_extendedprice), sum(l_tax), min(l_shipdate), max(l_receiptdate), count(DISTINCT l_comment)
    FROM lineitem GROUP BY l_shipinstruct, l_shipmode, l_returnflag ORDER BY l_shipinstruct, l_shipmode, l_returnflag
    """,
)


def plain(rows: Iterable[Iterable[Any]]) -> list[list[str]]:
    """Rows as text that does not tell how an engine writes a number."""
    return [[format(value.normalize(), "f") if isinstance(value, Decimal) else str(value) for value in row] for row in rows]

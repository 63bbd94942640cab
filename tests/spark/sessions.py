"""Settings of a session, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from objcat.spark import versions

of_the_format = pytest.mark.skipif(not versions.HAS_PYTHON_SOURCES, reason="Spark has data sources in Python since version 4.0")
"""Of a test of `format("objcat")` in a file with others."""

of_unions = pytest.mark.skipif(
    not versions.UNIONS_KEEP_LAYOUT, reason="A union of Spark keeps how its children are distributed since version 4.1"
)
"""Of a test of joins and aggregates on the key, which then shuffle log rows only."""

of_widened = pytest.mark.skipif(not versions.READS_WIDENED, reason="Spark reads columns of narrower types since version 4.0")
"""Of a test of columns whose type became wider. tests/spark/test_versions.py shows what an older version does."""

HAS_CALL = versions.VERSION >= (4, 0)
"""Whether Spark's SQL has CALL."""
SHOWS_PROCEDURES = versions.VERSION >= (4, 1)
"""Whether it has SHOW PROCEDURES."""
HAS_CONSTRAINTS = versions.VERSION >= (4, 1)
"""Whether it has PRIMARY KEY and CHECK. The key of a table is one of its properties before."""
KEEPS_PARAMETERS = versions.VERSION >= (4, 1)
"""Whether the plan of a statement knows its text with the values of parameters."""
CASTS_DEFAULTS = versions.VERSION >= (4, 0)
"""Whether it casts a DEFAULT to the type of its column."""
FILLS_COLUMNS = versions.VERSION >= (4, 1)
"""Whether a column of a table of a catalog that an INSERT leaves out has its default, or is null."""

ESCAPES_SHOWN = versions.VERSION >= (4, 2)
"""Whether SHOW CREATE TABLE doubles the backslashes of a property."""


@contextmanager
def session(spark: SparkSession, **settings: str) -> Iterator[None]:
    """A session with these settings, two underscores in a name for a dot or the dot itself; then with those that it had."""
    names = {name.replace("__", "."): value for name, value in settings.items()}
    before = {name: spark.conf.get(name, None) for name in names}
    try:
        for name, value in names.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)

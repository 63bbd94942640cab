"""Which tests of stores wait for `--all`."""

from __future__ import annotations

import pytest

MANY_REQUESTS = ("test_race_of_", "test_a_counter_raised_by_many_loses_nothing", "test_delete_1001_keys")
SPARED = ("moto", "seaweedfs")
"""More servers that speak S3: versitygw shows the same of our code in a fraction of the time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What sends thousands of requests runs on one server of each cloud."""
    for item in items:
        named = getattr(item, "callspec", None)
        if named is not None and named.params.get("subject") in SPARED and item.name.startswith(MANY_REQUESTS):
            item.add_marker(pytest.mark.tier("all"))

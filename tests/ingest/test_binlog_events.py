"""Events of a binlog that are not known are refused, unless every reader may pass them over: rows may be in them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from objcat.errors import IngestStopped
from objcat.ingest.mysql.gtids import MysqlGtids
from objcat.ingest.mysql.source import MysqlSource

COMPRESSED_TRANSACTION, TAGGED_ID, INCIDENT, PARTIAL_ROWS, VIEW_CHANGE, HEARTBEAT = 40, 42, 26, 39, 37, 41
IGNORABLE = 0x80


def refuse(kind: int, flags: int = 0) -> None:
    source = MysqlSource.__new__(MysqlSource)
    source._config = SimpleNamespace(name="shop", path="shop.toml")  # type: ignore[assignment]
    source._refuse_unknown(SimpleNamespace(event_type=kind, packet=SimpleNamespace(flags=flags)), MysqlGtids.parse("a:1-3"))


@pytest.mark.parametrize("kind", [COMPRESSED_TRANSACTION, INCIDENT, PARTIAL_ROWS])
def test_events_that_may_have_rows_stop_the_ingest(kind: int) -> None:
    with pytest.raises(IngestStopped, match=rf"kind {kind} after a:1-3.*resnapshot shop.toml --all"):
        refuse(kind)


def test_an_id_with_a_tag_stops_the_ingest_and_says_what_to_do() -> None:
    with pytest.raises(IngestStopped, match=r"with a tag after a:1-3.*REVOKE TRANSACTION_GTID_TAG.*objcat ingest check shop.toml"):
        refuse(TAGGED_ID)


def test_events_without_rows_are_passed_over() -> None:
    refuse(VIEW_CHANGE)
    refuse(HEARTBEAT)
    refuse(99, IGNORABLE)

"""Which texts name a transaction that can be left out, for each kind of source. No server is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import objcat
from objcat.errors import InvalidInput
from objcat.ingest.config import IngestConfig, parse_config
from objcat.ingest.kafka.position import KafkaPosition, TopicPosition
from objcat.ingest.lake_tables.progress import FollowedTable, LakeProgress
from objcat.ingest.sources import transaction_text

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
POSTGRES = {"lsn": "0/16B3748", "server": "x"}
LAKE = LakeProgress(
    slots={"logs/shop": 7},
    tables={
        "shop.read": FollowedTable(id="1", log="logs/shop", columns={}),
        "shop.new": FollowedTable(id="2", log="logs/shop", columns={}, groups_read=1),
    },
).position()
KAFKA = KafkaPosition(at="beginning", topics={"shop.items": TopicPosition(next={"0": 5})}).stored()
TOPICS = {"brokers": "b:9092", "topics": r"shop\..*"}
WHOLE = {**TOPICS, "transactions": "pg.transaction"}


def config(kind: str, **source: Any) -> IngestConfig:
    routes = [{"tables": "shop.skipped", "skip": True}, {"tables": "(.*)", "to": "\\1"}]
    given = {"lake": {"url": "memory:"}, "source": {"name": "shop", "kind": kind, **source}, "route": routes}
    return parse_config(given, path="shop.toml", environment={})


CASES: list[tuple[str, dict[str, Any], Mapping[str, Any], str, str]] = [
    ("postgres", {}, POSTGRES, "0/16b3749", "00000000/016B3749"),
    ("postgres", {}, POSTGRES, "1/0", "00000001/00000000"),
    ("mariadb", {}, {"gtids": "0-1-100,7-2-5"}, "7-2-5, 0-1-101", "0-1-101,7-2-5"),
    ("mysql", {}, {"gtids": f"{SERVER}:1-7"}, f"{SERVER.upper()}:1-8", f"{SERVER}:1-8"),
    ("kafka", TOPICS, KAFKA, "shop.items/0@5", "shop.items/0@5"),
    ("kafka", TOPICS, KAFKA, "shop.other/12@0", "shop.other/12@0"),
    ("kafka", WHOLE, KAFKA, "744:28354736", "744:28354736"),
    ("objcat", {"url": "x"}, LAKE, "logs/shop@8", "logs/shop@8"),
    ("objcat", {"url": "x"}, LAKE, "shop.new@7/2", "shop.new@7/2"),
]
REFUSED: list[tuple[str, dict[str, Any], Mapping[str, Any], str, str]] = [
    ("postgres", {}, POSTGRES, "0/16B3748", "is in the lake"),
    ("postgres", {}, POSTGRES, "0/1", "is in the lake"),
    ("postgres", {}, POSTGRES, "the last one", "two hexadecimal numbers"),
    ("postgres", {}, POSTGRES, "", "two hexadecimal numbers"),
    ("postgres", {}, POSTGRES, "0/16B3748-0/16B4000", "two hexadecimal numbers"),
    ("mariadb", {}, {"gtids": "0-1-100,7-2-5"}, "0-1-100", "is in the lake"),
    ("mariadb", {}, {"gtids": "0-1-100,7-2-5"}, "0-1-101", "lacks transactions that are in the lake"),
    ("mariadb", {}, {"gtids": "0-1-100"}, f"{SERVER}:1-8", "not the form of this server"),
    ("mariadb", {}, {"gtids": "0-1-100"}, "binlog.000001:4", "transaction ids"),
    ("mysql", {}, {"gtids": f"{SERVER}:1-7"}, f"{SERVER}:1-6", "is in the lake"),
    ("mysql", {}, {"gtids": f"{SERVER}:1-7"}, f"{SERVER}:1-x", "transaction ids"),
    ("kafka", TOPICS, KAFKA, "shop.items/0@4", "is in the lake"),
    ("kafka", TOPICS, KAFKA, "shop.items/0@9 and 3 before it", "topic/partition@offset"),
    ("kafka", TOPICS, KAFKA, "shop.skipped/0@9", "is not followed"),
    ("kafka", TOPICS, KAFKA, "clicks/0@9", "is not followed"),
    ("kafka", TOPICS, KAFKA, "744:28354736", "a message is topic/partition@offset."),
    ("kafka", WHOLE, KAFKA, "all of them", "or the id of a transaction"),
    ("objcat", {"url": "x"}, LAKE, "logs/shop@7", "is in the lake"),
    ("objcat", {"url": "x"}, LAKE, "logs/stop@8", "only logs/shop"),
    ("objcat", {"url": "x"}, LAKE, "shop.read@7/2", "is not being read"),
    ("objcat", {"url": "x"}, LAKE, "8", "LOG@SLOT"),
]


@pytest.mark.parametrize(("kind", "source", "position", "text", "wanted"), CASES)
def test_texts_are_taken_as_the_source_writes_them(
    kind: str, source: dict[str, Any], position: Mapping[str, Any], text: str, wanted: str, tmp_path: Path
) -> None:
    assert transaction_text(config(kind, **source), objcat.connect(str(tmp_path)), position, text) == wanted


@pytest.mark.parametrize(("kind", "source", "position", "text", "said"), REFUSED)
def test_texts_that_no_transaction_can_have_are_refused(
    kind: str, source: dict[str, Any], position: Mapping[str, Any], text: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as refused:
        transaction_text(config(kind, **source), objcat.connect(str(tmp_path)), {"last": "x", **position}, text)
    assert said in str(refused.value) and "'shop' is at" in str(refused.value) and "Nothing was asked." in str(refused.value)

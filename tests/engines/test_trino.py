"""Trino, which starts for most of a minute and takes 3 GB, so that it takes part at night alone."""

from __future__ import annotations

import pytest

from tests.engines.checks import check_engine
from tests.engines.matrix import MirroredHistory
from tests.engines.process import Engines
from tests.engines.written import KINDS, WrittenTable, check_reader


@pytest.mark.parametrize("kind", KINDS)
def test_it_reads_what_others_wrote(kind: str, engines: Engines, written: dict[str, WrittenTable]) -> None:
    check_reader("trino", written[kind], engines)


@pytest.mark.timeout(7200)
def test_every_read_has_the_rows_of_its_slot(engines: Engines, histories: list[MirroredHistory]) -> None:
    check_engine("trino", engines, histories)

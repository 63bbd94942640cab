"""What commands that take long show on a terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.status import Status
from rich.text import Text

import objcat
from objcat.cli.output import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_command_shows_how_far_its_service_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def update(self: Status, status: Text, **rest: Any) -> None:
        said.append(str(status))
        real(self, status, **rest)

    real = Status.update
    monkeypatch.setattr(Status, "update", update)
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    table = objcat.create_table_at(
        tmp_path, pa.schema([pa.field("id", pa.int64(), nullable=False)]), key=["id"], index=objcat.BucketIndex(2)
    )
    table.upsert(pa.table({"id": range(100)}))
    with progress("compacting t"):
        table.maintenance.compact()
    assert "compacting t: 0 of 2 file groups" in said and said[-1] == "compacting t: 2 of 2 file groups"
    with progress("cleaning t"):
        table.maintenance.clean(keep_slots=1)
    assert said[-1] == "cleaning t: 1 of 1 files"

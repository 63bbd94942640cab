"""What the tests that break mirrors have tried is printed at the end."""

from __future__ import annotations

from typing import Any

tried: list[str] = []
"""One line for each table that was struck: at how many requests, and how many slots were read and equal."""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if tried:
        terminalreporter.section("mirrors: processes that were struck, and what readers got")
        for line in tried:
            terminalreporter.write_line(line)

"""The result in a terminal: a table for each chain, one line for each side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.figures import (
    Sample,
    Spread,
    WorkResult,
    own_side,
    seconds_of,
    sides_of,
    slowest_in_medians,
    spread,
    times_faster,
    verdicts,
)


def show_chain(console: Console, results: Sequence[WorkResult]) -> None:
    """All works of one chain."""
    if not results:
        return
    table = Table(
        "work",
        "side",
        "seconds",
        "objcat is faster",
        "CPU s",
        "files",
        "MB written",
        "peak MiB",
        "",
        title=results[0].chain,
        title_justify="left",
    )
    for result in results:
        faster = times_faster(result)
        first = True
        for side in sides_of(result):
            samples = result.samples[side]
            table.add_row(
                result.work if first else "",
                side,
                seconds_text(result, samples),
                ratio_text(faster.get(side)),
                cpu_text(samples),
                *writes_text(samples),
                f"{max(sample.peak_bytes for sample in samples) / 2**20:,.0f}",
                notes_of(result, side, samples),
            )
            first = False
        for side, reason in result.lacks.items():
            if side not in result.samples:
                table.add_row(result.work if first else "", side, "not available", "", "", "", "", "", reason[:80])
                first = False
        for side, reason in result.wrong.items():
            table.add_row("", f"[bold red]{side}", "[bold red]WRONG", "", "", "", "", "", f"[red]{reason[:120]}")
        table.add_section()
    console.print(table)


def show(console: Console, results: Sequence[WorkResult], environment: Mapping[str, Any]) -> None:
    """The goals at the end, and what the figures depend on."""
    table = Table("chain", "work", "goal", "measured", "", title="Goals", title_justify="left")
    for result in results:
        for verdict in verdicts(result):
            word = "" if verdict.met is None else "[green]met" if verdict.met else "[red]missed"
            table.add_row(result.chain, result.work, verdict.goal, verdict.found or "not measured", word)
    if table.row_count:
        console.print(table)
    plain = {name: value for name, value in environment.items() if name != "sides"}
    console.print(f"[dim]{', '.join(f'{name}: {value}' for name, value in plain.items())}")


def seconds_text(result: WorkResult, samples: Sequence[Sample]) -> str:
    """Median, and least to greatest. For commits also their number, and the slowest in medians."""
    value = seconds_of(samples)
    text = f"{_short(value.median)} ({_short(value.low)}-{_short(value.high)})"
    if result.commits:
        text += f", {sum(len(sample.seconds) for sample in samples)} commits, slowest {slowest_in_medians(samples):.1f} medians"
    return text


def ratio_text(value: Spread | None) -> str:
    """A ratio as text."""
    return "" if value is None else f"{value.median:.2f}x ({value.low:.2f}-{value.high:.2f})"


def cpu_text(samples: Sequence[Sample]) -> str:
    """CPU seconds of the median sample. Empty where they were not measured."""
    known = [sample.cpu_seconds for sample in samples if sample.cpu_seconds is not None]
    return _short(spread(known).median) if known else ""


def writes_text(samples: Sequence[Sample]) -> tuple[str, str]:
    """Files and megabytes written, of the median sample. Empty for reads."""
    files = [sample.files for sample in samples if sample.files is not None]
    sizes = [sample.bytes for sample in samples if sample.bytes is not None]
    return (f"{spread(files).median:,.0f}", f"{spread(sizes).median / 1e6:,.2f}") if files and sizes else ("", "")


def notes_of(result: WorkResult, side: str, samples: Sequence[Sample]) -> str:
    """What else is known: the call, exchanges, requests."""
    last = samples[-1]
    notes = []
    if side == own_side(result) and last.called:
        notes.append(last.called)
    if last.exchanges is not None:
        notes.append(f"{last.exchanges} exchanges")
    if last.removed is not None:
        notes.append(f"{last.removed} files removed")
    if last.requests:
        notes.append(requests_text(last))
    return "; ".join(notes)


def requests_text(sample: Sample) -> str:
    """Requests per call, by kind. Empty where they were not counted."""
    return ", ".join(f"{count / len(sample.seconds):g} {kind}" for kind, count in sorted((sample.requests or {}).items()))


def _short(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.2f}" if seconds >= 0.1 else f"{seconds:.4f}"

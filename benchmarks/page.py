"""The result as one page of HTML that needs nothing else: counted requests and ratios first, then goals, then each work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.figures import WorkResult, sides_of, times_faster, verdicts
from benchmarks.peers import SIDES
from benchmarks.report import cpu_text, notes_of, ratio_text, requests_text, seconds_text, writes_text

_STYLE = Path(__file__).with_name("page.css")
_SAID_FIRST = ("scale", "rounds", "machine", "processor", "tree", "began")
"""Of the environment, what is said above the figures; all of it is at the end."""


def render(suite: str, results: Sequence[WorkResult], environment: Mapping[str, Any]) -> str:
    """The page."""
    parts = [f"<h1>objcat, benchmark suite <em>{escape(suite)}</em></h1>", _introduction(environment)]
    if wrong := [result for result in results if result.wrong]:
        items = "".join(f"<li>{escape(r.chain)}, {escape(r.work)}: {escape(s)} {escape(w)}" for r in wrong for s, w in r.wrong.items())
        parts.append(f"<h2 class=wrong>Checks that failed: no ratio is told of these</h2><ul>{items}</ul>")
    chains = [[result for result in results if result.chain == chain] for chain in dict.fromkeys(result.chain for result in results)]
    parts += [_requests(results), _ratios(chains, results), _goals(results)]
    for chain in chains:
        parts.append(f"<h2>{_title(chain[0].chain)}</h2>")
        parts += [_work(result) for result in chain]
    parts.append(_environment(environment))
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>objcat, {escape(suite)}</title>\n<style>{_STYLE.read_text()}</style>\n{body}\n</html>\n"
    )


def _introduction(environment: Mapping[str, Any]) -> str:
    facts = ", ".join(f"{escape(name)} {escape(str(environment[name]))}" for name in _SAID_FIRST if name in environment)
    return (
        "<p>All sides took turns in one run, on the same rows. What every side held and answered was compared with what DuckDB computes "
        "from the source files. Seconds hold for this machine; the ratios are the result.</p>"
        f"<p class=soft>{facts}</p>"
    )


def _ratios(chains: Sequence[Sequence[WorkResult]], results: Sequence[WorkResult]) -> str:
    """A plot for each chain, all on one axis."""
    bounds = plots.bounds_of(results)
    parts = [f"<h3>{_title(chain[0].chain)}</h3>{plot}" for chain in chains if (plot := plots.ratios(chain, bounds))]
    if not parts:
        return ""
    return (
        "<h2>How many times as fast objcat was</h2><p>Right of the line at 1x objcat took less time than the side named, left of it more. "
        "A point is the median over pairs of samples taken one after the other, its line goes from the least to the greatest. "
        "<i class=peer></i> are other tables, <i class=floor></i> is what reads and writes cost without a table.</p>"
        f"{''.join(parts)}"
    )


def _requests(results: Sequence[WorkResult]) -> str:
    """The requests per call of a work, where several sides were counted."""
    counted = [result for result in results if sum(bool(result.samples[side][-1].requests) for side in sides_of(result)) > 1]
    names = [side for side in SIDES if any(side in sides_of(result) for result in counted)]
    rows = []
    for result in counted:
        cells = [requests_text(result.samples[side][-1]) if side in sides_of(result) else "" for side in names]
        rows.append((result.chain, result.work, *cells))
    return f"<h2>Requests for each call</h2>{_table(('chain', 'work', *names), rows)}" if rows else ""


def _goals(results: Sequence[WorkResult]) -> str:
    rows = []
    for result in results:
        for verdict in verdicts(result):
            word = "" if verdict.met is None else "met" if verdict.met else "missed"
            cells = (result.chain, result.work, verdict.goal, verdict.found or "not measured")
            rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + f"<td class={word or 'soft'}>{word}</td></tr>")
    if not rows:
        return ""
    head = "<tr><th>chain<th>work<th>goal<th>measured<th></tr>"
    return f"<h2>Goals</h2><div class=scroll><table>{head}{''.join(rows)}</table></div>"


def _work(result: WorkResult) -> str:
    faster = times_faster(result)
    rows = []
    for side in sides_of(result):
        samples = result.samples[side]
        peak = f"{max(sample.peak_bytes for sample in samples) / 2**20:,.0f}"
        ratio = ratio_text(faster.get(side))
        cells = (ratio, cpu_text(samples), *writes_text(samples), peak, notes_of(result, side, samples))
        rows.append((side, seconds_text(result, samples), *cells))
    lacking = [f"{side} is not available: {reason}" for side, reason in result.lacks.items() if side not in result.samples]
    head = ("side", "seconds", "objcat is faster", "CPU s", "files", "MB written", "peak MiB", "")
    said = "".join(f"<p class=soft>{escape(sentence)}</p>" for sentence in lacking)
    return f"<h3>{escape(result.work)}</h3>{plots.seconds(result)}{_table(head, rows)}{said}"


def _environment(environment: Mapping[str, Any]) -> str:
    plain = [(name, str(value)) for name, value in environment.items() if name != "sides"]
    sides = [(side, ", ".join(f"{name} {value}" for name, value in about.items())) for side, about in environment["sides"].items()]
    return f"<h2>Sides</h2>{_table((), sides)}<h2>Machine and settings</h2>{_table((), plain)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without empty columns. Empty without rows."""
    shown = [number for number in range(len(rows[0])) if any(row[number] for row in rows)] if rows else []
    lines = [_line("th", [head[number] for number in shown])] if head else []
    lines += [_line("td", [row[number] for number in shown]) for row in rows]
    return f"<div class=scroll><table>{''.join(lines)}</table></div>" if rows else ""


def _line(cell: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape(text)}</{cell}>" for text in texts) + "</tr>"


def _title(text: str) -> str:
    return escape(text[:1].upper() + text[1:])

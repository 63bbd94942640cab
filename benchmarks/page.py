"""The result as one page of HTML that needs nothing else: plots are SVG in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.figures import WorkResult, own_side, seconds_of, sides_of, times_faster, verdicts
from benchmarks.peers import SIDES
from benchmarks.report import notes_of, ratio_text, seconds_text, writes_text

_STYLE = Path(__file__).with_name("page.css")
_WIDTH, _LABEL, _NUMBER, _ROW = 720, 110, 190, 22


def render(suite: str, results: Sequence[WorkResult], environment: Mapping[str, Any]) -> str:
    """The page."""
    parts = [f"<h1>objcat, benchmark suite <em>{escape(suite)}</em></h1>", _introduction(environment)]
    if wrong := [result for result in results if result.wrong]:
        items = "".join(f"<li>{escape(r.chain)}, {escape(r.work)}: {escape(s)} {escape(w)}" for r in wrong for s, w in r.wrong.items())
        parts.append(f"<h2 class=wrong>Checks that failed: no ratio is told of these</h2><ul>{items}</ul>")
    parts.append(_goals(results))
    for chain in dict.fromkeys(result.chain for result in results):
        parts.append(f"<h2>{escape(chain[:1].upper() + chain[1:])}</h2>")
        parts += [_work(result) for result in results if result.chain == chain]
    parts.append(_sides(environment))
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>objcat, {escape(suite)}</title>\n<style>{_STYLE.read_text()}</style>\n{body}\n</html>\n"
    )


def _introduction(environment: Mapping[str, Any]) -> str:
    facts = ", ".join(f"{escape(name)} {escape(str(value))}" for name, value in environment.items() if name not in ("sides", "suite"))
    return (
        "<p>All sides took turns in one run, on the same rows. Bars are medians, whiskers the least and the greatest value. "
        "What every side held and answered was compared with what DuckDB computes from the source files. "
        "Seconds hold for this machine; the ratios are the result.</p>"
        f"<p class=soft>{facts}</p>"
    )


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
        cells = (side, seconds_text(result, samples), ratio, *writes_text(samples), peak, notes_of(result, side, samples))
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    for side, reason in result.lacks.items():
        if side not in result.samples:
            rows.append(f"<tr><td>{escape(side)}</td><td class=soft colspan=6>not available: {escape(reason)}</td></tr>")
    head = "<tr><th>side<th>seconds<th>objcat is faster<th>files<th>MB written<th>peak MiB<th></tr>"
    return f"<h3>{escape(result.work)}</h3>{_bars(result)}<div class=scroll><table>{head}{''.join(rows)}</table></div>"


def _bars(result: WorkResult) -> str:
    """Horizontal bars from zero, as wide as the greatest median; a whisker that goes beyond is cut there."""
    sides = {side: seconds_of(result.samples[side]) for side in sides_of(result)}
    if not sides:
        return ""
    widest = max(value.median for value in sides.values()) or 1.0
    scale = (_WIDTH - _LABEL - _NUMBER) / widest
    faster = times_faster(result)
    shapes = []
    for number, (side, value) in enumerate(sides.items()):
        y, middle = number * _ROW + 4, number * _ROW + 11
        kind = SIDES[side].role
        low, high = (_LABEL + min(end, widest) * scale for end in (value.low, value.high))
        text = f"{value.median:.3g} s"
        if side in faster:
            text += f", {faster[side].median:.2f}x of objcat"
        shapes.append(
            f'<text x="0" y="{middle + 4}" class="{"own" if side == own_side(result) else ""}">{escape(side)}</text>'
            f'<rect class="{kind}" x="{_LABEL}" y="{y}" width="{max(value.median * scale, 1):.1f}" height="14" rx="2"/>'
            f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>'
            f'<text x="{max(_LABEL + value.median * scale, high) + 8:.1f}" y="{middle + 4}">{escape(text)}</text>'
        )
    height = len(sides) * _ROW + 4
    return f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">{"".join(shapes)}</svg>'


def _sides(environment: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(side)}</td><td>{escape(', '.join(f'{name} {value}' for name, value in about.items()))}</td></tr>"
        for side, about in environment["sides"].items()
    )
    return f"<h2>Sides</h2><table>{rows}</table>"

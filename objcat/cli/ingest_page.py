"""The page of `objcat ingest status --html`: it loads and runs nothing, and has the style of `objcat report`."""

from __future__ import annotations

from objcat.cli.output import time_text
from objcat.cli.report_page import document, facts_list, table_of, text_of
from objcat.ingest.ingest_status import IngestStatus
from objcat.inspection.explain import bytes_text


def ingest_page(found: IngestStatus, now_ms: int) -> str:
    """The page. `now_ms`: when it was looked at."""
    return document(found.source, [_head(found, now_ms), _advice(found), _tables(found), _dead_letters(found)])


def _head(found: IngestStatus, now_ms: int) -> str:
    report = found.report
    facts = {
        "position": found.position or "not begun",
        "consistent": "yes" if found.is_consistent else "no",
        "newest commit (UTC)": "-" if found.committed_at_ms is None else time_text(found.committed_at_ms),
        "slot": "-" if found.slot is None else f"{found.slot:,}",
        "transactions applied": f"{found.transactions:,}",
        "behind": _behind(found),
        "kept by the source": "-" if report is None or report.retained_bytes is None else bytes_text(report.retained_bytes),
        "dead letters": f"{found.dead:,}",
        "values that became null": f"{found.nulled:,}",
    }
    told = f"{'-' if report is None else report.state}, looked at {time_text(now_ms)} UTC"
    return f'<h1>{text_of(found.source)}</h1><p class="soft">{text_of(told)}</p>{facts_list(facts)}'


def _behind(found: IngestStatus) -> str:
    if found.report is not None and found.report.behind_bytes is not None:
        return bytes_text(found.report.behind_bytes)
    return "-" if found.is_behind is None else "yes" if found.is_behind else "no"


def _advice(found: IngestStatus) -> str:
    said = [] if found.away is None else [found.away]
    said += [] if found.report is None else found.report.warnings
    said += [f"{table.name} is set aside: {table.why}" for table in found.tables if table.why is not None]
    if found.rewound_at is not None:
        said.append(f"The RESTORE at slot {found.rewound_at} took tables back: the next run reads all tables again.")
    said += [f"Asked for, and not done yet: {one}." for one in found.waiting]
    if not said:
        return '<h2>Advice</h2><p class="good">Nothing to do.</p>'
    return f'<h2>Advice</h2><ul class="advice">{"".join(f"<li>{text_of(one)}</li>" for one in said)}</ul>'


def _tables(found: IngestStatus) -> str:
    rows = [(table.name, table.state, f"{table.rows:,}") for table in found.tables]
    return table_of("Tables", ("table", "state", "rows of the last snapshot"), rows, of_words=True) if rows else ""


def _dead_letters(found: IngestStatus) -> str:
    rows = [(letter.at, letter.table or "-", letter.position or "-", letter.error or "") for letter in found.dead_letters]
    return table_of("Newest dead letters", ("at (UTC)", "table", "position", "error"), rows, of_words=True) if rows else ""

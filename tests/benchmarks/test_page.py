"""The page and the terminal show what was measured, what was not, and what is wrong; the page needs nothing else."""

from __future__ import annotations

import io
import re

from rich.console import Console

from benchmarks import page, report
from benchmarks.figures import Sample, WorkResult
from benchmarks.works import Goal

ENVIRONMENT = {"suite": "write", "scale": 1.0, "sides": {"objcat": {"pyspark": "4"}, "hudi": {"pyspark": "3 <&>"}}}


def result(**wrong: str) -> WorkResult:
    found = WorkResult("orders", "upsert 1 %", "spark", (Goal("hudi", faster=2),), wrong=dict(wrong), lacks={"delta": "it has <none>"})
    found.samples = {
        "objcat": [Sample(1, [0.5], files=2, bytes=2_000_000, peak_bytes=2**30, requests={"get": 1})],
        "hudi": [Sample(1, [4.0], files=9, bytes=9_000_000, peak_bytes=2**31)],
    }
    return found


def terminal(results: list[WorkResult]) -> str:
    console = Console(file=io.StringIO(), width=200)
    report.show_chain(console, results)
    report.show(console, results, ENVIRONMENT)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_both_show_the_ratio_the_goal_and_who_lacks_what():
    for text in (terminal([result()]), page.render("write", [result()], ENVIRONMENT)):
        assert "8.00x" in text
        assert "met" in text
        assert "not available" in text


def test_neither_shows_a_ratio_where_a_check_failed():
    wrong = [result(hudi="has 7 instead of 8")]
    for text in (terminal(wrong), page.render("write", wrong, ENVIRONMENT)):
        assert "8.00x" not in text
        assert "has 7 instead of 8" in text


def test_ratios_come_first_with_their_spread():
    found = result()
    found.samples["objcat"] += [Sample(2, [0.25])]
    found.samples["hudi"] += [Sample(2, [1.0])]
    text = page.render("write", [found], ENVIRONMENT)
    assert "6.00x (4.00-8.00)" in text[: text.index("<h2>Goals")]
    assert text.index('class="one"') < text.index("<circle") < text.index("<h2>Goals") < text.index("<rect")
    points = [float(x) for x in re.findall(r'<circle [^>]*cx="([0-9.]+)"', text)]
    ends = [tuple(map(float, pair)) for pair in re.findall(r'"whisker" d="M([0-9.]+) [^H]*H([0-9.]+)m', text)]
    assert len(points) == 1
    assert ends[0][0] < points[0] < ends[0][1]


def test_requests_are_told_where_several_sides_were_counted():
    one, both = result(), result()
    both.samples["hudi"][0].requests = {"GET": 40}
    assert "Requests for each call" not in page.render("write", [one], ENVIRONMENT)
    assert re.search(r"<td>1 get</td><td>40 GET</td>", page.render("requests", [both], ENVIRONMENT))


def test_columns_that_say_nothing_are_left_out():
    reads = result()
    for samples in reads.samples.values():
        samples[0].files = samples[0].bytes = None
    assert "MB written" in page.render("write", [result()], ENVIRONMENT)
    assert "MB written" not in page.render("read", [reads], ENVIRONMENT)


def test_a_work_without_a_ratio_has_no_place_on_the_axis():
    alone = result()
    del alone.samples["hudi"]
    text = page.render("write", [alone], ENVIRONMENT)
    assert "<circle" not in text
    assert "<rect" in text


def test_the_page_is_whole_and_escapes_what_it_shows():
    text = page.render("write", [result()], ENVIRONMENT)
    assert not re.search(r"(src|href)=|@import|url\(|https?:", text)
    assert "<svg" in text
    assert "it has &lt;none&gt;" in text
    assert "3 &lt;&amp;&gt;" in text

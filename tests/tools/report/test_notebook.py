"""Reports in notebooks: `_repr_html_` is escaped, self-contained HTML with the report's own numbers."""

import dataclasses
from html.parser import HTMLParser

import pytest
import torch

import staticrt
from staticrt.memory import planner
from staticrt.runtime.explain.explanation import EagerReport, Explanation
from staticrt.tools.report.compare import CompareReport, NodeDifference
from tests.support.report_models import Prints

HOSTILE = "<script>alert('x')</script> & <b>\"bold\"</b>"


class Page(HTMLParser):
    """Parses a fragment, and checks that tags are balanced and fetch nothing."""

    def __init__(self, fragment: str):
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self._open: list[str] = []
        self.feed(fragment)
        self.close()
        assert self._open == []
        assert self.tags <= {"p", "b", "ul", "li", "pre", "details", "summary",
                             "table", "thead", "tbody", "tr", "th", "td"}  # fmt: skip

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self._open.append(tag)
        assert {name for name, _ in attrs} <= {"style"}
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if self._open and self._open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data.strip()

    @property
    def text(self) -> str:
        return "".join(self.texts)


def test_explain_shows_its_graphs_signatures_and_text(net, x):
    for batch in (x, x[:3], x[:3]):
        net(batch)
    report = net.explain()
    page = Page(report._repr_html_())
    graphs, signatures = page.tables
    (trace,) = report.traces
    assert graphs[1][3:5] == [str(trace.nodes), str(trace.calls)]
    assert [row[2:] for row in signatures[1:]] == [
        [str(s.arena_bytes), str(s.lower_bound_bytes), str(s.output_bytes)] for s in trace.signatures
    ]
    assert len(signatures) == 3
    assert report.details() in page.text


def test_explain_shows_what_runs_eagerly_and_why():
    model = staticrt.compile(Prints())
    model(torch.randn(8))
    report = model.explain()
    assert report.eager
    assert Page(report._repr_html_()).tables[-1][1:] == [
        [e.what, e.where, e.reason, str(e.calls)] for e in report.eager
    ]


def test_profile_shows_every_step_slowest_first(net, x):
    report = net.profile(x)
    (rows,) = Page(report._repr_html_()).tables
    assert [float(row[4]) for row in rows[1:]] == [
        pytest.approx(row.self_ns / 1e3, abs=0.006)
        for row in sorted(report.rows, key=lambda row: -row.self_ns)
    ]
    assert report.summary() in Page(report._repr_html_()).text


def test_compare_shows_the_verdict_and_the_first_node_off(net, x):
    report = net.compare(x)
    assert Page(report._repr_html_()).text == str(report)
    wrong = CompareReport(
        False, "runtime", "off by 3", NodeDifference("y", "aten.off", "net.py:7", "by 3"), 5
    )
    (rows,) = Page(wrong._repr_html_()).tables
    assert dict(rows[1:]) == {
        "stage": "the runtime computes a node differently",
        "difference": "off by 3",
        "nodes compared": "5",
        "first node off": "y = aten.off",
        "line": "net.py:7",
        "how far off": "by 3",
    }


@pytest.mark.parametrize("count", [0, 1, 40])
def test_a_plan_shows_its_arena_and_offsets(count):
    plan = planner.plan([(n, n + 2, 100 * (n + 1)) for n in range(count)])
    page = Page(plan._repr_html_())
    sizes, offsets = page.tables
    assert sizes[1] == [
        str(plan.arena_bytes), str(plan.lower_bound), "yes" if plan.proved_optimal else "no"
    ]  # fmt: skip
    assert offsets[1:] == [[str(n), str(offset)] for n, offset in enumerate(plan.offsets)][:25]
    assert ("15 other buffers" in page.text) == (count == 40)


def test_text_of_models_is_escaped(net, x):
    reports = [
        Explanation(HOSTILE, (), (EagerReport("call", HOSTILE, HOSTILE, 1),), (HOSTILE,)),
        CompareReport(False, "call", HOSTILE, NodeDifference(HOSTILE, HOSTILE, HOSTILE, HOSTILE)),
    ]
    profiled = net.profile(x, runs=1)
    row = dataclasses.replace(profiled.rows[0], where=HOSTILE)
    reports.append(dataclasses.replace(profiled, name=HOSTILE, rows=(row,)))
    for report in reports:
        assert HOSTILE in Page(report._repr_html_()).text  # Page refuses the tag itself

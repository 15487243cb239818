import html
import json
import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.budget import Check
from edgekit.events import Finding
from edgekit.report import CHECKS, check_rows, finding_rows, html_report, shown, stage_rows, text_table
from edgekit.result import ErrorReport, Result
from edgekit.stage_runs import StageRun

VOID = {"meta", "br", "hr", "img", "input", "link"}
ELEMENTS = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "p", "strong", "dl", "dt", "dd", "div", "table",
    "caption", "thead", "tbody", "tr", "th", "td", "details", "summary", "pre",
}  # fmt: skip


class Page(HTMLParser):
    """Gathers elements, attributes and text, and checks that every element is closed."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.attributes, self.text, self.open = [], [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)


def result(**changes):
    values = {
        "status": "unproven",
        "exit": 0,
        "checks": (
            Check(
                name="drop", value=0.004, unit="1", budget=0.01, status="unproven", provenance="measured", on="local",
                low=-0.01, high=0.02, n=50, reason="50 samples are too few",
            ),
            Check(name="size", value=3_790_000.0, unit="B", budget=5e6, status="pass", provenance="measured", on="x"),
            Check(
                name="energy", value=None, unit="mJ", budget=None, status="unproven", provenance="predicted", on="y"
            ),
        ),
        "artifact": "ab" * 32,
        "package": "out/tiny.edgekit",
        "stages": (
            StageRun(name="capture", seconds=1.25, cached=False, facts={"nodes": 12, "graphs": {"model.onnx": {}}}),
            StageRun(name="fp16", seconds=0.0, cached=True, facts={}),
        ),
        "coverage": {"weights": 0.97, "precision": "w8a8", "left_float": ["conv1"]},
        "findings": (
            Finding(severity="note", node="", rule="b-rule", text="fine"),
            Finding(severity="error", node="conv1", rule="a-rule", text="bad", remedy="do this"),
        ),
    }  # fmt: skip
    return json.loads(Result(**{**values, **changes}).to_json())


def test_rows_of_checks():
    drop, size, energy = check_rows(result())
    assert drop == (
        "drop",
        "0.40%",
        "-1.00% .. 2.00%",
        "1.00%",
        "unproven",
        "measured on local, n = 50; 50 samples are too few",
    )
    assert size == ("size", "3.79 MB", "", "5.00 MB", "pass", "measured on x")
    assert energy == ("energy", "-", "", "", "reported", "predicted on y")


def test_other_rows():
    assert stage_rows(result()) == [
        ("capture", "1.2 s", "nodes 12, graphs {..}"),
        ("fp16", "cached", ""),
    ]
    assert [row[0] for row in finding_rows(result())] == ["error", "note"]
    assert finding_rows(result())[0] == ("error", "a-rule", "conv1", "bad", "do this")


def test_a_page_holds_everything_and_nothing_from_elsewhere():
    page = html_report(result(), title="EfficientNet")
    parsed = Page(page)
    text = " ".join(parsed.text)
    for word in (
        "EfficientNet",
        "3.79 MB",
        "unproven",
        "conv1",
        "do this",
        "out/tiny.edgekit",
        "left float",
        "capture",
    ):
        assert word in text
    assert set(parsed.elements) <= ELEMENTS
    assert not [
        pair for pair in parsed.attributes if pair[1] in {"src", "href", "srcset", "style"} or pair[1][:2] == "on"
    ]
    assert "url(" not in page
    assert "@import" not in page
    assert html_report(result(), title="EfficientNet") == page


def test_tables_can_be_read_aloud():
    parsed = Page(html_report(result(), title="x"))
    assert parsed.elements.count("caption") == parsed.elements.count("table") == 4
    scopes = {value for tag, name, value in parsed.attributes if tag == "th" and name == "scope"}
    assert scopes == {"col", "row"}
    assert ("html", "lang", "en") in parsed.attributes


def test_empty_parts_are_left_out():
    error = ErrorReport(kind="input", text="no such file", where="a.onnx", remedy="Check the path.")
    page = html_report(json.loads(Result(status="error", exit=4, error=error).to_json()), title="a")
    parsed = Page(page)
    assert "table" not in parsed.elements
    assert "a.onnx: no such file" in parsed.text
    assert "Next: Check the path." in parsed.text


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></style></main>",
    "a&lt;b",
    "BODY TITLE",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_names_are_text_wherever_they_stand(text):
    check = Check(
        name=text, value=1.0, unit=text, budget=1.0, status="fail", provenance="measured", on=text, reason=text
    )
    finding = Finding(severity="warning", node=text, rule=text, text=text, remedy=text)
    stage = StageRun(name=text, seconds=1, cached=False, facts={text: text})
    error = ErrorReport(kind=text, text=text, where=text, remedy=text)
    told = result(checks=(check,), findings=(finding,), stages=(stage,), error=error, package=text, artifact=text,
                  coverage={text: text})  # fmt: skip
    parsed = Page(html_report(told, title=text))
    assert set(parsed.elements) <= ELEMENTS
    assert {name for _, name, _ in parsed.attributes} <= {
        "lang", "charset", "http-equiv", "content", "name", "scope", "class",
    }  # fmt: skip
    assert sum(text in part for part in parsed.text) >= 15
    assert html.escape(text) in html_report(told, title=text)


@given(st.text())
def test_any_text_makes_a_whole_page(text):
    told = result(package=text, coverage={text: [text]})
    page = html_report(told, title=text)
    assert set(Page(page).elements) <= ELEMENTS
    page.encode("utf-8")


@given(st.lists(st.tuples(st.text(), st.text(), st.text()), max_size=5))
def test_text_tables_are_lines_without_commands(rows):
    lines = text_table(("a", "b", "c"), rows)
    assert len(lines) == len(rows) + 2
    assert all(unicodedata.category(char) not in {"Cc", "Cs"} for line in lines for char in line)


def test_text_tables_are_aligned():
    lines = text_table(CHECKS, check_rows(result()))
    column = lines[0].index("status")
    assert [line[column:].split()[0] for line in lines[2:]] == ["unproven", "pass", "reported"]


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (None, "ms", "-"),
        (0.01234, "1", "1.23%"),
        (12.345, "ms", "12.3 ms"),
        (999.0, "B", "999 B"),
        (1000.0, "B", "1.00 kB"),
        (-2.5e6, "B", "-2.50 MB"),
        (3.2e9, "B", "3.20 GB"),
        (0.0, "", "0"),
    ],
)
def test_values_for_people(value, unit, expected):
    assert shown(value, unit) == expected

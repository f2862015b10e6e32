import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from pipeline.report import (
    Dialogue,
    Drawing,
    Section,
    Table,
    Text,
    Tiles,
    page,
    plots,
    readings,
)
from pipeline.report.page import viewer_link

LINK = viewer_link(stage="s", id="a&b<c")
KNOWN, UNKNOWN = {"value": 0.3, "low": 0.2, "high": 0.4}, {"value": 0.7, "low": None, "high": 0.8}


def drawings() -> dict[str, str]:
    name = "a <curve> & co"
    looks: list[dict[str, Any]] = [{"x": i, name: i / 10, "other": 0.3, "other_low": 0.2} for i in range(3)]
    looks[1] |= {"other_high": 0.4, f"{name}_low": 0.0, f"{name}_high": 0.2}
    looks.append({"x": 3, name: None})
    corners = [(0.2, 0.3), (0.8, 0.7)]
    bins = [{"predicted": x, "observed": of, "num_states": 5} for x, of in ((0.2, KNOWN), (0.8, UNKNOWN))]
    rows = {"one": KNOWN, "two": UNKNOWN, "three": dict.fromkeys(KNOWN)}
    shown = {"reward": 1.0, "audited": [(0, 0.5, 0.4, 0.6)]}
    return {
        "curves": plots.curves(
            "c", looks, (name, "other", "none"), x="x", y_label="y", level=0.2, marks=[(1, "m")]
        ),
        "reliability": plots.reliability("r", bins, rising=corners, links=[LINK, "../view.html#low=0.5"]),
        "points": plots.points("p", rows, x_label="x"),
        "compared": plots.compared("m", {"one": {name: KNOWN, "b": UNKNOWN}}, x_label="x"),
        "shares": plots.shares("s", {"one": {name: 3.0, "b": 1.0}, "two": {"b": 2.0}}),
        "value_path": plots.value_path("v", [0.5, 0.7], ["ok", "wrong"], **shown),
        "no audit": plots.value_path("w", [0.5], ["unknown"], reward=None),
    }


def texts_of(svg: str) -> set[str]:
    return {(e.text or "").strip() for e in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}


def test_names_are_shown_as_they_are_and_not_read_as_mathematics() -> None:
    names = [r"cost $\foo$", "a$_1$b", "5 $ and 6 $"]  # the first alone would end the page with an error
    drawn = plots.compared("m", {names[0]: {names[1]: KNOWN, names[2]: UNKNOWN}}, x_label="x")
    assert set(names) <= texts_of(drawn)


def test_hidden_characters_of_names_are_spelled_out_in_drawings() -> None:
    drawn = plots.compared("m", {"one": {"a\u202eb\u200b": KNOWN}}, x_label="x")
    assert "a<U+202E>b<U+200B>" in texts_of(drawn)
    assert not re.search("[\u202e\u200b]", drawn)


def test_what_is_named_in_percent_or_points_is_numbered_in_these() -> None:
    rows = {"one": {"value": 0.5, "low": 0.0, "high": 1.0}}
    for label in ("success (%)", "change (points)"):
        assert {label, "20", "80"} <= texts_of(plots.points("p", rows, x_label=label))
    assert "0.2" in texts_of(plots.points("p", rows, x_label="rmse"))
    long = [{"tokens": i, "a": i / 90, "b": i / 45} for i in range(45)]
    names = {"tokens": "generated tokens"}
    drawn = plots.curves("c", long, ("a", "b"), x="tokens", y_label="y (%)", labels=names)
    assert {"generated tokens", "100"} <= texts_of(drawn)
    assert "stroke-dasharray" in drawn  # without markers, colour alone would tell the two apart


@pytest.fixture
def html() -> str:
    blocks = [
        Text("PASS <script>alert(1)</script>", "pass"),
        Tiles((("86 %", "of the <differences>"),)),
        Table(("measure", "value"), (("a & b", "<i>1</i>"),), "caption", ("fail",)),
        *(Drawing(svg, name) for name, svg in drawings().items()),
        Dialogue("steps", (("<img src=x>", 0.25, "wrong", "why"), ("b", None, "ok", "")), LINK),
    ]
    return page("A <title>", [Section("One", tuple(blocks)), Section("Two", ())])


def test_drawings_are_well_formed_deterministic_as_wide_as_a_phone_and_keep_text_as_text() -> None:
    first = drawings()
    assert first == drawings()
    # A point without bounds does not pass for an exact one; a marked one stands where its value is.
    assert {"one", "two (no bounds)", "three"} <= texts_of(first["points"])
    low, high = (plots.value_path("v", [x, x], ["ok", "ok"], reward=0.0) for x in (0.1, 0.9))
    assert low != high
    assert {"a <curve> & co", "other", "m"} <= texts_of(first["curves"])
    assert "none" not in texts_of(first["curves"])
    for svg in first.values():
        root = ET.fromstring(svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        # Shown 358 pixels wide on a phone, made about as wide in points, so letters of 11 stay about 11.
        assert float(root.attrib["viewBox"].split()[2]) <= 365
        assert texts_of(svg)
        assert "date" not in svg.lower()


def test_points_and_dialogues_lead_to_their_rollouts_in_the_viewer(html: str) -> None:
    assert LINK == "../view.html#stage=s&id=a%26b%3Cc"
    escaped = LINK.replace("&", "&amp;")
    assert re.findall(r'xlink:href="(\.\./[^"]*)"', drawings()["reliability"]) == [
        escaped,
        "../view.html#low=0.5",
    ]
    assert f'<a href="{escaped}">this rollout in vdapo view</a>' in html


def test_drawings_of_one_page_share_no_ids(html) -> None:
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'(?:url\(|href=")#([^")]+)', html):
        assert target in ids


def test_every_block_is_on_the_page_and_text_is_escaped_wherever_it_comes_from(html) -> None:
    assert "<script" not in html
    assert "<img" not in html
    assert "<i>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "<title>A &lt;title&gt;</title>" in html
    assert html.count("<section") == 2
    assert "V = 25 % before this step" in html
    assert "<b>86 %</b>of the &lt;differences&gt;" in html
    assert '<tr class="fail"><td>a &amp; b</td>' in html


def test_a_page_asks_nothing_of_the_network_and_fits_a_phone(html) -> None:
    assert "default-src 'none'" in html
    assert 'name="viewport"' in html
    # Names of XML namespaces are no addresses to load; links stay inside the page, or lead to the viewer's.
    loads = re.findall(r'(?:src|href|xlink:href)="([^"]*)"', html) + re.findall(r"url\(([^)]*)\)", html)
    assert loads
    assert all(target.startswith(("#", "../view.html#")) for target in loads)
    assert "@import" not in html


def test_a_point_that_leads_somewhere_has_an_area_to_click_on() -> None:
    linked = re.findall(r"<a .*?</a>", drawings()["reliability"], re.DOTALL)
    assert len(linked) == 2
    assert not [area for area in linked if "fill: none" in area]


def test_a_wide_table_names_its_columns_in_every_cell_for_narrow_screens() -> None:
    table = Table(("name", "a", "b & c", ""), (("x", "1", "2", "3"),))
    html = page("t", [Section("s", (table, Table(("p", "q"), (("y", "4"),))))])
    assert '<td data-label="b &amp; c">2</td>' in html
    assert html.count('class="wide"') == 1
    assert "<td>y</td><td>4</td>" in html


def test_hidden_characters_are_spelled_out_wherever_text_stands_and_drawings_stay() -> None:
    evil, svg = "\x1b[31m\u202ecba\u200b", "<svg>\ufeff</svg>"
    table = Table(("a", "b", "c", evil), (("1", "2", "3", evil),), evil)
    steps = Dialogue(evil, [(f"first\nsecond {evil}", 0.5, "ok", evil)])
    html = page(evil, [Section(evil, (Text(evil), Tiles(((evil, evil),)), table, Drawing(svg, evil), steps))])
    assert not re.search("[\x1b\u202e\u200b]", html)
    assert html.count("␛[31m&lt;U+202E&gt;cba&lt;U+200B&gt;") == 16
    assert "first\nsecond" in html
    assert svg in html


def test_more_curves_than_colours_differ_in_their_lines_and_their_legend_leaves_room() -> None:
    entries = [{"x": i} | {f"arm {n}": i / (n + 2) for n in range(9)} for i in range(2)]
    few, many = (
        plots.curves("c", entries, [f"arm {n}" for n in range(of)], x="x", y_label="y", labels={"arm 0": "A"})
        for of in (5, 9)
    )
    assert "stroke-dasharray" not in few
    assert many.count("stroke-dasharray") == 2  # the ninth curve, and its line in the legend
    assert {"A", "arm 8"} <= texts_of(many)
    high_few, high_many = (float(re.search(r'height="([\d.]+)pt"', svg)[1]) for svg in (few, many))
    assert high_many > high_few + 50


def test_what_is_counted_in_bins_is_named() -> None:
    bins = [{"predicted": 0.2, "observed": KNOWN, "num_states": 5}]
    assert "steps" in texts_of(plots.reliability("r", bins, counted="steps"))


def test_what_has_nothing_to_show_is_left_out_and_a_section_says_so() -> None:
    columns = {"bare": {"ev": "0.5", "other": "1"}, "guided": {"rmse": "0.1"}}
    table = readings(columns, {"ev": "to 1", "rmse": "to 0", "nll": "to 0"}, "caption")
    assert table.header == ("measure", "bare", "guided", "how to read it")
    assert table.rows == (("ev", "0.5", "", "to 1"), ("rmse", "", "0.1", "to 0"))
    drawing = Drawing(plots.curves("c", [{"x": 1}], ("ev",), x="x", y_label=""), "its caption")
    html = page("t", [Section("a", (drawing, readings({"bare": {}}, {"ev": ""}, "its caption")), "Nothing.")])
    assert '<p class="note">Nothing.</p>' in html
    assert "its caption" not in html

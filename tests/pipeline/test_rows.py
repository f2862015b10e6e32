"""Rows that people bring: what is read, where columns are found, what is said of rows that cannot be used."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError
from pipeline.rows import BadRowError, Field, Row, Source, Table, columns_in, read_rows, text_of, values_of

ROWS: list[dict[str, Any]] = [{"q": "1 + 1?", "a": {"value": 2}}, {"q": 'ü "x"', "a": {"value": -3}}]
FIELDS = {"q": Field(("q",)), "a": Field(("a.value", "other"))}


def table_of(*values: dict[str, Any]) -> Table:
    return Table([Row("some", number, row) for number, row in enumerate(values, 1)], [], list(values[0]))


@pytest.mark.parametrize(
    "name", ["rows.jsonl", "rows.JSONL", "r.jsonl.GZ", "r.parquet", "r.Parquet", "r.json", "r.JSON"]
)
def test_a_source_is_read_with_its_place_whatever_its_form(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    more = [{**row, "long": "x" * 100} for row in ROWS]
    lines = "".join(json.dumps(row) + "\n\n" for row in more)
    kind = name.lower().partition(".")[2]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(more), path)
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(lines if kind == "jsonl" else json.dumps(more))
    table = read_rows(Source(source=str(path)), FIELDS, {})
    assert [dict(row.values) for row in table.rows] == ROWS  # without the column that holds no field
    assert table.left_out == []
    assert [row.number for row in table.rows] == ([1, 3] if "jsonl" in kind else [1, 2])
    with pytest.raises(
        ConfigError, match=r"columns\.q = x, which no row has\. The rows have: q, a, long\. Next"
    ):
        columns_in(read_rows(Source(source=str(path)), FIELDS, {"q": "x"}), FIELDS, {"q": "x"})
    other = {"b": Field(("b", "c"))}
    with pytest.raises(ConfigError, match=r"for b; looked for: b, c\. The rows have: q, a, long\. Next"):
        columns_in(read_rows(Source(source=str(path)), other, {}), other, {})


def test_of_a_parquet_file_is_read_what_a_field_may_be_in_up_to_the_first_column_with_values(
    tmp_path: Path,
) -> None:
    rows = [{"answer": "4", "none": None, "solution": "long", "m": {"gold": None}, "m.x": 1, "more": 2}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    for columns, given, kept in (
        (("none", "answer", "solution"), {}, {"none", "answer"}),
        (("m.gold", "answer", "solution"), {}, {"m", "answer"}),
        (("m.x", "answer"), {}, {"m", "m.x"}),
        (("answer",), {"x": "more"}, {"more"}),
        (("no",), {}, set()),
    ):
        fields = {"x": Field(columns)}
        table = read_rows(Source(source=str(tmp_path / "rows.parquet")), fields, given)
        assert [set(row.values) for row in table.rows] == [kept]
        assert table.names == list(rows[0])
    assert columns_in(table, {}, {}) == {}


def test_a_mark_of_byte_order_is_no_part_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"q": 1}\n' + b"\xef\xbb\xbf" + b'{"q": 2}\n')
    table = read_rows(Source(source=str(path)), FIELDS, {})
    assert ([row.values for row in table.rows], table.left_out) == ([{"q": 1}, {"q": 2}], [])


def test_lines_that_hold_no_row_are_left_out_with_their_reasons(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [
        b'{"q": 1}',
        b'{"q": 1',
        b"[1]",
        b'{"q": NaN}',
        b'{"q": "\xff"}',
        b'{"q": "\\ud800"}',
        b"1" * 5000,
    ]
    path.write_bytes(b"\n".join(lines))
    rows, left_out, names = read_rows(Source(source=str(path)), FIELDS, {})
    assert ([row.number for row in rows], names) == ([1], ["q"])
    kinds = [(row.row, row.kind) for row in left_out]
    assert kinds == [(2, "no_json"), (3, "no_object"), *((n, "no_json") for n in (4, 5, 6, 7))]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", "", "has no row"),
        ("a.jsonl", "{", "has no row; line 1: no JSON"),
        ("a.parquet", "PAR1", "not a readable Parquet file"),
        ("a.jsonl.gz", "{}", "cannot be read"),
        ("a.jsonl", None, "is no file"),
        ("a.JSONL.gz", None, "is no file"),
        ("a.txt", "{}", r"another kind; allowed: \.jsonl, \.jsonl\.gz, \.parquet, \.json, \.csv\. Next"),
    ],
)
def test_a_source_without_a_row_is_a_wrong_setting(
    tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_rows(Source(source=str(tmp_path / name)), FIELDS, {})


def test_a_data_set_by_name_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"\[readers\]"):
        read_rows(Source(source="cais/mmlu", config="all"), FIELDS, {})


def test_a_column_is_the_first_that_any_row_of_the_source_has_and_the_same_for_all() -> None:
    fields = {
        "answer": Field(("model.truth", "answer", "solution")),
        "level": Field(("level",), required=False),
    }
    table = table_of(
        {"answer": None, "solution": "s"}, {"answer": "a", "solution": "s", "model": {"truth": None}}
    )
    rows, columns = table.rows, columns_in(table, fields, {})
    assert columns == {"answer": "answer"}
    with pytest.raises(BadRowError, match="column answer is empty") as caught:  # never another row's column
        values_of(rows[0], columns, fields)
    assert caught.value.kind == "no_answer"
    assert values_of(rows[1], columns, fields) == {"answer": "a", "level": None}


def test_a_mapping_reaches_into_columns_and_whole_names_go_first() -> None:
    row = {"meta": {"gold": ["x", "y"]}, "meta.gold": "dotted"}
    fields = {"answer": Field(())}
    for column, value in {"meta.gold": "dotted", "meta": {"gold": ["x", "y"]}}.items():
        columns = columns_in(table_of(row), fields, {"answer": column})
        assert values_of(Row("some", 1, row), columns, fields) == {"answer": value}
    nested = table_of({"meta": {"gold": ["x", "y"]}})
    columns = columns_in(nested, fields, {"answer": "meta.gold.1"})
    assert values_of(nested.rows[0], columns, fields) == {"answer": "y"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"answr": "a"}, "answr; allowed: answer"),
        ({"answer": "gold"}, r"columns\.answer = gold, which no row has\. The rows have: q, a"),
        ({}, "no column for answer; looked for: answer, solution. The rows have: q, a"),
    ],
)
def test_a_mapping_that_names_nothing_is_refused(given: dict[str, str], message: str) -> None:
    fields = {"answer": Field(("answer", "solution"))}
    with pytest.raises(ConfigError, match=message):
        columns_in(table_of({"q": 1, "a": 2}), fields, given)


def test_a_text_is_a_text_or_a_number() -> None:
    assert text_of({"x": 3}, "x") == "3"
    for wrong in ("", "  ", True, ["a"], None):
        with pytest.raises(BadRowError, match="allowed: a text or a number"):
            text_of({"x": wrong}, "x")


def test_sources_have_labels_of_their_own_and_a_file_one_however_it_is_spelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text("{}")
    file = Source.model_validate("./a.jsonl")
    assert (file.label, file.files) == ("a.jsonl", [Path("a.jsonl")])
    named = {"source": "cais/mmlu", "config": "all", "split": "test", "revision": "c30699e"}
    assert Source.model_validate(named).label == "cais/mmlu:all:test:c30699e"
    assert Source.model_validate(named).files == []

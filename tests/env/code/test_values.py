from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from env.code.compare import agree
from env.code.values import MAX_DEPTH, decode, encode

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
KEYS = st.integers() | st.text() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.sets(KEYS, max_size=3)
    ),
    max_leaves=10,
)
FEW = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@FEW
@given(VALUES)
def test_plain_data_come_back_as_they_were(value: Any) -> None:
    back = decode(encode(value))
    assert back == value
    assert agree(back, value, "exact")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["int", "dict", "set", "tuple", "float", "x"]), inner, max_size=2)
    ),
)


@FEW
@given(JSON)
def test_what_is_read_can_be_written_again(value: Any) -> None:
    try:
        read = decode(value)
    except ValueError:
        return
    assert decode(encode(read)) == read


class Equal(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def test_a_value_of_a_subclass_is_read_as_its_base_and_loses_its_own_equality() -> None:
    back = decode(encode([Equal(3), {Equal(4): Equal(5)}]))
    assert [type(item) for item in back] == [int, dict]
    assert not agree(back, [7, {4: 5}], "exact")
    assert agree(back, [3, {4: 5}], "exact")


@pytest.mark.parametrize("value", [object(), len, iter([1]), "\ud800", {1: object()}])
def test_what_is_no_plain_data_is_not_written(value: Any) -> None:
    with pytest.raises(ValueError, match=r"no plain data|surrogates"):
        encode(value)


def test_what_is_too_deep_is_neither_written_nor_read() -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    with pytest.raises(ValueError, match="deep"):
        encode(deep)
    with pytest.raises(ValueError, match="deep"):
        decode([[deep]])


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"int": "x"},
        {"int": 3},
        {"list": [1]},
        {"float": "1", "int": "2"},
        {"dict": [[1]]},
        {"dict": [[[1], 2]]},
        {"dict": 3},
        {"set": [[1]]},
        {"complex": [1]},
        {"complex": "i"},
        {"bytes": "z"},
        {"Counter": []},
    ],
    ids=repr,
)
def test_what_nobody_writes_is_refused(value: Any) -> None:
    with pytest.raises(
        ValueError, match=r"encode|invalid literal|non-hex|could not convert|complex|required"
    ):
        decode(value)


@pytest.mark.parametrize(
    ("got", "expected", "comparison", "same"),
    [
        (True, 1, "exact", False),
        (1.0, 1, "exact", False),
        ((1, 2), [1, 2], "exact", False),
        ([1, [2.0]], [1, [2.0]], "exact", True),
        ({"a": 1}, {"a": 1, "b": 2}, "exact", False),
        (float("nan"), float("nan"), "exact", False),
        (float("nan"), 1.0, "approx", False),
        (float("inf"), 1e308, "approx", False),
        (10**400, 1.0, "approx", False),
        (True, 1.0, "approx", False),
        ([1, 2.0], [1.0, 2.0 + 1e-9], "approx", True),
        ([1, 2.0], [1.0, 2.001], "approx", False),
        (1e-12, 0.0, "approx", True),
        (5e-10, 0.0, "approx", True),
        (2e-9, 0.0, "approx", False),
        (1 + 5e-7, 1.0, "approx", True),
        (1 + 2e-6, 1.0, "approx", False),
        ("1.0", 1.0, "approx", False),
        ([[2], [1]], [[1], [2]], "unordered", True),
        ([1, 1, 2], [1, 2, 2], "unordered", False),
        ([1, 2, 2], [1, 2], "unordered", False),
        ((1, 2), [1, 2], "unordered", False),
        ([True], [1], "unordered", False),
    ],
)
def test_a_value_agrees_or_not(got: Any, expected: Any, comparison: Any, same: bool) -> None:
    assert agree(got, expected, comparison) is same

import threading
from collections.abc import Iterator

import pytest

from pipeline.processes import threads
from pipeline.processes.threads import in_threads


def test_results_come_in_order_however_long_each_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)  # on a machine of one core, too
    last = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert last.wait(60)
        elif item == 1:
            last.set()
        return item * item

    assert list(in_threads(work, range(9))) == [n * n for n in range(9)]
    assert list(in_threads(work, [])) == []


def test_items_are_drawn_two_a_thread_ahead_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    drawn = 0

    def items() -> Iterator[int]:
        nonlocal drawn
        while drawn < 100:
            drawn += 1
            yield drawn

    for taken, _ in enumerate(in_threads(abs, items()), start=1):
        assert drawn <= taken + 4


def test_an_error_is_raised_at_its_place_and_ends_it() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise ValueError("the third")
        return item

    results = in_threads(work, range(1, 10**9))
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ValueError, match="the third"):
        next(results)

"""Which forms would do for several lines at once: unions of minimal sets within the form's limit."""

from __future__ import annotations

from collections.abc import Sequence, Set

from env.phone.world.lexicon import REFERENCE
from env.phone.world.rules import FieldSet


def sufficient_forms(
    rules: Sequence[Sequence[FieldSet]], available: Set[str], most_fields: int
) -> tuple[FieldSet, ...]:
    """Returns every union of one minimal set per line that the customer can give, the smallest first.

    A reference comes from a line and takes no room in the form.

    Args:
        rules: minimal sets of each line.
        available: fields that the customer can give.
        most_fields: the form's limit.

    Example:
        >>> rules = [[frozenset("ab")], [frozenset("b"), frozenset("c")]]
        >>> [sorted(form) for form in sufficient_forms(rules, set("abc"), 3)]
        [['a', 'b'], ['a', 'b', 'c']]
    """
    unions: set[FieldSet] = {frozenset()}
    for sets in rules:
        possible = [needed - {REFERENCE} for needed in sets]
        possible = [needed for needed in possible if needed <= available]
        unions = {
            union for so_far in unions for needed in possible if len(union := so_far | needed) <= most_fields
        }
    return tuple(sorted(unions, key=lambda form: (len(form), sorted(form))))

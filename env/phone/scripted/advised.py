"""What corrective feedback says, read back from its text: all that an agent without the world has of it."""

from __future__ import annotations

import re
from collections.abc import Collection

from env.phone.solver.solver import Advice
from env.phone.world.lexicon import FIELDS

_FORM = re.compile(r"\bAsk for ([a-z0-9_]+(?:, [a-z0-9_]+)*) in the one form\.")
_ROUTE = re.compile(r"\bFor (R\d+) call ([^.]+)\.")


def read_advice(text: str, names: Collection[str]) -> Advice | None:
    """Returns the form and the routes that a feedback's text advises, None where it advises no form.

    Args:
        text: of the feedback.
        names: of the directory's lines; a route with any other name is passed over.
    """
    form = _FORM.search(text)
    if form is None:
        return None
    routes = [(key, tuple(words.split(", then "))) for key, words in _ROUTE.findall(text)]
    return Advice(
        frozenset(form.group(1).split(", ")) & set(FIELDS),
        tuple((key, route) for key, route in routes if set(route) <= set(names)),
    )

"""Failures of an episode that are not the policy's: counted by kind, never a reward."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class FailureError(Exception):
    """An episode cannot go on or be graded; `kind` is the rollout's env_status."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        # Kinds are counted, so a whole sentence goes to the event, not into the status.
        self.kind = kind if kind.isidentifier() else "infra_error"
        self.detail = detail if kind.isidentifier() else f"{detail}: {kind}"


def guarded(name: str, call: Callable[[], T]) -> T:
    """Returns the call's result; an exception inside an environment becomes a counted failure."""
    try:
        return call()
    except Exception as error:
        raise FailureError("infra_error", f"{name}: {type(error).__name__}") from error

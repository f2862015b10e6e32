"""Which held-out splits something is measured on."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from env.phone.world.tasks import SPLITS


def _each_held_out_and_once(splits: tuple[str, ...]) -> tuple[str, ...]:
    if not set(splits) <= set(SPLITS[1:]) or len(set(splits)) < len(splits):
        raise ValueError(
            f"should name held-out splits, each once; allowed: {', '.join(SPLITS[1:])}. Tasks of train say "
            "nothing of unseen ones"
        )
    return splits


HeldOutSplits = Annotated[tuple[str, ...], AfterValidator(_each_held_out_and_once)]

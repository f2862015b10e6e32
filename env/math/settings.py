"""What math's tasks are made from."""

from typing import Self

from pydantic import model_validator

from env.math.families import FAMILIES, LEVELS
from env.sources import TableTasks
from pipeline.settings import setting


class MathTasks(TableTasks):
    """Tasks: problems of families or, where `rows` names some, of a data set."""

    families: dict[str, float] = setting(
        {"arith": 0.25, "linear": 0.25, "word": 0.25, "units": 0.25},
        description="share of tasks per family: chain_add (for tiny models), arith, linear, word, units",
    )
    level_shares: dict[int, float] = setting(
        {1: 0.2, 2: 0.2, 3: 0.2, 4: 0.2, 5: 0.2}, description="share of tasks per level, 1 to 5"
    )

    @model_validator(mode="after")
    def _shares_are_shares(self) -> Self:
        for name, shares, known in (
            ("families", self.families, list(FAMILIES)),
            ("level_shares", self.level_shares, list(LEVELS)),
        ):
            values: list[float] = list(shares.values())
            if any(share < 0 for share in values) or abs(sum(values) - 1) > 1e-6:
                raise ValueError(f"tasks.{name} = {shares}; shares are >= 0 and add up to 1")
            if unknown := set(shares) - set(known):
                allowed = ", ".join(map(str, known))
                raise ValueError(f"tasks.{name} has {sorted(map(str, unknown))}; allowed: {allowed}")
        return self

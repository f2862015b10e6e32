"""Arms of a comparison."""

from typing import Self

from pydantic import JsonValue, model_validator

from pipeline.settings import Section, setting


class Comparison(Section):
    """Arms, each with several seeds, that are held against one of them."""

    arms: dict[str, dict[str, JsonValue]] = setting(
        {}, "name of an arm -> what it changes, as section.key: value; the rest of the file is all arms'"
    )
    method: str = setting("v_dapo", "the arm that every other one is held against")
    seeds: tuple[int, ...] = setting(
        (0, 1, 2, 3, 4), "of each arm: tasks, starting policy and all else follow from it", min_length=1
    )
    threshold: float = setting(0.7, "success whose cost is compared, fixed beforehand", gt=0, lt=1)

    @model_validator(mode="after")
    def _names_its_arms(self) -> Self:
        if self.arms and self.method not in self.arms:
            raise ValueError(f"comparison.method = {self.method} is no arm; arms: {', '.join(self.arms)}")
        if len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"comparison.seeds = {list(self.seeds)}; each is >= 0 and given once")
        return self

"""What the phone's tasks are made from."""

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from env.offer import TaskSettings
from env.phone.world.levels import LEVEL_SHARES
from pipeline.settings import setting


class PhoneTasks(TaskSettings):
    """Tasks: worlds, companies, splits."""

    num_companies: int = setting(100, ge=4, description="companies over all splits")
    level_shares: dict[int, float] = setting(
        dict(LEVEL_SHARES), description="share of companies, and so of tasks, per level, 1 to 5"
    )
    files: str | None = setting(
        None,
        description="folder with companies.jsonl and tasks.jsonl (env/phone/files.py): makes exactly "
        "these tasks; sizes and shares then say nothing of them",
        advanced=True,
    )
    reward: Literal["terminal", "priced", "ladder"] = setting(
        "terminal",
        description="success alone; less the price of faults and probes; or with the ladder of each request "
        "as a potential on the way",
        advanced=True,
    )

    @property
    def read_files(self) -> list[Path]:
        """Returns the files of `files`."""
        return sorted(Path(self.files).glob("*.jsonl")) if self.files else []

    @model_validator(mode="after")
    def _shares_are_shares(self) -> Self:
        shares = self.level_shares
        if any(share < 0 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-6:
            raise ValueError(f"tasks.level_shares = {shares}; shares are >= 0 and add up to 1")
        return self

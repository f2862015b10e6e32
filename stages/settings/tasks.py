"""Tasks: worlds, companies, splits."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from env.phone.world.levels import LEVEL_SHARES
from pipeline.settings import Section


class Tasks(Section):
    """Tasks: worlds, companies, splits."""

    environment: Literal["phone"] = Field("phone", description="which environment makes and grades tasks")
    num_companies: int = Field(100, ge=4, description="companies over all splits")
    num_train: int = Field(500, ge=1, description="tasks to train on")
    num_val: int = Field(100, ge=1, description="new tasks of the training companies")
    num_test: int = Field(100, ge=1, description="tasks of each unseen split")
    level_shares: dict[int, float] = Field(
        dict(LEVEL_SHARES), description="share of companies, and so of tasks, per level, 1 to 5"
    )
    companies_file: str | None = Field(
        None, description="companies.jsonl of the companies of tasks_file (env/phone/world/files.py)"
    )
    tasks_file: str | None = Field(
        None, description="tasks.jsonl: makes exactly these tasks; sizes and shares then say nothing of them"
    )

    @model_validator(mode="after")
    def _files_come_together(self) -> Tasks:
        if (self.companies_file is None) != (self.tasks_file is None):
            raise ValueError("tasks.companies_file and tasks.tasks_file come together; give both or neither")
        return self

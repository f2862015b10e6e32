"""Tasks: worlds, companies, splits."""

from __future__ import annotations

from typing import Literal

from env.phone.world.levels import LEVEL_SHARES
from pipeline.settings import Section, setting


class Tasks(Section):
    """Tasks of the phone: worlds, companies, splits, and what solving one earns."""

    environment: Literal["phone"] = setting("phone", description="which environment makes and grades tasks")
    num_companies: int = setting(100, ge=4, description="companies over all splits")
    num_train: int = setting(500, ge=1, description="tasks to train on")
    num_val: int = setting(100, ge=1, description="new tasks of the training companies")
    num_test: int = setting(100, ge=1, description="tasks of each unseen split")
    level_shares: dict[int, float] = setting(
        dict(LEVEL_SHARES), description="share of companies, and so of tasks, per level, 1 to 5"
    )
    files: str | None = setting(
        None,
        description="folder with companies.jsonl and tasks.jsonl (env/phone/world/files.py): makes exactly "
        "these tasks; sizes and shares then say nothing of them",
        advanced=True,
    )

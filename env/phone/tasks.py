"""Makes the phone tasks of all splits: disjoint by construction, each proven solvable."""

import math
from collections.abc import Collection
from dataclasses import replace
from random import Random

from env.phone.episode.calls import State
from env.phone.solver.solver import fewest_turns
from env.phone.world.companies import MAX_COMPANIES, CompanyKey, company_name, openings
from env.phone.world.levels import LEVEL_SHARES, level_settings
from env.phone.world.lexicon import TRAINING_INDUSTRIES, UNSEEN_INDUSTRIES
from env.phone.world.world import World, WorldKey, make_world
from pipeline.errors import ConfigError
from pipeline.ids import digest, seed_of
from pipeline.types import Task

SPLITS = ("train", "val", "test_unseen_company", "test_unseen_industry", "test_shifted_prior")
COMPANY_SHARES = {
    "train": 0.50,  # val's tasks are new tasks of these companies
    "test_unseen_company": 0.20,
    "test_unseen_industry": 0.15,
    "test_shifted_prior": 0.15,
}
MAX_DRAWS = 20
SEARCH_TURNS = 1  # a player has to look the numbers up, which the solver knows


def generate_tasks(
    *,
    num_companies: int = 100,
    num_train: int = 500,
    num_val: int = 100,
    num_test: int = 100,
    level_shares: dict[int, float] | None = None,
    seed: int = 0,
) -> list[Task]:
    """Returns the tasks of all splits, in the order of `SPLITS`; `num_test` is of each test split.

    No company, name or number is in two of the company groups, and a rule that departs from the prior is
    never in both a training and a test company. Validation tasks are new requests to training companies.
    Every task is proven solvable by the solver.
    Raises ConfigError for an unknown level, one that gets no training company, and counts that do not fit.
    """
    shares = {level: share for level, share in (level_shares or LEVEL_SHARES).items() if share > 0}
    for level in shares:
        level_settings(level)
    if not shares:
        raise ConfigError("tasks.level_shares gives no level a share; give at least one level more than 0")
    if not 4 <= num_companies <= MAX_COMPANIES:
        raise ConfigError(f"tasks.num_companies = {num_companies}; allowed: 4 to {MAX_COMPANIES}")
    groups = _companies(num_companies, shares, seed)
    asked = set(shares) if level_shares else set()  # the default's levels need not all be there
    if missing := sorted(asked - {company.level for company in groups["train"]}):
        raise ConfigError(
            f"tasks.num_companies = {num_companies} leaves {len(groups['train'])} to train on, none of level "
            f"{', '.join(map(str, missing))}. Give more companies, or these levels no share in "
            "tasks.level_shares"
        )
    # Validation takes the front of each company's openings and training the rest, so no prompt is in both.
    per_company = math.ceil(num_val / len(groups["train"]))
    tasks = _split_tasks("train", groups["train"], num_train, skip=per_company)
    tasks += _split_tasks("val", groups["train"], num_val, reserved=per_company)
    for split in SPLITS[2:]:
        tasks += _split_tasks(split, groups[split], num_test)
    return tasks


def practice_tasks(
    num_tasks: int, *, level_shares: dict[int, float], seed: int, held_out: Collection[str]
) -> list[Task]:
    """Returns tasks of throwaway companies, to learn the trade on: reading a directory, filling a form.

    Each company has one task and is made from other seeds than any split's, so nothing about it is worth
    remembering. Names are few and recur, but none of `held_out`. Industries and halves are those of training
    companies, so a test company's departure from the prior is never drawn here.
    """
    tasks: list[Task] = []
    block = 0
    while len(tasks) < num_tasks:
        companies = _companies(MAX_COMPANIES, level_shares, seed_of(seed, "practice", block))["train"]
        block += 1
        fresh = [key for key in companies if company_name(key.seed, key.index) not in held_out]
        tasks += _split_tasks("practice", fresh, min(len(fresh), num_tasks - len(tasks)))
    return tasks


def _apportion(total: int, shares: dict[str, float] | dict[int, float]) -> list[int]:
    """Returns whole numbers that add up to `total`, by largest remainder."""
    scale = total / sum(shares.values())
    exact = [share * scale for share in shares.values()]
    counts = [int(part + 1e-9) for part in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def industries_of(group: str) -> tuple[str, ...]:
    """Returns the industries that companies of a group may have."""
    return UNSEEN_INDUSTRIES if group == "test_unseen_industry" else TRAINING_INDUSTRIES


def company_key(seed: int, index: int, level: int, industry: str, group: str) -> CompanyKey:
    """Returns the key of a company of a group: a key of `COMPANY_SHARES`."""
    half = "train" if group == "train" else "test"
    return CompanyKey(seed, index, level, industry, half, shifted=group == "test_shifted_prior")


def _companies(num_companies: int, shares: dict[int, float], seed: int) -> dict[str, list[CompanyKey]]:
    """Returns the company keys of each group; every group has a company."""
    counts = dict(zip(COMPANY_SHARES, _apportion(num_companies - 4, COMPANY_SHARES), strict=True))
    groups: dict[str, list[CompanyKey]] = {}
    index = 0
    for group, extra in counts.items():
        count = extra + 1
        rng = Random(f"{seed}:companies:{group}")
        levels = [level for level, n in zip(shares, _apportion(count, shares), strict=True) for _ in range(n)]
        rng.shuffle(levels)
        industries = industries_of(group)
        start = rng.randrange(len(industries))
        # Industries go round within each level, so that level and industry do not confound each other.
        seen: dict[int, int] = {}
        keys = []
        for level in levels:
            place = seen[level] = seen.get(level, start - 1) + 1
            keys.append(company_key(seed, index, level, industries[place % len(industries)], group))
            index += 1
        groups[group] = keys
    return groups


def _split_tasks(
    split: str, companies: list[CompanyKey], num_tasks: int, skip: int = 0, reserved: int | None = None
) -> list[Task]:
    """Returns a split's tasks, spread evenly over its companies.

    `skip` openings at the front of each company's list belong to another split, which gives their number as
    `reserved` and uses no others.
    """
    tasks = []
    for index in range(num_tasks):
        company = companies[index % len(companies)]
        turn = index // len(companies)
        available = len(openings(company))
        front = min(skip if reserved is None else reserved, available // 2)
        opening = front + turn % (available - front) if reserved is None else turn % max(1, front)
        number = turn + (1_000_000 if reserved is not None else 0)
        tasks.append(_task(split, index, WorldKey(company, opening, number)))
    return tasks


def _task(split: str, index: int, key: WorldKey) -> Task:
    """Returns the first solvable task of a key; it counts the draws that were not."""
    for draw in range(MAX_DRAWS):
        drawn = replace(key, draw=draw)
        if not unsolvable(make_world(drawn)):
            return task_of(split, index, drawn)
    raise RuntimeError(f"no solvable world in {MAX_DRAWS} draws of {key}")


def task_of(split: str, index: int, key: WorldKey) -> Task:
    """Returns the task of a key, solvable or not."""
    world = make_world(key)
    lines = world.needed_lines()
    text = key.to_text()
    details = {
        "industry": world.company.industry,
        "kind": world.requests[0].kind,
        "deviates": any(line.deviates for line in lines),
        "user": world.user,
        "optimal_turns": fewest_turns(world, State()),
        "num_redrawn": key.draw,
    }
    if world.level.edges:
        details |= {"requests": len(world.requests), "lines": len(lines)}
    return Task(
        task_id=digest("phone", text),
        data_source="phone",
        split=split,
        level=world.company.level,
        prompt=({"role": "user", "content": world.opening},),
        style="rule",
        ground_truth=text,
        ability="tool_use",
        cluster=world.company.name,
        index=index,
        details=details,
    )


def unsolvable(world: World) -> str:
    """Returns why a world's task cannot be solved, "" for one that can.

    The generator makes no such world; this guards that, and refuses what files ask for.
    """
    turns = fewest_turns(world, State(tick=SEARCH_TURNS)) + SEARCH_TURNS
    most = world.level.max_turns
    return f"a shortest plan has {turns} messages, the level allows {most}" if turns > most else ""

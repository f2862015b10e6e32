"""Companies and tasks as files that people may edit: JSON lines, checked row by row, field by field.

    python -m env.phone.files FOLDER --companies 100 --train 500 --val 100 --test 100 --seed 0

writes FOLDER/companies.jsonl and FOLDER/tasks.jsonl, what the generator would make. A row says from what a
company or a task is made, never a hidden value. With `tasks.files`, the folder of both,
`make tasks` makes exactly these tasks, and refuses what is malformed, unsolvable, or there twice.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from env.phone.tasks import (
    COMPANY_SHARES,
    SPLITS,
    company_key,
    generate_tasks,
    industries_of,
    task_of,
    unsolvable,
)
from env.phone.world.companies import CompanyKey, openings
from env.phone.world.levels import LEVEL_SHARES, LEVELS
from env.phone.world.world import ALLOWED, WorldKey, make_world, refusal
from pipeline.errors import ConfigError
from pipeline.types import Task

COMPANY_FIELDS: dict[str, Sequence[object]] = {
    **{name: ALLOWED[name] for name in ("seed", "index", "level", "industry")},
    "group": tuple(COMPANY_SHARES),
}
TASK_FIELDS: dict[str, Sequence[object]] = {
    "split": SPLITS,
    "company": ALLOWED["index"],
    **{name: ALLOWED[name] for name in ("opening", "number", "draw")},
}
"""field -> what it may hold, as far as that does not depend on the company."""


def write_files(tasks: Sequence[Task], folder: Path) -> None:
    """Writes companies.jsonl and tasks.jsonl, from which `read_files` makes the same tasks."""
    companies: dict[int, dict[str, Any]] = {}
    rows = []
    for task in tasks:
        key = WorldKey.from_text(task.ground_truth)
        company = key.company
        group = "train" if task.split == "val" else task.split
        made_from = (company.seed, company.index, company.level, company.industry, group)
        companies[company.index] = dict(zip(COMPANY_FIELDS, made_from, strict=True))
        asked = (task.split, company.index, key.opening, key.number, key.draw)
        rows.append(dict(zip(TASK_FIELDS, asked, strict=True)))
    folder.mkdir(parents=True, exist_ok=True)
    for name, some in (("companies", [companies[index] for index in sorted(companies)]), ("tasks", rows)):
        text = "".join(json.dumps(row) + "\n" for row in some)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def read_files(companies_file: Path, tasks_file: Path) -> list[Task]:
    """Returns the tasks of two files, in their order.

    Raises ConfigError naming file, row and field of what is malformed, there twice, or cannot be solved.
    """
    companies = _read_companies(companies_file)
    tasks: list[Task] = []
    seen: dict[str, int] = {}
    prompts: dict[str, tuple[str, int]] = {}
    counts = dict.fromkeys(SPLITS, 0)
    for number, row in _rows(tasks_file, TASK_FIELDS):
        where = f"{tasks_file}: row {number}"
        if row["company"] not in companies:
            raise _wrong(where, "company", row["company"], f"an index of {companies_file}")
        company, group = companies[row["company"]]
        if (wanted := "train" if row["split"] == "val" else row["split"]) != group:
            allowed = f"company {row['company']} is of group {group}, not {wanted}"
            raise _wrong(where, "split", row["split"], allowed)
        if allowed := refusal(row["opening"], range(len(openings(company)))):
            raise _wrong(where, "opening", row["opening"], allowed)
        key = WorldKey(company, row["opening"], row["number"], row["draw"])
        task = task_of(row["split"], counts[row["split"]], key)
        counts[row["split"]] += 1
        if task.task_id in seen:
            raise ConfigError(f"{where} is the same task as row {seen[task.task_id]}; remove one of them")
        seen[task.task_id] = number
        prompt = task.prompt[0]["content"]
        other, first = prompts.setdefault(prompt, (task.split, number))
        if other != task.split:
            raise _wrong(where, "opening", row["opening"], f"one that {other} (row {first}) does not use")
        if problem := unsolvable(make_world(key)):
            raise ConfigError(f"{where} cannot be solved: {problem}; remove it, or give another draw")
        tasks.append(task)
    if empty := [split for split in ("train", "val") if not counts[split]]:
        raise ConfigError(
            f"{tasks_file} has no row of split {' and none of '.join(empty)}; "
            "give at least one of train and one of val"
        )
    return tasks


def _read_companies(path: Path) -> dict[int, tuple[CompanyKey, str]]:
    found: dict[int, tuple[CompanyKey, str]] = {}
    seed: int | None = None
    for number, row in _rows(path, COMPANY_FIELDS):
        where = f"{path}: row {number}"
        seed = row["seed"] if seed is None else seed
        if row["seed"] != seed:
            allowed = f"{seed} as in row 1: one seed keeps names and numbers apart"
            raise _wrong(where, "seed", row["seed"], allowed)
        own = industries_of(row["group"])
        if row["industry"] not in own:
            raise _wrong(where, "industry", row["industry"], f"{', '.join(own)} in group {row['group']}")
        if row["index"] in found:
            raise _wrong(where, "index", row["index"], "an index that no earlier row has")
        found[row["index"]] = company_key(**row), row["group"]
    if not found:
        raise ConfigError(f"{path} has no row; give at least one company")
    return found


class _TwiceError(ValueError):
    """A row names a field twice, so what it says depends on the reader; the text is the field."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in pairs:
        if name in row:
            raise _TwiceError(name)
        row[name] = value
    return row


def _rows(path: Path, fields: dict[str, Sequence[object]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (row from 1, its object) with exactly these fields, each with what it may hold."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; give a file of JSON lines") from error
    for number, line in enumerate(lines, start=1):
        where = f"{path}: row {number}"
        try:
            row = json.loads(line, object_pairs_hook=_unique)
        except _TwiceError as error:
            raise ConfigError(f"{where}, field {error}: there twice; name it once") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where} is no JSON ({error}); write one object per line") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{where} is {type(row).__name__}, not an object with {', '.join(fields)}")
        for name in (*row, *fields):
            if name not in fields:
                raise ConfigError(f"{where}, field {name}: unknown; known: {', '.join(fields)}")
            if name not in row:
                raise ConfigError(f"{where}, field {name}: missing; a row has {', '.join(fields)}")
            if allowed := refusal(row[name], fields[name]):
                raise _wrong(where, name, row[name], allowed)
        yield number, row


def _wrong(where: str, field: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"{where}, field {field}: got {value!r}; allowed: {allowed}. Next: mend this row")


def main(argv: Sequence[str] | None = None) -> None:
    """Writes what the generator makes as two files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    sizes = {"companies": 100, "train": 500, "val": 100, "test": 100}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--levels", type=int, nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    asked = {f"num_{name}": getattr(options, name) for name in sizes}
    shares = {level: LEVEL_SHARES[level] for level in options.levels}
    tasks = generate_tasks(**asked, level_shares=shares, seed=options.seed)
    write_files(tasks, options.folder)
    print(f"wrote {options.folder / 'companies.jsonl'} and tasks.jsonl beside it: {len(tasks)} tasks")


if __name__ == "__main__":
    main()

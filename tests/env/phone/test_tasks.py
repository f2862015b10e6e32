"""Splits are disjoint, worlds are pure functions of their keys, levels that are not built are refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from env.phone.offer import PHONE
from env.phone.scripted.policies import play_scripted
from env.phone.solver.solver import optimal_turns
from env.phone.world.companies import MAX_COMPANIES, company_name
from env.phone.world.levels import level_settings
from env.phone.world.lexicon import INDUSTRY_KINDS, PRIORS, TRAINING_INDUSTRIES, UNSEEN_INDUSTRIES
from env.phone.world.rules import deviation_pool
from env.phone.world.tasks import SPLITS, generate_tasks, practice_tasks
from env.phone.world.world import WorldKey, make_world
from pipeline.errors import ArtifactError, ConfigError
from pipeline.ids import digest
from pipeline.types import Task

SHARES = {1: 0.5, 2: 0.5}


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return generate_tasks(
        num_companies=300, num_train=1500, num_val=300, num_test=200, level_shares=SHARES, seed=1
    )


def worlds_of(tasks, split):
    return [make_world(WorldKey.from_text(task.ground_truth)) for task in tasks if task.split == split]


def test_every_split_has_the_tasks_it_was_asked_for(tasks):
    counts = {split: sum(task.split == split for task in tasks) for split in SPLITS}
    assert counts == {
        "train": 1500,
        "val": 300,
        "test_unseen_company": 200,
        "test_unseen_industry": 200,
        "test_shifted_prior": 200,
    }
    assert len({task.task_id for task in tasks}) == len(tasks)


def test_levels_have_their_shares_in_every_split(tasks):
    for split in SPLITS:
        levels = [task.level for task in tasks if task.split == split]
        assert abs(levels.count(1) / len(levels) - 0.5) < 0.05


def test_names_numbers_and_deviating_rules_of_the_splits_are_disjoint(tasks):
    groups = {}
    for split in SPLITS:
        companies = {world.company.name: world.company for world in worlds_of(tasks, split)}.values()
        groups[split] = (
            {company.name for company in companies},
            {line.phone for company in companies for line in company.departments},
            {
                (company.industry, needed)
                for company in companies
                for line in company.departments
                if line.deviates
                for needed in line.sets
            },
        )
    assert groups["val"][0] <= groups["train"][0]
    assert groups["train"][2]
    assert groups["test_shifted_prior"][2]
    tests = ("test_unseen_company", "test_unseen_industry", "test_shifted_prior")
    for split in tests:
        for place, kind in enumerate(("name", "number", "deviating rule")):
            assert not groups[split][place] & groups["train"][place], (split, kind)
        for other in tests:
            if other != split:
                assert not groups[split][0] & groups[other][0]
                assert not groups[split][1] & groups[other][1]


def test_validation_prompts_are_new_to_training(tasks):
    prompts = {
        split: {task.prompt[0]["content"] for task in tasks if task.split == split} for split in SPLITS
    }
    assert len(prompts["val"]) == 300
    assert not prompts["val"] & prompts["train"]


def test_each_split_has_its_own_industries(tasks):
    for task in tasks:
        unseen = task.split == "test_unseen_industry"
        assert task.details["industry"] in (UNSEEN_INDUSTRIES if unseen else TRAINING_INDUSTRIES)


def test_a_shifted_prior_never_wants_what_the_industry_predicts(tasks):
    assert all(task.details["deviates"] for task in tasks if task.split == "test_shifted_prior")


def test_no_company_is_in_two_levels(tasks):
    assert len({(task.cluster, task.level) for task in tasks}) == len({task.cluster for task in tasks})


def test_every_task_is_solvable_with_and_without_knowledge(tasks):
    for task in tasks[::20]:
        world = make_world(WorldKey.from_text(task.ground_truth))
        assert optimal_turns(world) == task.details["optimal_turns"] == 2
        assert play_scripted(task, "prober", seed=0)[2].success  # who knows no prior


def test_the_prompt_and_the_key_hold_no_hidden_value(tasks):
    for task in tasks[::10]:
        world = make_world(WorldKey.from_text(task.ground_truth))
        for text in (task.prompt[0]["content"], str(task.details)):
            words = set(text.replace(",", " ").replace("'", " ").split())
            assert not words & set(world.profile.values())
            assert not words & set(world.company.vocabulary)
            assert not words & {line.phone for line in world.company.departments}


def test_practice_companies_are_in_no_split_and_never_bear_a_held_out_name(tasks):
    held_out = {task.cluster for task in tasks if task.split.startswith("test")}
    practice = practice_tasks(900, level_shares=SHARES, seed=0, held_out=held_out)
    assert len({task.task_id for task in practice}) == 900
    assert not {task.task_id for task in practice} & {task.task_id for task in tasks}
    assert not {task.cluster for task in practice} & held_out
    assert {task.split for task in practice} == {"practice"}
    assert practice == practice_tasks(900, level_shares=SHARES, seed=0, held_out=held_out)


def test_practice_companies_never_depart_from_the_prior_as_a_test_company_does(tasks):
    def departures(some):
        found = set()
        for task in some:
            company = make_world(WorldKey.from_text(task.ground_truth)).company
            found |= {
                (company.industry, line.kind, line.sets) for line in company.departments if line.deviates
            }
        return found

    held_out = [task for task in tasks if task.split.startswith("test")]
    practice = practice_tasks(300, level_shares=SHARES, seed=0, held_out={task.cluster for task in held_out})
    assert departures(practice)
    assert departures(held_out)
    assert not departures(practice) & departures(held_out)


def test_the_numbers_of_all_companies_differ_and_share_an_exchange_within_one(tasks):
    phones = {}
    for task in tasks:
        lines = make_world(WorldKey.from_text(task.ground_truth)).company.departments
        assert len({line.phone[:6] for line in lines}) == 1
        for line in lines:
            assert phones.setdefault(line.phone, (task.cluster, line.name)) == (task.cluster, line.name)


def test_every_company_has_a_name_of_its_own():
    assert len({company_name(5, index) for index in range(MAX_COMPANIES)}) == MAX_COMPANIES


def test_a_first_word_is_followed_by_many_second_words():
    pairs = [company_name(0, index).split()[:2] for index in range(50)]
    for first in {pair[0] for pair in pairs}:
        assert len({second for one, second in pairs if one == first}) >= 4


def test_both_halves_have_deviations_to_draw_from():
    level = level_settings(2)
    for industry, kinds in INDUSTRY_KINDS.items():
        for kind in kinds:
            if PRIORS[kind]:
                halves = [
                    set(map(frozenset, deviation_pool(industry, kind, level, h))) for h in ("train", "test")
                ]
                assert all(halves)
                assert not halves[0] & halves[1]


def test_equal_settings_give_equal_tasks_and_the_worlds_are_pinned():
    made = generate_tasks(
        num_companies=20, num_train=40, num_val=10, num_test=10, level_shares=SHARES, seed=7
    )
    again = generate_tasks(
        num_companies=20, num_train=40, num_val=10, num_test=10, level_shares=SHARES, seed=7
    )
    assert made == again
    facts = []
    for task in made:
        world = make_world(WorldKey.from_text(task.ground_truth))
        lines = [[x.name, x.phone, [sorted(s) for s in x.sets]] for x in world.company.departments]
        facts.append([task.task_id, world.opening, world.company.name, lines, world.profile])
    # A change here changes every task made so far: raise GENERATOR_VERSION with it.
    assert digest(facts) == "25e57af2ef0d3b0dbb3a9b9630f26e12"


def test_another_seed_gives_other_tasks():
    one, two = (
        generate_tasks(num_companies=8, num_train=8, num_val=2, num_test=2, level_shares=SHARES, seed=seed)
        for seed in (0, 1)
    )
    assert not {task.task_id for task in one} & {task.task_id for task in two}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"level_shares": {1: 0.5, 6: 0.5}}, "level 6 does not exist; levels: 1, 2, 3, 4, 5"),
        ({"level_shares": {1: 0.0}}, "no level a share"),
        ({"num_companies": 3}, "allowed: 4 to"),
        ({"num_companies": MAX_COMPANIES + 1}, "allowed: 4 to"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        generate_tasks(**{"num_train": 1, "num_val": 1, "num_test": 1, **settings})


def test_a_level_that_no_training_company_would_have_is_refused():
    with pytest.raises(ConfigError, match=r"num_companies = 4 leaves 1 to train on, none of level 2\. Give"):
        generate_tasks(num_companies=4, num_train=1, num_val=1, num_test=1, level_shares={1: 0.5, 2: 0.5})


def test_a_level_without_a_share_need_not_exist():
    assert generate_tasks(num_companies=4, num_train=1, num_val=1, num_test=1, level_shares={1: 1.0, 9: 0.0})


@pytest.mark.parametrize(
    "text", ["", "gold", "{}", '{"version":99,"company":[0,0,1,"banking","train",0],"task":[0,0,0]}']
)
def test_a_ground_truth_that_is_no_key_is_refused_with_the_next_move(text):
    with pytest.raises(ValueError, match="make tasks"):
        WorldKey.from_text(text)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((0, 0), -1, "seed is '-1'; allowed: 0 or more"),
        ((0, 0), True, "seed is 'True'; allowed: 0 or more"),
        ((0, 1), MAX_COMPANIES, "index is '1400'; allowed: 0 to 1399"),
        ((0, 1), 1.0, r"index is '1\.0'"),
        ((0, 2), 9, "level is '9'; allowed: 1, 2, 3, 4, 5"),
        ((0, 2), "1", "level is '1'; allowed: 1, 2"),
        ((0, 2), [1], r"level is '\[1\]'"),
        ((0, 3), "farming", "industry is 'farming'; allowed: banking, "),
        ((0, 4), "TRAIN", "half is 'TRAIN'; allowed: train, test"),
        ((0, 5), 2, "shifted is '2'; allowed: 0, 1"),
        ((1, 0), 99_999, r"opening is '99999'; allowed: 0 to \d+; run: make tasks"),
        ((1, 0), -1, "opening is '-1'"),
        ((1, 1), -1, "number is '-1'; allowed: 0 or more"),
        ((1, 2), "0" * 5000, "draw is '0{30}'; allowed: 0 or more"),
    ],
)
def test_a_key_of_what_cannot_be_is_refused_by_its_field(tasks, place, value, message):
    data = json.loads(tasks[0].ground_truth)
    part, field = place
    data[("company", "task")[part]][field] = value
    with pytest.raises(ValueError, match=message):
        WorldKey.from_text(json.dumps(data))
    with pytest.raises(ArtifactError, match=r"task \w+ \(train 0\) cannot be graded: ground_truth"):
        PHONE.check_gradable([replace(tasks[0], ground_truth=json.dumps(data))])


def test_deep_nesting_is_no_key():
    with pytest.raises(ValueError, match="no key of a phone world"):
        WorldKey.from_text("[" * 100_000)


def test_no_split_has_extensions_of_its_own():
    """Dealt alike in every exchange, a split would have seven or fourteen."""
    made = generate_tasks(
        num_companies=440, num_train=220, num_val=1, num_test=88, level_shares=SHARES, seed=1
    )
    seen: dict[str, set[str]] = {"train": set(), "test_unseen_company": set()}
    for task in made:
        if task.split in seen:
            world = make_world(WorldKey.from_text(task.ground_truth))
            seen[task.split] |= {line.phone[-2:] for line in world.company.departments}
    assert all(len(extensions) > 85 for extensions in seen.values())

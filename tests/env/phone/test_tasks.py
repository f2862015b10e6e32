import json
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest

from env.phone.episode.calls import State
from env.phone.offer import PHONE
from env.phone.solver.solver import fewest_turns
from env.phone.tasks import SPLITS, generate_tasks, practice_tasks, unsolvable
from env.phone.world.companies import MAX_COMPANIES, company_name
from env.phone.world.levels import LEVELS
from env.phone.world.lexicon import PRIORS, TRAINING_INDUSTRIES, UNSEEN_INDUSTRIES
from env.phone.world.rules import prior_fields, sufficient_forms
from env.phone.world.world import WorldKey
from pipeline.errors import ArtifactError, ConfigError
from pipeline.ids import digest
from pipeline.types import Task
from tests.env.phone.worlds import SERVICE, small_world, world_of

LOWER = {1: 0.5, 2: 0.5}
SEED = {1: 0.2, 2: 0.3, 3: 0.3, 4: 0.1, 5: 0.1}
ONE_OF_EACH = {"num_train": 1, "num_val": 1, "num_test": 1}
TESTS = SPLITS[2:]


@cache
def many(group: str | int) -> tuple[Task, ...]:
    """Many companies: of the seed's sizes and levels, of the two lower levels, or of one upper level."""
    if group == "seed":
        return tuple(generate_tasks())
    if group == "lower":
        sizes = {"num_companies": 300, "num_train": 900, "num_val": 200, "num_test": 150}
        return tuple(generate_tasks(**sizes, level_shares=LOWER, seed=1))
    sizes = {"num_companies": 240, "num_train": 240, "num_val": 20, "num_test": 60}
    return tuple(generate_tasks(**sizes, level_shares={group: 1.0}, seed=1))


every_group = pytest.mark.parametrize("group", ["lower", 3, 4, 5])


def test_the_seeds_sizes_are_the_defaults():
    tasks = many("seed")
    counts = {split: sum(task.split == split for task in tasks) for split in SPLITS}
    assert list(counts.values()) == [500, 100, 100, 100, 100]
    assert len({task.cluster for task in tasks}) == 100
    assert len({task.task_id for task in tasks}) == len(tasks)
    train = [task.level for task in tasks if task.split == "train"]
    assert [train.count(level) for level in SEED] == pytest.approx([100, 150, 150, 50, 50], abs=10)
    assert {(task.split, task.level) for task in tasks} == {(s, level) for s in SPLITS for level in SEED}


def test_levels_industries_and_clusters_have_their_place_and_lower_levels_take_two_turns():
    tasks = many("lower")
    for split in SPLITS:
        levels = [task.level for task in tasks if task.split == split]
        assert abs(levels.count(1) / len(levels) - 0.5) < 0.05
    for task in tasks:
        unseen = task.split == "test_unseen_industry"
        assert task.details["industry"] in (UNSEEN_INDUSTRIES if unseen else TRAINING_INDUSTRIES)
        assert fewest_turns(world_of(task), State()) == task.details["optimal_turns"] == 2
    assert len({(task.cluster, task.level) for task in tasks}) == len({task.cluster for task in tasks})


def facts_of(tasks):
    """Returns names, numbers, and sets that depart from the prior, of the tasks' companies."""
    companies = {company.name: company for company in (world_of(task).company for task in tasks)}
    phones, departures = set(), set()
    for company in companies.values():
        level = LEVELS[company.level]
        usual = {frozenset(prior_fields(company.industry, kind, level)) for kind in PRIORS}
        for line in company.departments:
            phones.add(line.phone)
            if PRIORS[line.kind]:
                sets = {needed - {"reference"} for needed in line.sets} - usual
                departures |= {(company.industry, needed) for needed in sets}
    return set(companies), phones, departures


@every_group
def test_names_numbers_and_sets_that_depart_from_the_prior_are_disjoint(group):
    tasks = {split: [task for task in many(group) if task.split == split] for split in SPLITS}
    facts = {split: facts_of(some) for split, some in tasks.items()}
    assert facts["val"][0] <= facts["train"][0]
    for one, other in combinations(("train", *TESTS), 2):
        assert facts[one][2]
        assert facts[other][2]
        for place in (0, 1, 2) if one == "train" else (0, 1):
            assert not facts[one][place] & facts[other][place], (one, other, place)
    prompts = {split: {task.prompt[0]["content"] for task in some} for split, some in tasks.items()}
    assert not prompts["val"] & prompts["train"]


@every_group
def test_the_prompt_and_the_key_hold_no_hidden_value(group):
    for task in many(group)[::3]:
        world = world_of(task)
        for text in (task.prompt[0]["content"], str(task.details)):
            words = set(text.replace(",", " ").replace("'", " ").replace(";", " ").split())
            assert not words & set(world.profile.values())
            assert not words & set(world.company.vocabulary)
            assert not words & {line.phone for line in world.company.departments}


@pytest.mark.parametrize("level", [3, 4, 5])
def test_worlds_keep_to_their_level(level):
    knobs = LEVELS[level]
    for task in many(level):
        world = world_of(task)
        company = world.company
        assert knobs.num_departments[0] <= len(company.departments) <= knobs.num_departments[1]
        assert knobs.num_requests[0] <= len(world.requests) <= knobs.num_requests[1]
        assert knobs.num_needed[0] <= len(world.needed_lines()) <= knobs.num_needed[1]
        assert len(company.vocabulary) >= knobs.vocabulary
        assert {line.disclosure for line in company.departments} <= set(knobs.disclosure)
        for line in company.departments:
            assert line.after in ("", knobs.edges.get(line.kind))
            assert line.wants_reference == (bool(line.after) and line.kind in knobs.tokens)
            assert 1 <= len(line.sets) <= 6
        for request in world.requests:
            assert request.request_id in world.opening
            assert request.errand in world.opening
        assert fewest_turns(world, State()) + 1 <= knobs.max_turns
        assert world.busy <= {line.phone for line in world.needed_lines()}
        hours = {line.phone: line.hours for line in world.needed_lines()}
        assert all(hours[phone] == "day" for phone, _ in world.closings)
        assert len(world.slips) == (world.user == "difficult")
        for field, wrong in world.slips:
            assert field in world.needed_fields()
            assert wrong not in world.profile.values()
        rules = [line.sets for line in world.needed_lines()]
        assert sufficient_forms(rules, world.profile.keys(), knobs.max_form_fields)


def test_practice_companies_are_in_no_split_and_depart_from_the_prior_as_no_test_company_does():
    tasks = many("lower")
    tests = [task for task in tasks if task.split in TESTS]
    held_out = {task.cluster for task in tests}
    practice = practice_tasks(900, level_shares=LOWER, seed=0, held_out=held_out)
    assert len({task.task_id for task in practice}) == 900
    assert not {task.task_id for task in practice} & {task.task_id for task in tasks}
    assert not {task.cluster for task in practice} & held_out
    assert {task.split for task in practice} == {"practice"}
    assert practice == practice_tasks(900, level_shares=LOWER, seed=0, held_out=held_out)
    assert facts_of(practice)[2]
    assert not facts_of(practice)[2] & facts_of(tests)[2]


def test_names_and_numbers_are_a_companys_own_and_share_an_exchange_within_it():
    phones = {}
    for task in many("lower"):
        lines = world_of(task).company.departments
        assert len({line.phone[:6] for line in lines}) == 1
        for line in lines:
            assert phones.setdefault(line.phone, (task.cluster, line.name)) == (task.cluster, line.name)
    assert len({company_name(5, index) for index in range(MAX_COMPANIES)}) == MAX_COMPANIES
    pairs = [company_name(0, index).split()[:2] for index in range(50)]
    for first in {pair[0] for pair in pairs}:
        assert len({second for one, second in pairs if one == first}) >= 4


# A change of a digest here changes every task made so far: raise GENERATOR_VERSION with it.
@pytest.mark.parametrize(
    ("sizes", "shares", "expected"),
    [
        ((20, 40, 10, 10), LOWER, "17528e76bc74606aa5d27379c9ffad30"),
        ((20, 30, 6, 6), {3: 0.4, 4: 0.3, 5: 0.3}, "444280b96a0a5c3fea667904fb812e43"),
    ],
    ids=["lower", "upper"],
)
def test_equal_settings_give_equal_tasks_and_the_worlds_are_pinned(sizes, shares, expected):
    settings = dict(zip(("num_companies", "num_train", "num_val", "num_test"), sizes, strict=True))
    made = generate_tasks(**settings, level_shares=shares, seed=7)
    assert made == generate_tasks(**settings, level_shares=shares, seed=7)
    assert not {task.task_id for task in made} & {
        task.task_id for task in generate_tasks(**settings, level_shares=shares, seed=8)
    }
    facts = []
    for task in made:
        world = world_of(task)
        lines = [
            [x.name, x.phone, [sorted(s) for s in x.sets], x.disclosure, x.screen_first, x.hours, x.after]
            for x in world.company.departments
        ]
        today = [sorted(world.busy), world.closings, world.slips, world.user]
        facts.append([task.task_id, world.opening, lines, world.profile, today])
    assert digest(facts) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"level_shares": {1: 0.5, 6: 0.5}}, "phone level 6 does not exist; levels: 1, 2, 3, 4, 5"),
        ({"level_shares": {1: 0.5, 0: 0.5}}, "phone level 0 does not exist"),
        ({"level_shares": {1: 0.0}}, "no level a share"),
        ({"num_companies": MAX_COMPANIES + 1}, "allowed: 4 to"),
        (
            {"num_companies": 4, "level_shares": LOWER},
            r"num_companies = 4 leaves 1 to train on, none of level 2\. Give",
        ),
    ],
)
def test_settings_that_cannot_be_met_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        generate_tasks(**ONE_OF_EACH | settings)
    assert generate_tasks(num_companies=4, **ONE_OF_EACH, level_shares={1: 1.0, 9: 0.0})


@pytest.mark.parametrize(
    "text",
    ["", "gold", "{}", "[" * 100_000, '{"version":99,"company":[0,0,1,"banking","train",0],"task":[0,0,0]}'],
)
def test_a_ground_truth_that_is_no_key_is_refused_with_the_next_move(text):
    with pytest.raises(ValueError, match="make tasks"):
        WorldKey.from_text(text)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((0, 0), -1, "seed is '-1'; allowed: 0 to"),
        ((0, 1), 1.0, r"index is '1\.0'"),
        ((0, 2), 9, "level is '9'; allowed: 1, 2, 3, 4, 5"),
        ((0, 2), [1], r"level is '\[1\]'"),
        ((0, 5), 2, "shifted is '2'; allowed: 0, 1"),
        ((1, 0), 99_999, r"opening is '99999'; allowed: 0 to \d+; run: make tasks"),
        ((1, 2), "0" * 5000, "draw is '0{30}'; allowed: 0 to"),
    ],
)
def test_a_key_of_what_cannot_be_is_refused_by_its_field(place, value, message):
    task = many("lower")[0]
    data = json.loads(task.ground_truth)
    part, field = place
    data[("company", "task")[part]][field] = value
    with pytest.raises(ValueError, match=message):
        WorldKey.from_text(json.dumps(data))
    with pytest.raises(ArtifactError, match=r"task \w+ \(train 0\) cannot be graded: ground_truth"):
        PHONE.check_gradable([replace(task, ground_truth=json.dumps(data))])


@pytest.mark.parametrize(
    ("world", "problem"),
    [
        (small_world(level=3), ""),
        # searched meanwhile; Service in message 11, Fraud in 12
        (small_world(level=3, closings=((SERVICE, 11),)), ""),
        (
            small_world(level=3, closings=((SERVICE, 12),)),
            "a shortest plan has 13 messages, the level allows 12",
        ),
        (small_world(level=3, lacking=("email",)), "a shortest plan has inf messages, the level allows 12"),
    ],
)
def test_a_world_that_cannot_be_solved_is_told_from_one_that_can(world, problem):
    assert unsolvable(world) == problem


def test_a_key_whose_first_draws_cannot_be_solved_is_drawn_again_and_counted(monkeypatch):
    refused = []

    def picky(world):
        refused.append(world)
        return "no" if len(refused) <= 3 else ""

    monkeypatch.setattr("env.phone.tasks.unsolvable", picky)
    sizes = ONE_OF_EACH | {"num_companies": 4, "level_shares": {3: 1.0}}
    tasks = generate_tasks(**sizes)
    assert [task.details["num_redrawn"] for task in tasks] == [3, 0, 0, 0, 0]
    assert world_of(tasks[0]) == refused[3] != refused[0]
    monkeypatch.setattr("env.phone.tasks.unsolvable", lambda world: "no")
    with pytest.raises(RuntimeError, match="no solvable world in 20 draws"):
        generate_tasks(**sizes)

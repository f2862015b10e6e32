"""Demonstrations of every level: of mixed quality, some after feedback, in text that the parser reads."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from env.chat.full import FullStyle
from env.phone.episode.compact import STOP_TOKEN, CompactStyle
from env.phone.episode.environment import PhoneEnv
from env.phone.episode.tools import TOOLS, WAIT, tools_of
from env.phone.offer import PHONE, SHARES
from env.phone.world.levels import LEVELS
from env.phone.world.tasks import practice_tasks
from env.play.demonstrations import demonstrate
from env.protocol import replay

STYLE = CompactStyle()


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_demonstrations_of_a_level_are_mixed_and_readable(level):
    tasks = practice_tasks(80, level_shares={level: 1.0}, seed=2, held_out=set())
    made = [
        demonstrate(
            PHONE.demonstrators,
            PHONE.env,
            task,
            style=STYLE,
            shares=SHARES,
            guided_share=0.5,
            noise=0.2,
            seed=number,
        )
        for number, task in enumerate(tasks)
    ]
    success = sum(d.success for d in made) / len(made)
    assert 0.3 < success < 0.95
    assert len({d.policy for d in made}) == len(SHARES)
    assert 0 < sum(d.guided for d in made) < len(made)
    for demonstration in made:
        assert ("<previous_attempts>" in demonstration.pieces[0][0]) == demonstration.guided
        for text, is_trained in demonstration.pieces:
            if is_trained:
                assert STYLE.parse(text.removesuffix(STOP_TOKEN)).status in ("ok", "none")
    words = {word for d in made for text, is_own in d.pieces if is_own for word in text.split()}
    assert ("wait<|im_end|>" in words) == (level >= 3)


def test_a_demonstrator_that_thinks_does_the_same_and_says_why():
    task = practice_tasks(1, level_shares={3: 1.0}, seed=2, held_out=set())[0]
    plain, thoughtful = (
        demonstrate(
            PHONE.demonstrators,
            PHONE.env,
            task,
            style=STYLE,
            shares={"adaptive": 1.0},
            guided_share=0.0,
            noise=0.0,
            seed=1,
            thoughts=thoughts,
        )
        for thoughts in (False, True)
    )
    own = [[text for text, is_own in d.pieces if is_own] for d in (plain, thoughtful)]
    assert any(text.startswith("call ") for text in own[0])
    for said, thought in zip(*own, strict=True):
        assert thought.endswith(said)
        assert (thought == said) == (not said.startswith("call "))
    assert [text for text, is_own in thoughtful.pieces if not is_own] == [
        text for text, is_own in plain.pieces if not is_own
    ]


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_a_full_demonstration_lists_the_tools_of_its_level(level):
    [task] = practice_tasks(1, level_shares={level: 1.0}, seed=2, held_out=set())
    made = demonstrate(
        PHONE.demonstrators,
        PHONE.env,
        task,
        style=PHONE.style("full"),
        shares={"oracle": 1.0},
        guided_share=0.0,
        noise=0.0,
        seed=0,
    )
    listed = made.pieces[0][0].partition("<tools>\n")[2].partition("\n</tools>")[0]
    assert [json.loads(line) for line in listed.split("\n")] == list(tools_of(LEVELS[level]))
    assert (WAIT in listed) == (level >= 3)


@pytest.mark.parametrize("style", [CompactStyle(), FullStyle(TOOLS)], ids=["compact", "full"])
def test_earlier_attempts_happen_again_under_the_seed_of_the_next(style):
    """Level 4 has references: written out, those of one seed would be made up under another."""
    happened, replayed = [], []

    def events_of(task, seed, actions):
        return [event for result in replay(PhoneEnv(), task, seed, actions) for event in result.events]

    def play(task, policy, seed, noise, earlier=(), style=None, thoughts=False):
        actions = PHONE.demonstrators.play(task, policy, seed, noise, earlier, style, thoughts)
        if style is not None:
            replayed.extend((number, events_of(task, seed, old)) for old in earlier)
            happened.append((number, events_of(task, seed, actions)))
            said.extend("reference" in action.text for action in actions)
        return actions

    said = []
    tasks = practice_tasks(80, level_shares={4: 1.0}, seed=2, held_out=set())
    for number, task in enumerate(tasks):
        demonstrate(
            replace(PHONE.demonstrators, play=play),
            PHONE.env,
            task,
            style=style,
            shares={"prior_only": 0.5, "noisy_adaptive": 0.5},
            guided_share=1.0,
            noise=0.2,
            seed=number,
        )
    assert len(replayed) > 40
    assert any(said)
    assert all(earlier in happened for earlier in replayed)


def told(style, made):
    """Returns the calls of a demonstration without the values that are sent."""
    actions = [style.parse(text.removesuffix(style.stop_token)) for text, is_own in made.pieces if is_own]
    return [
        (
            call.name,
            {
                key: sorted(value) if isinstance(value, dict) else value
                for key, value in call.arguments.items()
            },
        )
        for action in actions
        for call in action.calls
    ]


@pytest.mark.parametrize("level", [4, 5])
def test_guided_demonstrations_are_alike_in_both_styles(level):
    full, successes = PHONE.style("full"), set()
    for number, task in enumerate(practice_tasks(60, level_shares={level: 1.0}, seed=2, held_out=set())):
        for seed in range(3):
            compact_made, full_made = (
                demonstrate(
                    PHONE.demonstrators,
                    PHONE.env,
                    task,
                    style=style,
                    shares=SHARES,
                    guided_share=1.0,
                    noise=0.2,
                    seed=3 * number + seed,
                )
                for style in (STYLE, full)
            )
            assert told(full, full_made) == told(STYLE, compact_made)
            assert (full_made.success, full_made.guided) == (compact_made.success, compact_made.guided)
            successes.add((full_made.success, full_made.guided))
    assert {(True, True), (False, True)} <= successes

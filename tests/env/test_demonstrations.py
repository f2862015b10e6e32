import json
from collections import Counter
from dataclasses import replace

import pytest

from env.phone.episode.compact import CompactStyle
from env.phone.episode.environment import PhoneEnv
from env.phone.episode.tools import WAIT, tools_of
from env.phone.offer import PHONE, SHARES
from env.phone.tasks import practice_tasks
from env.phone.world.levels import LEVELS
from env.play.demonstrations import demonstrate
from env.play.guard import FailureError
from env.protocol import Observation, StepResult, replay
from pipeline.errors import ConfigError
from pipeline.types import Verdict

STYLE, FULL = CompactStyle(), PHONE.style("full")


def tasks_of(level, number):
    return practice_tasks(number, level_shares={level: 1.0}, seed=2, held_out=set())


def made(
    task,
    seed,
    *,
    by=PHONE.demonstrators,
    env=PHONE.env,
    style=STYLE,
    shares=SHARES,
    guided_share=0.0,
    noise=0.2,
    **more,
):
    how = {"shares": shares, "guided_share": guided_share, "noise": noise, "seed": seed}
    how |= {"follows_feedback": 0.5, "thoughts": False} | more
    return demonstrate(by, env, task, style=style, **how)


def own(demonstration):
    return [text for text, is_own in demonstration.pieces if is_own]


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_demonstrations_of_a_level_are_mixed_and_readable(level):
    found = [made(task, number, guided_share=0.5) for number, task in enumerate(tasks_of(level, 80))]
    assert 0.3 < sum(d.success for d in found) / len(found) < 0.95
    assert len({d.policy for d in found}) == len(SHARES)
    assert 0 < sum(d.guided for d in found) < len(found)
    for demonstration in found:
        assert ("<previous_attempts>" in demonstration.pieces[0][0]) == demonstration.guided
        whose = [is_own for _, is_own in demonstration.pieces]
        assert whose == [False, True] * (len(whose) // 2)  # prompt and replies, and what follows each
        for text in own(demonstration):
            assert STYLE.parse(text).status in ("ok", "none")
    words = {word for d in found for text in own(d) for word in text.split()}
    assert (f"wait{STYLE.stop_token}" in words) == (level >= 3)


def test_a_demonstrator_that_thinks_does_the_same_and_says_why():
    [task] = tasks_of(3, 1)
    plain, thoughtful = (
        made(task, 1, shares={"adaptive": 1.0}, thoughts=thoughts) for thoughts in (False, True)
    )
    assert any(text.startswith("call ") for text in own(plain))
    for said, thought in zip(own(plain), own(thoughtful), strict=True):
        assert thought.endswith(said)
        assert (thought == said) == (not said.startswith("call "))
    heard = [[text for text, is_own in d.pieces if not is_own] for d in (plain, thoughtful)]
    assert heard[0] == heard[1]


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_a_full_demonstration_lists_the_tools_of_its_level(level):
    [task] = tasks_of(level, 1)
    prompt = made(task, 0, style=FULL, shares={"oracle": 1.0}).pieces[0][0]
    listed = prompt.partition("<tools>\n")[2].partition("\n</tools>")[0]
    assert [json.loads(line) for line in listed.split("\n")] == list(tools_of(LEVELS[level]))
    assert (WAIT in listed) == (level >= 3)


@pytest.mark.parametrize("style", [STYLE, FULL], ids=["compact", "full"])
def test_earlier_attempts_happen_again_under_the_seed_of_the_next(style):
    """Level 4 has references: written out, those of one seed would be made up under another."""
    happened, replayed, said = [], [], []

    def events_of(task, seed, actions):
        return [event for result in replay(PhoneEnv(), task, seed, actions) for event in result.events]

    def play(task, policy, seed, noise, earlier=(), style=None, thoughts=False):
        actions = PHONE.demonstrators.play(task, policy, seed, noise, earlier, style, thoughts)
        if style is not None:
            replayed.extend((number, events_of(task, seed, old)) for old in earlier)
            happened.append((number, events_of(task, seed, actions)))
            said.extend("reference" in action.text for action in actions)
        return actions

    noting, shares = replace(PHONE.demonstrators, play=play), {"prior_only": 0.5, "noisy_adaptive": 0.5}
    for number, task in enumerate(tasks_of(4, 80)):
        made(task, number, by=noting, style=style, shares=shares, guided_share=1.0)
    assert set(Counter(number for number, _ in happened).values()) == {2, 3}  # one or two and its own
    assert len(replayed) > 40
    assert any(said)
    assert all(earlier in happened for earlier in replayed)


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0.0, 0.0), (0.5, 0.3, 0.7), (1.0, 1.0, 1.0)])
def test_as_many_guided_demonstrators_know_what_the_feedback_says_as_told(share, least, most):
    """The bad habit always fails, so that feedback is there; the oracle comes in by it alone."""
    how = {"shares": {"over_collector": 1.0}, "guided_share": 1.0, "follows_feedback": share}
    found = [made(task, number, **how) for number, task in enumerate(tasks_of(2, 80))]
    guided = [d.policy == "oracle" for d in found if d.guided]
    assert len(guided) > 60
    assert least <= sum(guided) / len(guided) <= most
    how["guided_share"] = 0.0
    assert not any(made(task, number, **how).guided for number, task in enumerate(tasks_of(2, 5)))


def raising(error):
    def call(self, *args):
        raise error

    return call


FAILURES = {
    "reset raises": ("reset", raising(OSError("gone")), "infra_error", "reset: OSError: gone"),
    "reset is none": ("reset", lambda self, *_: None, "bad_reply", "reset: it is a NoneType; allowed: "),
    "step raises": ("step", raising(OSError("gone")), "infra_error", "step: OSError: gone"),
    "step exits": ("step", raising(SystemExit(3)), "infra_error", "step: SystemExit: 3"),
    "step says so": ("step", lambda self, _: StepResult((), infra_error="down"), "down", "step"),
    "verdict raises": ("verdict", raising(OSError("gone")), "infra_error", "verdict: OSError: gone"),
    "verdict says so": ("verdict", lambda self: Verdict(None, None, infra_error="down"), "down", "verdict"),
    "verdict is a number": ("verdict", lambda self: 0.0, "bad_verdict", "verdict: it is a float; allowed: "),
    "feedback raises": ("feedback", raising(OSError("gone")), "infra_error", "feedback: OSError: gone"),
    "feedback is text": ("feedback", lambda self: "no", "bad_feedback", "feedback: it is a str; allowed: "),
}


@pytest.mark.parametrize("how", FAILURES)
def test_an_environment_that_fails_gives_no_demonstration_and_no_feedback(how):
    """The bad habit always fails, so that feedback would be asked for."""
    place, call, kind, detail = FAILURES[how]
    failing = type("Failing", (PhoneEnv,), {place: call})
    [task] = tasks_of(2, 1)
    with pytest.raises(FailureError) as raised:
        made(task, 0, env=failing, shares={"over_collector": 1.0}, guided_share=1.0)
    assert raised.value.kind == kind
    assert raised.value.detail.startswith(detail)
    if place != "feedback":
        with pytest.raises(FailureError):
            made(task, 0, env=failing)


def test_a_machine_that_can_grade_nothing_ends_demonstrations():
    failing = type("Failing", (PhoneEnv,), {"verdict": raising(ConfigError("no judge"))})
    with pytest.raises(ConfigError, match="no judge"):
        made(*tasks_of(2, 1), 0, env=failing)


def test_a_demonstration_opens_with_what_reset_says_as_rollouts_do():
    class Saying(PhoneEnv):
        def reset(self, task, seed):
            said = super().reset(task, seed).messages
            return Observation(({"role": "system", "content": "Be brief."}, *said))

    [task] = tasks_of(2, 1)
    assert "Be brief." in made(task, 0, env=Saying).pieces[0][0]

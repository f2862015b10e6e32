from random import Random

import pytest

from env.chat.full import ENDING, FullStyle
from env.phone.episode.tools import FROM_FORM, TOOLS
from env.phone.offer import PHONE
from env.phone.scripted.policies import POLICIES, play_scripted
from env.phone.scripted.spoken import UNKNOWN, in_style, to_compact
from env.protocol import replay
from tests.env.phone.worlds import STYLE as COMPACT
from tests.env.phone.worlds import mixed_tasks, started, state_digest

FULL = FullStyle(TOOLS)
TASKS = mixed_tasks(24, companies=24, others=2)
both_styles = pytest.mark.parametrize("style", [COMPACT, FULL], ids=["compact", "full"])


def states_of(style, task, seed, actions):
    """Returns digests of all states, events and verdict, of the actions' texts as a style reads them."""
    env = started(task, seed)
    digests, events = [state_digest(env)], []
    for action in actions:
        events.append(env.step(style.parse(action.text)).events)
        digests.append(state_digest(env))
    return digests, events, env.verdict()


def test_both_styles_play_the_same_episode_and_full_messages_say_values_and_point_to_none():
    said, unknown = set(), 0
    for policy in POLICIES:
        for seed, task in enumerate(TASKS):
            actions = play_scripted(task, policy, seed, noise=0.5)[0]
            assert in_style(COMPACT, task, seed, actions) == actions
            spoken = in_style(FULL, task, seed, actions)
            states = states_of(COMPACT, task, seed, actions)
            assert states_of(FULL, task, seed, spoken) == states
            literal = [COMPACT.action_of(action.calls[0] if action.calls else None) for action in spoken]
            assert [COMPACT.parse(action.text).calls for action in literal] == [a.calls for a in spoken]
            assert states_of(COMPACT, task, seed, literal) == states
            attempt = FULL.attempt_line(spoken, "x").removesuffix(" => x").split("; ")
            assert len(attempt) == len(spoken)  # every call is told whole
            assert all(message == ENDING or message.endswith("}") for message in attempt)
            profile = started(task, seed).world.profile
            for action in spoken:
                assert FULL.parse(action.text) == action
                for call in action.calls:
                    for field, value in call.arguments.get("auth_info", {}).items():
                        assert value is not FROM_FORM
                        said.add(value is not None and value == profile.get(field))
                        unknown += value == UNKNOWN
    assert said == {True, False}
    assert unknown  # where a policy points to a field that the form did not give


@both_styles
def test_who_thinks_plays_the_same_episode_and_names_each_listed_line_before_it_is_called(style):
    for seed, task in enumerate(TASKS):
        played = play_scripted(task, "noisy_adaptive", seed, noise=0.5)[0]
        actions = in_style(style, task, seed, played)
        thoughtful = in_style(style, task, seed, played, thoughts=True)
        states = states_of(style, task, seed, actions)
        assert states_of(style, task, seed, thoughtful) == states
        names = {line.phone: line.name for line in started(task).world.company.departments}
        for action, plain in zip(thoughtful, actions, strict=True):
            phone = action.calls[0].arguments.get("phone_number") if action.calls else None
            assert (action.text != plain.text) == (phone in names)
            assert phone not in names or f": {names[phone]}\n" in action.text


def prompts_of(style, task, seed, actions):
    """Returns the prompt before each message."""
    texts = [style.render_prompt(task.prompt, ["done => Billing needs: email, billing_zip."])]
    for action, result in zip(actions, replay(started(task), task, seed, actions), strict=True):
        texts.append(f"{texts[-1]}{action.text}{style.stop_token}{style.render_replies(result.messages)}")
    return texts


def test_the_scripted_agent_says_the_same_in_both_styles():
    reply = PHONE.scripted.reply
    for seed, task in enumerate(TASKS):
        actions = play_scripted(task, "adaptive", seed)[0][:-1]
        full = in_style(FULL, task, seed, actions)
        prompts = zip(
            prompts_of(COMPACT, task, seed, actions), prompts_of(FULL, task, seed, full), strict=True
        )
        for place, (compact_prompt, full_prompt) in enumerate(prompts):
            for number in range(5):
                said = COMPACT.parse(reply(compact_prompt, Random(number), COMPACT))
                spoken = in_style(FULL, task, seed, [*actions[:place], said])[-1]
                assert reply(full_prompt, Random(number), FULL) == spoken.text


def test_the_translation_passes_over_what_it_cannot_read():
    text = "<|im_start|>user\nR1<|im_end|>\n<|im_start|>assistant\n<tool_call>{<|im_end|>\n<|im_start|>bot\nx"
    assert to_compact(text, FULL, COMPACT) == "U: R1<|im_end|>\nA: <tool_call>{<|im_end|>\nA: "
    assert to_compact("", FULL, COMPACT) == "\nA: "

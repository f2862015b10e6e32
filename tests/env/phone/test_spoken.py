"""One episode in both styles: equal calls, events and states; the scripted agent reads either."""

from itertools import pairwise, product
from random import Random

import pytest

from env.chat.full import ENDING, FullStyle
from env.phone.episode.compact import CompactStyle
from env.phone.episode.environment import PhoneEnv
from env.phone.episode.tools import CALL, FORM, FROM_FORM, TOOLS
from env.phone.offer import PHONE
from env.phone.scripted.policies import POLICIES, play_scripted
from env.phone.scripted.spoken import UNKNOWN, in_style, thinking, to_compact, with_values
from env.phone.world.levels import LEVELS
from env.phone.world.tasks import generate_tasks
from env.protocol import ToolCall, replay

COMPACT, FULL = CompactStyle(), FullStyle(TOOLS)
TASKS = generate_tasks(
    num_companies=24,
    num_train=24,
    num_val=2,
    num_test=2,
    level_shares=dict.fromkeys(LEVELS, 1 / len(LEVELS)),
    seed=0,
)


def states_of(style, task, seed, texts):
    """Returns digests of all states, and events, of messages as a style reads them."""
    env = PhoneEnv()
    env.reset(task, seed)
    digests, events = [env.state_digest()], []
    for text in texts:
        events.append(env.step(style.parse(text)).events)
        digests.append(env.state_digest())
    return digests, events, env.verdict()


@pytest.mark.parametrize("policy", POLICIES)
def test_both_styles_play_the_same_episode(policy):
    for seed, task in enumerate(TASKS):
        actions = play_scripted(task, policy, seed, noise=0.5)[0]
        spoken = in_style(FULL, task, seed, actions)
        states = states_of(COMPACT, task, seed, [action.text for action in actions])
        assert states_of(FULL, task, seed, [action.text for action in spoken]) == states
        literal = [COMPACT.action_of(action.calls[0] if action.calls else None) for action in spoken]
        assert [COMPACT.parse(action.text).calls for action in literal] == [a.calls for a in spoken]
        assert states_of(COMPACT, task, seed, [action.text for action in literal]) == states


@pytest.mark.parametrize("style", [COMPACT, FULL], ids=["compact", "full"])
def test_who_thinks_plays_the_same_episode_and_names_each_listed_line_before_it_is_called(style):
    for seed, task in enumerate(TASKS):
        actions = in_style(style, task, seed, play_scripted(task, "noisy_adaptive", seed, noise=0.5)[0])
        thoughtful = thinking(style, task, seed, actions)
        states = states_of(style, task, seed, [action.text for action in actions])
        assert states_of(style, task, seed, [action.text for action in thoughtful]) == states
        env = PhoneEnv()
        env.reset(task, seed)
        names = {line.phone: line.name for line in env.world.company.departments}
        for action, plain in zip(thoughtful, actions, strict=True):
            is_call = bool(action.calls) and action.calls[0].name == CALL
            listed = is_call and action.calls[0].arguments["phone_number"] in names
            assert (action.text != plain.text) == listed
            if listed:
                assert f": {names[action.calls[0].arguments['phone_number']]}\n" in action.text


@pytest.mark.parametrize("style", [COMPACT, FULL], ids=["compact", "full"])
def test_the_word_form_as_a_value_is_made_up_in_every_style(style):
    for task in TASKS:
        env = PhoneEnv()
        env.reset(task, 0)
        line = env.world.path(env.world.requests[0])[0]
        fields = sorted(field for field in next(iter(line.sets)) if field in env.world.profile)
        env.step(style.action_of(ToolCall(FORM, {"fields": fields or ["email"]})))
        info = dict.fromkeys(fields or ["email"], "$form")
        call = ToolCall(CALL, {"phone_number": line.phone, "request": "R1", "auth_info": info})
        result = env.step(style.parse(style.action_of(call).text))
        if [event.code for event in result.events] == ["on_hold"]:
            assert env.state.held.sent.fabricated == info.keys()
        elif [event.code for event in result.events] != ["closed"]:
            assert [(event.code, set(event.fields)) for event in result.events] == [
                ("fabricated_auth", info.keys())
            ]


def test_no_style_but_compact_can_point():
    call = ToolCall(CALL, {"phone_number": "5", "request": "R1", "auth_info": {"email": FROM_FORM}})
    assert COMPACT.parse(COMPACT.action_of(call).text).calls == (call,)
    assert FULL.parse(FULL.action_of(call).text).status == "bad_args"


def test_a_full_message_says_values_and_points_to_none():
    said, unknown = set(), 0
    for (seed, task), policy in product(enumerate(TASKS), POLICIES):
        env = PhoneEnv()
        actions = play_scripted(task, policy, seed, noise=0.3)[0]
        assert in_style(COMPACT, task, seed, actions) == actions
        env.reset(task, seed)
        for action, spoken in zip(actions, in_style(FULL, task, seed, actions), strict=True):
            assert FULL.parse(spoken.text) == spoken
            for call in spoken.calls:
                assert call == with_values(env, action.calls[0])
                for field, value in call.arguments.get("auth_info", {}).items() if call.name == CALL else ():
                    assert value is not FROM_FORM
                    said.add(value is not None and value == env.world.profile.get(field))
                    unknown += value == UNKNOWN
            env.step(action)
    assert said == {True, False}
    assert unknown  # where a policy points to a field that the form did not give


def test_a_full_attempt_line_tells_every_call_whole():
    for (seed, task), policy in product(enumerate(TASKS), POLICIES):
        actions = in_style(FULL, task, seed, play_scripted(task, policy, seed, noise=0.3)[0])
        told = FULL.attempt_line(actions, "x").removesuffix(" => x").split("; ")
        assert len(told) == len(actions)
        assert all(message == ENDING or message.endswith("}") for message in told)


def prompts_of(style, task, seed, actions):
    """Returns the prompt before each message."""
    texts = [style.render_prompt(task.prompt, ["done => Billing needs: email, billing_zip."])]
    for action, result in zip(actions, replay(PhoneEnv(), task, seed, actions), strict=True):
        texts.append(f"{texts[-1]}{action.text}{style.stop_token}{style.render_replies(result.messages)}")
    return texts


def test_every_full_prompt_of_an_episode_is_a_prefix_of_the_next_and_told_in_compact_lines():
    for seed, task in enumerate(TASKS):
        actions = play_scripted(task, "noisy_adaptive", seed, noise=0.5)[0]
        full = in_style(FULL, task, seed, actions)[:-1]
        compact = [COMPACT.action_of(action.calls[0]) for action in full]
        prompts = prompts_of(FULL, task, seed, full)
        told = [to_compact(prompt, FULL, COMPACT) for prompt in prompts]
        assert told[1:] == [
            prompt.replace("<previous_attempts", "\u2039previous_attempts").replace("</prev", "\u2039/prev")
            for prompt in prompts_of(COMPACT, task, seed, compact)[1:]
        ]
        for shorter, longer in pairwise(prompts):
            assert longer.startswith(shorter)


def test_the_scripted_agent_says_the_same_in_both_styles():
    reply = PHONE.scripted.reply
    for seed, task in enumerate(TASKS):
        actions = play_scripted(task, "adaptive", seed)[0][:-1]
        full = in_style(FULL, task, seed, actions)
        env = PhoneEnv()
        env.reset(task, seed)
        for compact_prompt, full_prompt, action in zip(
            prompts_of(COMPACT, task, seed, actions),
            prompts_of(FULL, task, seed, full),
            [*actions, None],
            strict=True,
        ):
            for number in range(5):
                said = COMPACT.parse(reply(compact_prompt, Random(number), COMPACT)).calls
                expected = tuple(with_values(env, call) for call in said)
                assert FULL.parse(reply(full_prompt, Random(number), FULL)).calls == expected
            if action is not None:
                env.step(action)


def test_the_translation_passes_over_what_it_cannot_read():
    text = "<|im_start|>user\nR1<|im_end|>\n<|im_start|>assistant\n<tool_call>{<|im_end|>\n<|im_start|>bot\nx"
    assert to_compact(text, FULL, COMPACT) == "U: R1<|im_end|>\nA: <tool_call>{<|im_end|>\nA: "
    assert to_compact("", FULL, COMPACT) == "\nA: "

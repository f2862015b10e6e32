from random import Random

from hypothesis import given
from hypothesis import strategies as st

from env.phone.scripted.scripted import read, reply_text
from pipeline.types import Task
from tests.env.phone.worlds import STYLE, mixed_tasks, started

TASKS = mixed_tasks(100, companies=24, levels=(1, 2))[:100]
PROMPT = (
    "U: Royal Grove Partners: R1 set up a device\n<previous_attempts>\nsearch Royal Grove Partners; done => "
    "Support needs: email, order_number. You sent no form.\n</previous_attempts><|im_end|>\n"
    "A: search Royal Grove Partners<|im_end|>\n"
    "T: Royal Grove Partners is retail: Sales 555-6303 prices; Support 555-2274 faults<|im_end|>\nA: "
)


def attempt(task: Task, seed: int, earlier: list[str]) -> tuple[bool, str]:
    """Returns whether the agent succeeded, and the line that tells of it."""
    env = started(task, seed)
    text = STYLE.render_prompt(task.prompt, earlier)
    rng = Random(seed)
    actions = []
    while not env.is_over:
        reply = reply_text(text, rng)
        actions.append(STYLE.parse(reply))
        result = env.step(actions[-1])
        text += reply + STYLE.stop_token + STYLE.render_replies(result.messages)
    feedback = env.feedback()
    return env.verdict().success is True, STYLE.attempt_line(actions, feedback.text) if feedback else ""


def test_it_fails_often_and_feedback_helps() -> None:
    firsts = [attempt(task, seed, []) for seed, task in enumerate(TASKS)]
    failed = [(task, line) for task, (success, line) in zip(TASKS, firsts, strict=True) if not success]
    seconds = [attempt(task, 1000 + i, [line])[0] for i, (task, line) in enumerate(failed)]
    first_try = 1 - len(failed) / len(TASKS)
    assert 0.1 < first_try < 0.6
    assert first_try + 0.1 < sum(seconds) / len(seconds) < 1


def test_it_reads_lines_needs_and_form() -> None:
    seen = read(PROMPT)
    assert seen.company == "Royal Grove Partners"
    assert seen.lines == {"Sales": "555-6303", "Support": "555-2274"}
    assert seen.needs == {"Support": ("email", "order_number")}
    assert seen.form is None
    told = PROMPT + (
        "form email phone_number<|im_end|>\nT: here: email cleo26@mail; no phone_number<|im_end|>\n"
        "A: call 555-2274 R1 email<|im_end|>\nT: Support asks for order_number<|im_end|>\nA: "
    )
    assert read(told).form == {"email": "cleo26@mail"}
    assert read(told).needs == {"Support": ("order_number",)}
    assert read(told).calls == ("555-2274",)


def test_its_reply_follows_from_prompt_and_seed() -> None:
    replies = {seed: reply_text(PROMPT, Random(seed)) for seed in range(100)}
    assert replies == {seed: reply_text(PROMPT, Random(seed)) for seed in range(100)}
    assert "form email order_number" in replies.values()
    assert len(set(replies.values())) > 1


@given(st.text(), st.integers())
def test_any_text_gets_a_reply(text: str, seed: int) -> None:
    assert reply_text(text, Random(seed))

"""What benchmarks compute by themselves, held against known truths."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import critic_quality, demo_seeds, engines, phone_policies
from benchmarks._engines import Recorder, SentPrefixes
from env.phone.tasks import generate_tasks
from pipeline.engines import Generation, GenerationRequest
from pipeline.engines.scripted import ScriptedEngine
from pipeline.types import Rollout, Step
from stages.wiring.summary_drawings import success_section
from tests.critics.conftest import make_audit


def ask(name: str, *prompt: int) -> GenerationRequest:
    return GenerationRequest(name, prompt, 0, 8, (1,), cache_key=name)


def test_the_recorder_counts_a_prompt_as_sent_at_once_and_an_answer_when_it_is_there() -> None:
    recorder = Recorder(
        ScriptedEngine(lambda request: [7, 8, 9, 1], max_per_collect=1), SentPrefixes(block=2)
    )
    recorder.submit([ask("a:0", 5, 6, 7), ask("b:0", 5, 6, 7)])
    assert recorder.cacheable == {"a:0": 0, "b:0": 2}
    (first,) = recorder.collect()
    assert recorder.generations == {"a:0": first}
    # All of the answer but its last token: nobody computes its keys and values.
    recorder.submit([ask("a:1", 5, 6, 7, 7, 8, 9, 1, 3, 3)])
    assert recorder.cacheable["a:1"] == 6


@pytest.mark.parametrize(
    ("changes", "drift"),
    [({}, 0), ({4: 99}, 1), ({0: 99}, 2)],
    ids=["nothing", "the reply, which only the second turn saw", "the prompt, which both turns saw"],
)
def test_tokens_that_no_engine_saw_are_counted(changes: dict[int, int], drift: int) -> None:
    """A rollout `1 2 | 3 4 | 5 6 | 7`: prompt, message, reply, message."""
    steps = tuple(
        Step(step_index=i, message_index=i, token_start=start, token_end=end, text="")
        for i, (start, end) in enumerate(((0, 2), (4, 5)))
    )
    fields = dict.fromkeys(Rollout.__dataclass_fields__) | {"rollout_id": "r", "steps": steps}
    fields |= {"prompt_token_ids": (1, 2), "response_token_ids": (3, 4, 5, 6, 7)}
    recorder = Recorder(None)
    for name, prompt, answer in (("r:0", [1, 2], [3, 4]), ("r:1", [1, 2, 3, 4, 5, 6], [7])):
        recorder.requests[name] = GenerationRequest(name, prompt, 0, 4, ())
        recorder.generations[name] = Generation(name, answer, [0.0] * len(answer), "length")
    row = [changes.get(place, token) for place, token in enumerate((1, 2, 3, 4, 5, 6, 7))]
    assert engines.drifted_tokens(Rollout(**fields), row, recorder) == (2, drift)  # type: ignore[arg-type]


def test_the_first_fatal_step_is_the_first_that_lowers_what_could_be_reached() -> None:
    V = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.9, 0.9, 0.0]])
    audit, _ = make_audit(lambda V, rng: V, num_rollouts=len(V))
    failed = tuple(replace(r, reward=0.0) for r in audit.rollouts)
    marked = critic_quality.with_fatal_steps(replace(audit, v_star=V.ravel(), rollouts=failed))
    assert [r.statuses.index("wrong") if "wrong" in r.statuses else None for r in marked] == [1, None, 0]


def test_yardstick_policies_are_all_played_and_a_second_attempt_is_never_worse() -> None:
    tasks = generate_tasks(num_companies=8, num_train=6, num_val=1, num_test=1, level_shares={3: 1.0})
    own = [task for task in tasks if task.split == "train"]
    rows = [r for r in phone_policies.rows_of("train", 3, own, 0) if r.metric == "success"]
    success = {row.variant.removeprefix("train L3 "): row.value or 0 for row in rows}
    assert set(success) == set(phone_policies.ROWS)
    assert success["oracle"] == 1.0
    assert success[phone_policies.AGAIN] >= success["adaptive"]


def test_a_figure_of_the_demo_is_that_of_its_section_or_none() -> None:
    sections = [("How it was learned", "<svg>curve</svg>"), ("By level", "<svg>levels</svg> <svg>more</svg>")]
    page = "".join(
        f"<section><h2>{title}</h2>{body}</section>" for title, body in [*sections, ("Critic", "")]
    )
    assert demo_seeds.drawing_of(page, "By level") == "<svg>levels</svg>\n"
    for title in ("Critic", "Absent"):
        with pytest.raises(ValueError, match="substring not found"):
            demo_seeds.drawing_of(page, title)


def test_the_section_of_the_demo_s_figure_is_one_of_its_summary() -> None:
    assert success_section({"first_try": {}, "with_feedback": {}}).title == demo_seeds.SHOWN

"""What benchmarks compute by themselves, held against known truths."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import critic_quality, engines, phone_policies
from benchmarks._engines import Recorder, SentPrefixes
from benchmarks._material import Material
from critics.audit.data import AuditData, AuditRollout
from critics.audit.measures import measure
from env.phone.world.tasks import generate_tasks
from pipeline.engines import Generation, GenerationRequest
from pipeline.engines.scripted import ScriptedEngine
from pipeline.types import Rollout, StateRef, Step


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


def test_a_share_of_the_labels_is_whole_states_and_shares_are_nested() -> None:
    rng = np.random.default_rng(0)
    states = [StateRef(f"r{i}", 0, "bare") for i in range(60)]
    material: Any = SimpleNamespace(
        rollouts=[SimpleNamespace(rollout_id=f"r{i}", seed=i) for i in range(60)],
        samples={s: [SimpleNamespace(num_trainable_tokens=int(rng.integers(5, 40)))] * 2 for s in states},
    )

    def tokens(of: Any) -> int:
        return sum(r.num_trainable_tokens for members in of.values() for r in members)

    whole, half, quarter = (Material.share(material, share) for share in (1.0, 0.5, 0.25))
    assert whole == material.samples
    assert quarter.keys() < half.keys() < whole.keys()
    for part, share in ((half, 0.5), (quarter, 0.25)):
        assert share * tokens(whole) - 80 < tokens(part) <= share * tokens(whole)


def audit_of(V: np.ndarray, statuses: list[tuple[str, ...]], p: np.ndarray, **changes: Any) -> AuditData:
    num, T = V.shape
    at, place = np.repeat(np.arange(num), T), np.tile(np.arange(T), num)
    rollouts = [
        AuditRollout(f"r{i}", f"t{i}", "bare", 0.0, values=tuple(p[i]), statuses=statuses[i])
        for i in range(num)
    ]
    fields = {
        "rollout_id": np.array([f"r{i}" for i in at]),
        "step_index": place,
        "context": np.full(len(at), "bare"),
        "task_id": np.array([f"t{i}" for i in at]),
        "cluster": np.array([f"c{i // 4}" for i in at]),
        "level": np.ones(len(at), int),
        "split": np.full(len(at), "val"),
        "position": place / T,
        "p": p.ravel(),
        "k": np.random.default_rng(1).binomial(8, V.ravel()),
        "K": np.full(len(at), 8),
        "v_star": V.ravel(),
        "rollouts": tuple(rollouts),
    }
    return AuditData(**fields | changes)


def test_trees_that_know_the_errors_explain_what_errors_decide_and_no_more() -> None:
    """V is .8 before the first wrong step and .2 after it; the critic says .5 everywhere."""
    rng, T, num = np.random.default_rng(0), 6, 240
    first = rng.integers(0, 2 * T, size=num)  # half of the rollouts have no wrong step
    V = np.where(np.arange(T) > first[:, None], 0.2, 0.8)
    statuses = [tuple("wrong" if t == e else "ok" for t in range(T)) for e in first]
    audit = audit_of(
        V, statuses, np.full((num, T), 0.5), level=rng.integers(1, 4, size=num)[np.repeat(np.arange(num), T)]
    )
    ev = {
        names: measure(critic_quality.corrected(audit, names, 0), num_resamples=50, seed=0)["ev"].value
        for names in ((), ("level",), ("errors",))
    }
    assert ev["errors",] > 0.9
    assert ev[()] < 0.2  # the place alone
    assert abs(ev["level",] - ev[()]) < 0.05  # a level that means nothing


def test_the_first_fatal_step_is_the_first_that_lowers_what_could_be_reached() -> None:
    V = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.9, 0.9, 0.0]])
    marked = critic_quality.with_fatal_steps(audit_of(V, [("unknown",) * 4] * 3, V))
    assert [r.statuses.index("wrong") if "wrong" in r.statuses else None for r in marked] == [1, None, 0]


def test_yardstick_policies_are_all_played_and_second_attempts_are_never_worse() -> None:
    tasks = generate_tasks(num_companies=8, num_train=6, num_val=1, num_test=1, level_shares={3: 1.0})
    own = [task for task in tasks if task.split == "train"]
    success = {
        r.variant: r.value or 0 for r in phone_policies.rows_of("train", 3, own, 0) if r.metric == "success"
    }
    assert set(success) == {phone_policies.named("train", 3, policy) for policy in phone_policies.ROWS}
    assert success["train L3 oracle"] == 1.0
    for first, second in phone_policies.REMEMBERED.items():
        assert success[f"train L3 {second}"] >= success[f"train L3 {first}"]

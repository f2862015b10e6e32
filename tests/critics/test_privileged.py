"""Verdicts on earlier steps as a critic is told them: only backwards, of continuations too, and named."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import critics
from critics.fit.data import fit_data
from critics.frozen.calibrator import Calibrator, fit_calibrator
from critics.frozen.contract import save
from critics.frozen.critic import FrozenCritic
from critics.frozen.model import make_critic
from critics.logit import sigmoid
from critics.privileged import Counts, Privileged, counts_before, counts_of, with_words
from critics.readouts import value_positions
from pipeline.steps import check_tiling, joined, state_tokens
from pipeline.types import Label, Rollout
from tests.critics.conftest import make_rollout, make_task
from tests.critics.test_contract import CONTRACT_OF

VERDICTS = st.lists(
    st.sampled_from([("ok", ""), ("wrong", "form"), ("wrong", "locked"), ("unknown", "")]),
    min_size=1,
    max_size=8,
)
ROUNDING = 1e-5  # rows of other lengths are computed in other shapes
SHIFTS = {"ok": 0.4, "wrong": -1.0, "wrong again": -0.5, "wrong form": -2.0}


def encode(text: str) -> list[int]:
    """One token a character."""
    return [33 + ord(char) % 30 for char in text]


def judged(verdicts: Sequence[tuple[Any, str]], **changes: Any) -> Rollout:
    """A rollout whose steps have these verdicts."""
    played = make_rollout("a", num_steps=len(verdicts), **changes)
    steps = zip(played.steps, verdicts, strict=True)
    return replace(
        played,
        steps=tuple(replace(s, verifier_status=status, verifier_code=code) for s, (status, code) in steps),
    )


def continuation(whole: Rollout, start: int) -> Rollout:
    """The rest of a rollout from a state on, as a continuation of it."""
    used = whole.steps[start].token_start
    return replace(
        whole,
        rollout_id="later",
        kind="continuation",
        parent_rollout_ids=(whole.rollout_id,),
        start_step_index=start,
        prompt_token_ids=state_tokens(whole, start),
        response_token_ids=whole.response_token_ids[used:],
        loss_mask=whole.loss_mask[used:],
        logprobs=whole.logprobs[used:],
        steps=tuple(
            replace(s, token_start=s.token_start - used, token_end=s.token_end - used)
            for s in whole.steps[start:]
        ),
    )


@pytest.fixture(scope="module")
def told(tiny_trunk: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], FrozenCritic]:
    """A critic of each kind, with a random head; its words are those of `encode`."""
    torch.manual_seed(1)
    model = make_critic(tiny_trunk)
    with torch.no_grad():
        model.score.weight.normal_()
    found = {}
    for kind in ("none", "features", "words"):
        folder = tmp_path_factory.mktemp(kind)
        model.save_pretrained(folder)
        shifts = SHIFTS if kind == "features" else {}
        calibrators = {"phone": Calibrator(1.3, 0.8, -0.2, 0.4, 300, verdict_shifts=shifts)}
        save(folder, replace(CONTRACT_OF, calibrators=calibrators, privileged=kind))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Privileged, "of", classmethod(lambda cls, kind, _: cls(kind, encode)))
            found[kind] = critics.load(folder)
        assert found[kind].contract.privileged == kind
    return found.__getitem__


@pytest.mark.parametrize("kind", ["none", "features", "words"])
@settings(max_examples=60, deadline=None)
@given(data=st.data(), verdicts=VERDICTS, other=VERDICTS)
def test_the_value_before_a_step_uses_verdicts_of_earlier_steps_alone(
    told: Any, kind: str, data: Any, verdicts: Any, other: Any
) -> None:
    """Verdicts from step k on, and the outcome, change no value up to s_k; an earlier one changes some."""
    k = data.draw(st.integers(0, len(verdicts) - 1))
    rollout, critic = judged(verdicts), told(kind)
    ahead = [*verdicts[:k], *(other * 8)[: len(verdicts) - k]]
    changed = replace(judged(ahead), reward=0.0, finish_reason="ended", feedback_text="x")
    [before], [after] = critic.values([rollout]), critic.values([changed])
    np.testing.assert_allclose(before[: k + 1], after[: k + 1], rtol=0, atol=ROUNDING)
    differ = [i for i in range(len(verdicts)) if verdicts[:i] != ahead[:i]]
    if kind == "none":
        np.testing.assert_array_equal(before, after)
    elif kind == "words" and differ:
        [a], [b] = critic.value_logits([rollout]), critic.value_logits([changed])
        assert np.abs(a - b)[differ].max() > 1e-3


def test_each_verdict_before_a_state_counts_there() -> None:
    verdicts = [("ok", ""), ("wrong", "form"), ("unknown", ""), ("wrong", "locked"), ("ok", "")]
    form = {"ok": 1.0, "wrong": 1.0, "wrong form": 1.0}
    assert counts_before(verdicts) == [  # type: ignore[arg-type]
        {}, {"ok": 1.0}, form, form, form | {"wrong again": 1.0, "wrong locked": 1.0},
    ]  # fmt: skip
    assert counts_of(replace(judged(verdicts), steps=())) == []


@given(verdicts=VERDICTS, data=st.data())
def test_words_stand_after_their_step_and_states_stay_where_they_were(verdicts: Any, data: Any) -> None:
    rollout = judged(verdicts)
    read = with_words(rollout, None, encode)
    check_tiling(read)
    said = {"ok": encode("ok"), "unknown": []}
    for i, (step, own) in enumerate(zip(read.steps, rollout.steps, strict=True)):
        span = read.response_token_ids[step.token_start : step.token_end]
        assert span == rollout.response_token_ids[own.token_start : own.token_end]
        status, code = verdicts[i]
        words = said.get(status, encode(f"wrong {code}")) if i + 1 < len(verdicts) else []
        assert list(read.response_token_ids[step.token_end :][: len(words)]) == words
        # Where a reply follows the words, the state is read at the reply's last token, as without them.
        here, there = (value_positions(r)[i] for r in (read, rollout))
        assert read.token_ids[here] == rollout.token_ids[there]
    removed = len(read.response_token_ids) - len(rollout.response_token_ids)
    assert removed == sum(len(said.get(s, encode(f"wrong {c}"))) for s, c in verdicts[:-1])
    # A continuation is read as the end of the whole episode is, though its prompt is another one.
    start = data.draw(st.integers(0, len(verdicts) - 1))
    later = with_words(continuation(rollout, start), rollout, encode)
    assert later.token_ids == read.token_ids
    assert value_positions(later).tolist() == value_positions(read)[start:].tolist()
    stripped = replace(
        continuation(rollout, start), prompt_token_ids=(9, 9, *state_tokens(rollout, start)[3:])
    )
    assert with_words(stripped, rollout, encode).token_ids == (9, 9, *read.token_ids[3:])


@pytest.mark.parametrize("kind", ["features", "words"])
def test_a_continuation_has_the_values_of_the_episode_that_it_ends(told: Any, kind: str) -> None:
    whole = judged([("ok", ""), ("wrong", "form"), ("unknown", ""), ("wrong", "form")])
    later, critic = continuation(whole, 2), told(kind)
    assert joined(whole, later).steps == whole.steps
    [expected] = critic.values([whole])
    [found] = critic.values([later], {"a": whole})
    np.testing.assert_allclose(found, expected[2:], atol=1e-6)
    with pytest.raises(ValueError, match="continues a from step 2"):
        critic.values([later])
    [plain] = told("none").values([later])
    assert len(plain) == 2


def test_calibration_recovers_what_verdicts_mean() -> None:
    """log-odds V = z + .4 a right step - 1 after a wrong one - 2 more if it was a form."""
    rng, told, z = np.random.default_rng(0), list[Counts](), []
    for _ in range(6000):
        names = rng.choice(["ok", "form", "locked", ""], 4, p=[0.4, 0.2, 0.2, 0.2])
        told += counts_before([("ok", "") if n == "ok" else ("wrong" if n else "unknown", n) for n in names])  # type: ignore[misc]
        z += rng.normal(size=4).tolist()
    truth = np.array(z) + [
        0.4 * c.get("ok", 0) - 1.0 * c.get("wrong", 0) - 2.0 * c.get("wrong form", 0) for c in told
    ]
    k = rng.binomial(8, sigmoid(truth))
    step, rollout = np.tile(np.arange(4), 6000), np.repeat(np.arange(6000), 4)
    options: Any = {"base_logit": 0.0, "step_index": step, "rollout": rollout}
    found = fit_calibrator(np.array(z), k, np.full(len(z), 8), told=told, **options)
    assert np.abs(found(np.array(z), step_index=step, told=told) - sigmoid(truth)).max() < 0.05
    assert found.verdict_shifts["ok"] == pytest.approx(0.4, abs=0.05)
    assert found.verdict_shifts["wrong form"] - found.verdict_shifts["wrong locked"] == pytest.approx(
        -2, abs=0.1
    )
    with pytest.raises(ValueError, match="shifts by verdicts"):
        found(np.array(z), step_index=step)
    blind = fit_calibrator(np.array(z), k, np.full(len(z), 8), **options)
    assert not blind.verdict_shifts
    assert np.abs(blind(np.array(z), step_index=step) - sigmoid(truth)).mean() > 0.1
    few = slice(0, 4 * 100)  # below the number for other shifts a prior still holds these
    found = fit_calibrator(
        np.array(z)[few], k[few], np.full(400, 8), base_logit=0.0, rollout=rollout[few], told=told[few]
    )
    assert found.verdict_shifts["wrong"] + found.verdict_shifts["wrong form"] < -1.5
    assert (found.shift, found.position_shifts, found.slope_low) == (0.0, (), found.slope_high)
    guided = np.arange(len(z)) % 8 < 4
    both = fit_calibrator(np.array(z), k, np.full(len(z), 8), told=told, guided=guided, **options)
    assert both.guided_shift == pytest.approx(0, abs=0.1)


def test_a_fit_reads_what_the_frozen_critic_will_read() -> None:
    """Labelled rollouts and their continuations alike; what is held out counts the verdicts."""
    verdicts = [("ok", ""), ("wrong", "form"), ("unknown", ""), ("ok", "")]
    rollouts = [judged(verdicts, rollout_id=f"r{i}", task=f"t{i}", reward=float(i % 2)) for i in range(6)]
    labels = [
        Label(
            r.rollout_id,
            i,
            "bare",
            0,
            0,
            r.reward,
            float(r.reward or 0),
            1.0,
            "outcome_dense",
            r.policy_digest,
        )
        for r in rollouts
        for i in range(4)
    ]
    parts: Any = dict(
        zip(
            [f"r{i}" for i in range(6)],
            ["fit", "fit", "validate", "validate", "calibrate", "calibrate"],
            strict=True,
        )
    )
    tasks = {f"t{i}": make_task(f"t{i}", cluster=f"c{i}") for i in range(6)}
    later = continuation(rollouts[0], 2)
    reads = Privileged("words", encode)
    data = fit_data(
        labels, rollouts, tasks, parts, rule="outcome_dense", continuations=[later], privileged=reads
    )
    whole = [r.token_ids for r in reads.as_read(rollouts)]
    assert [tuple(row.token_ids) for row in data.fit] == [whole[0], whole[1], whole[0]]
    assert [tuple(row.token_ids) for row in data.validation.rows] == whole[2:4]
    assert data.calibration.told.tolist()[:4] == counts_before(verdicts)  # type: ignore[arg-type]
    at = value_positions(reads.as_read(rollouts)[0])
    assert np.flatnonzero(data.fit[0].columns["weight"]).tolist() == at.tolist()

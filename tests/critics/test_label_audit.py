import hashlib

import numpy as np
import pytest

from critics.labels.cost_report import audit_labels, noise_shares
from critics.labels.named_targets import retarget
from pipeline.types import StateRef
from tests.critics.conftest import build, make_rollout


def test_sources_duplicates_and_tokens_are_counted() -> None:
    """Two rollouts of one task that begin with the same step: s_0 and s_1 are the same state twice."""
    other = make_rollout("r1").response_token_ids
    rollouts = [
        make_rollout("r0", wrong={1: "form"}),
        make_rollout("r1", reward=0.0, response_token_ids=(*other[:4], *(t + 40 for t in other[4:]))),
        make_rollout("r2", task="t1", reward=0.0, guided=True),
        make_rollout("r3", task="t2", policy_digest="another"),
    ]
    sampled = [
        make_rollout(f"c{i}", start_step_index=2, num_steps=2, reward=reward, parent_rollout_ids=("r0",))
        for i, reward in enumerate((1.0, 0.0, None))
    ]
    samples = {StateRef("r0", 2, "bare"): sampled}
    labels, _ = build(rollouts, samples)
    found = audit_labels(labels, rollouts, samples)
    # Own outcomes at steps 0, 1 and 2 of three rollouts, whose fourth step is no such turn.
    assert found["num_labels"] == 9
    assert found["num_duplicates"] == 2
    assert found["guided_share"] == pytest.approx(3 / 9)
    assert found["sources"] == {
        "continuation": {"labels": 1, "samples": 2, "tokens": 3 * 6},  # the ungraded one was paid for too
        "outcome": {"labels": 9, "samples": 9, "tokens": 3 * 12},
        "no sample": {"labels": 0, "samples": 0, "tokens": 0},
    }
    assert found["base_rate"] == pytest.approx((3 + 1) / 11)
    assert found["noise_share"] is None  # one state does not vary


def test_tokens_are_hashed_once_however_many_states_are_labelled(monkeypatch) -> None:
    hashed = 0

    class Counting:
        def __init__(self, data: bytes = b"", *, digest_size: int) -> None:
            self.inner = blake2b(digest_size=digest_size)
            self.digest, self.hexdigest = self.inner.digest, self.inner.hexdigest
            self.update(data)

        def update(self, data: bytes) -> None:
            nonlocal hashed
            hashed += len(data)
            self.inner.update(data)

    rollouts = [make_rollout(f"r{i}", num_steps=200, reward=float(i)) for i in range(2)]
    labels = retarget(build(rollouts, {})[0], rollouts, "outcome_dense", policy="policy-0")
    blake2b = hashlib.blake2b
    monkeypatch.setattr(hashlib, "blake2b", Counting)
    assert audit_labels(labels, rollouts, {})["num_duplicates"] == 200
    assert hashed < 2 * 800 * 16


def test_an_outcome_that_a_rule_tells_every_state_is_a_sample_of_it() -> None:
    rollouts = [make_rollout("r0"), make_rollout("r1", reward=0.0)]
    soft, _ = build(rollouts, {})
    labels = retarget(soft, rollouts, "outcome_dense", policy="policy-0")
    found = audit_labels(labels, rollouts, {})["sources"]
    assert len(labels) == found["outcome"]["labels"] == sum(len(r.steps) for r in rollouts) > len(soft)
    assert found["no sample"]["labels"] == 0


@pytest.mark.parametrize("n", [2, 8])
def test_noise_shares_are_those_of_a_known_truth(n: int) -> None:
    rng = np.random.default_rng(0)
    V = rng.beta(0.5, 1.0, 20_000)
    chance = (V * (1 - V)).mean()
    share, one = noise_shares(rng.binomial(n, V), np.full(len(V), n))
    assert share == pytest.approx(chance / n / (V.var() + chance / n), abs=0.015)
    assert one == pytest.approx(chance / (V.mean() * (1 - V.mean())), abs=0.015)


@pytest.mark.parametrize(
    ("k", "shares"),
    [
        ([1, 3], (1.0, 1.0)),  # from two states on
        ([1], (None, None)),
        ([2, 2], (None, 4 / 3)),  # they do not vary, though one sample of each would
        ([4, 4], (None, None)),
    ],
)
def test_noise_has_no_share_of_few_states_or_of_what_does_not_vary(k, shares) -> None:
    assert noise_shares(np.array(k), np.full(len(k), 4)) == shares

import json
from dataclasses import replace

import numpy as np
import pytest

from critics.fit.convergence import task_brier
from critics.fit.held_out import check_enough, held_out, outcome_states
from critics.fit.loop import base_logit, calibrate, fit
from critics.fit.rows import critic_rows, num_states
from critics.fit.schedule import FitSettings, learning_rate, rows_of_update, schedule
from critics.frozen.calibrator import fit_calibrator
from critics.frozen.model import make_critic
from critics.labels.soft_targets import continued_labels, label_counts, state_weight
from critics.logit import logit, sigmoid
from pipeline.artifacts.signals import StopRequested
from pipeline.errors import ArtifactError, ExitCode
from pipeline.training.torch import TorchTrainer
from pipeline.types import Label
from tests.critics.conftest import NUM_CELLS, build, make_rollout, walks

START = FitSettings(
    head_updates=4, head_learning_rate=1e-2, learning_rate=3e-3, max_epochs=6, batch_states=64,
    evaluations_per_epoch=1,
)  # fmt: skip


def trainer_of(tiny_trunk) -> TorchTrainer:
    return TorchTrainer(make_critic(tiny_trunk), head="critic", learning_rate=lambda _: 0.0, weight_decay=0.0)


def fitted(trainer, world, settings=START, *, seed=0, keep=lambda number: None, **options):
    return fit(trainer, *world, settings, seed=seed, keep=keep, **options)


def weighted(rows):
    """The weights and targets of all labelled states, in order."""
    at = [row.columns["weight"] > 0 for row in rows]
    return (
        np.concatenate([row.columns[name][here] for row, here in zip(rows, at, strict=True)])
        for name in ("weight", "targets")
    )


@pytest.fixture
def world():
    rows = critic_rows(*walks(240, 0))
    return rows, held_out(*walks(80, 1))


def test_cross_entropy_on_counts_recovers_v_on_a_chain_that_can_be_enumerated(tiny_trunk, world) -> None:
    _, validation = world
    trainer = trainer_of(tiny_trunk)
    stored = {}

    def keep(number):
        stored[number] = {name: w.clone() for name, w in trainer.weights().items()}

    result = fitted(trainer, world, keep=keep, drop=lambda number: stored.pop(number))
    assert result.best in stored
    trainer.model.load_state_dict(stored[result.best])
    fresh = held_out(*walks(120, 2))
    p = calibrate(trainer, validation, base_logit=result.base_logit)(
        fresh.logits(trainer), step_index=fresh.step_index
    )
    cells = np.array(
        [fresh.rows[r].token_ids[t] - 20 for r, t in zip(fresh.row, fresh.position, strict=True)]
    )
    for cell in range(1, NUM_CELLS):
        assert p[cells == cell].mean() == pytest.approx(cell / NUM_CELLS, abs=0.05)
    assert np.sqrt(np.mean((p - cells / NUM_CELLS) ** 2)) < 0.06
    first, best = result.evaluations[0], result.evaluations[result.best]
    assert best["brier"] < first["brier"] - 0.03
    assert best["ev_within"] > 0.7
    assert first["ev_within"] == pytest.approx(0, abs=1e-6)  # a zero head predicts the base rate everywhere


def test_a_fit_stopped_anywhere_and_resumed_is_the_same_fit_bit_for_bit(tiny_trunk, world, tmp_path) -> None:
    settings = replace(START, max_epochs=2, evaluations_per_epoch=2)
    reference = trainer_of(tiny_trunk)
    result = fitted(reference, world, settings, seed=3)
    for stop_at in (3, 4, 9):
        trainer, saved = trainer_of(tiny_trunk), []

        def checkpoint(state, trainer=trainer, saved=saved):
            saved.append(json.dumps(state))
            trainer.save_checkpoint(tmp_path / f"{stop_at}-{len(saved)}")  # noqa: B023

        def stop(metrics):
            if metrics["update"] == stop_at:  # noqa: B023
                raise StopRequested("SIGTERM")

        with pytest.raises(StopRequested):
            fitted(trainer, world, settings, seed=3, on_update=stop, checkpoint=checkpoint)
        again = trainer_of(tiny_trunk)
        again.load_checkpoint(tmp_path / f"{stop_at}-{len(saved)}")
        assert again.num_updates == stop_at
        assert fitted(again, world, settings, seed=3, state=json.loads(saved[-1])) == result
        for name, weight in reference.weights().items():
            assert (weight == again.weights()[name]).all()


def test_weights_stay_as_long_as_either_of_the_two_states_that_are_kept_names_them(tiny_trunk, world) -> None:
    """If the later one is damaged, the fit goes on from the earlier."""
    stored, states, dropped = set(), [], []

    def drop(number):
        dropped.append(number)
        stored.remove(number)
        assert {each for state in states[-2:] for each in state["kept"]} <= stored

    fitted(trainer_of(tiny_trunk), world, keep=stored.add, drop=drop, checkpoint=states.append)
    assert dropped


def test_a_critic_that_cannot_learn_converges(tiny_trunk, world) -> None:
    still = replace(START, head_updates=1, head_learning_rate=0.0, learning_rate=0.0)
    result = fitted(trainer_of(tiny_trunk), world, still)
    assert result.converged
    assert [entry["stale"] for entry in result.evaluations] == [0, 0, 1, 2, 3]


def test_the_head_phase_moves_the_head_only_and_a_fit_cut_short_has_not_converged(tiny_trunk, world) -> None:
    trainer = trainer_of(tiny_trunk)
    before = {name: w.clone() for name, w in trainer.weights().items()}
    moved = {}

    def look(metrics):
        moved[metrics["update"]] = [n for n, w in trainer.weights().items() if bool((w != before[n]).any())]

    assert not fitted(trainer, world, replace(START, max_epochs=1), on_update=look).converged
    assert moved[4] == ["score.weight"]
    assert len(moved[max(moved)]) > 5


def test_the_order_of_rows_depends_on_seed_epoch_and_place_alone(world) -> None:
    rows, _ = world
    plan = schedule(rows, START)
    assert plan.per_epoch == -(-sum(map(num_states, rows)) // 64)
    epoch = [rows_of_update(rows, plan, plan.head + i, 0) for i in range(plan.per_epoch)]
    lengths = sorted(len(row.token_ids) for part in epoch for row in part)
    assert lengths == sorted(len(row.token_ids) for row in rows)
    assert sum(float(row.columns["weight"].sum()) for row in epoch[0]) == pytest.approx(1)

    def tokens(update, seed):
        return [row.token_ids.tolist() for row in rows_of_update(rows, plan, update, seed)]

    assert tokens(plan.head, 0) == tokens(plan.head, 0)
    assert tokens(plan.head, 0) != tokens(plan.head, 1)
    assert tokens(plan.head, 0) != tokens(plan.head + plan.per_epoch, 0)


def test_the_schedule_is_a_constant_and_then_a_cosine_and_starts_at_the_base_rate(world) -> None:
    rows, _ = world
    plan = schedule(rows, START)
    rate = learning_rate(plan, START)
    assert rate(0) == rate(3) == 1e-2
    assert rate(4) == pytest.approx(3e-3)
    assert rate(plan.total) == pytest.approx(3e-4)
    span = plan.total - plan.head
    for done in (0.25, 0.5):
        share = 0.1 + 0.9 * (1 + np.cos(np.pi * round(span * done) / span)) / 2
        assert rate(plan.head + round(span * done)) == pytest.approx(3e-3 * share)
    assert {0, plan.head, plan.total} <= plan.evaluations
    assert len(plan.evaluations) == 2 + 6
    weights, targets = weighted(rows)
    assert sigmoid(np.array(base_logit(rows))) == pytest.approx(
        np.average(targets, weights=weights), abs=1e-5
    )


def test_held_out_states_count_own_outcomes_but_judge_steps_by_fresh_samples() -> None:
    rollouts = [make_rollout("a", reward=1.0), make_rollout("b", task="t1", reward=0.0)]
    labels = [
        Label("a", 1, "bare", 4, 1, 1.0, 0.4, 5.0, "continuation", "p"),
        Label("a", 2, "bare", 0, 0, None, 0.3, 2.0, "recovery", "p"),
        Label("b", 0, "bare", 0, 0, 0.0, 0.0, 1.0, "outcome", "p"),
    ]
    states = held_out(rollouts, labels)
    assert states.num_success == pytest.approx([3, 0])  # the recovery label has no sample to be judged by
    assert states.num_samples.tolist() == [5, 1]
    assert states.fresh_samples.tolist() == [4, 0]
    p = np.array([0.6, 0.0])
    weights = np.array([5 / 7, 1 / 3])
    assert task_brier(p, states).mean() == pytest.approx(np.average([0.24, 0.0], weights=weights))


def test_every_state_of_a_graded_rollout_calibrates_by_its_outcome() -> None:
    rollouts = [
        make_rollout("a", num_steps=3, reward=1.0),
        make_rollout("b", task="t1", num_steps=2, reward=None, env_status="infra_failed"),
        make_rollout("c", task="t1", num_steps=2, reward=0.0, attempt=1, guided=True),
    ]
    states = outcome_states(rollouts)
    assert states.row.tolist() == [0] * 3 + [1] * 2
    assert states.step_index.tolist() == [0, 1, 2, 0, 1]
    assert states.num_success.tolist() == [1, 1, 1, 0, 0]
    assert states.num_samples.tolist() == [1] * 5
    assert states.context.tolist() == ["bare"] * 3 + ["guided"] * 2


def test_outcomes_calibrate_to_the_truth_where_failures_end_early(early_failures) -> None:
    rollouts, V = early_failures
    states = outcome_states(rollouts)
    at, counts = states.step_index, (states.num_success, states.num_samples)
    calibrator = fit_calibrator(logit(V[at]), *counts, base_logit=0.0, step_index=at)
    assert calibrator(logit(V[:3]), step_index=np.arange(3)) == pytest.approx(V[:3], abs=0.03)


def test_states_that_continuations_came_to_share_their_tasks_weight_and_change_no_other() -> None:
    """Continued are the starts of all and, of a failure, another state; one continuation ends at once."""
    rollouts = [make_rollout("a"), make_rollout("b", task="t1", reward=0.0)]
    continuations = []
    for parent, start, reward in ((0, 0, 1.0), (1, 0, 0.0), (1, 2, 1.0), (1, 3, 0.0)):
        whole, task = make_rollout(f"{parent}-{start}", reward=reward), rollouts[parent].task_id
        how = {"start_step_index": start, "parent_rollout_ids": (rollouts[parent].rollout_id,)}
        continuations.append(replace(whole, task_id=task, steps=whole.steps[start:], **how))
    labels = continued_labels(continuations, label_policy_digest="p")
    # The state that was asked about has its own label.
    expected = [*(("0-0", i) for i in (1, 2, 3)), *(("1-0", i) for i in (1, 2, 3)), ("1-2", 3)]
    assert [(label.rollout_id, label.step_index) for label in labels] == expected
    assert [label_counts(label) for label in labels] == [(label.outcome, 1) for label in labels]
    own, _ = build(rollouts, {})
    alone, rows = critic_rows(rollouts, own), critic_rows(rollouts, own + labels, continuations=continuations)
    for before, after in zip(alone, rows, strict=False):
        np.testing.assert_array_equal(before.columns["weight"], after.columns["weight"])
    weights, targets = weighted(rows[len(rollouts) :])
    assert targets.tolist() == [1, 1, 1, 0, 0, 0, 1]
    np.testing.assert_allclose(weights, state_weight(1.0) / np.array([1, 1, 1, 3, 3, 3, 3]), rtol=1e-6)


def test_what_cannot_be_fitted_or_validated_on_is_said_at_once(world) -> None:
    """The Brier of samples that all end alike would fall to nothing at once, and no later look gain."""
    rows, validation = world
    alike = {won: replace(validation, num_success=won * validation.num_samples) for won in (0, 1)}
    for fitted, states, said, code in (
        ([], validation, "0 labelled rollouts to fit", ExitCode.ARTIFACT),
        (rows, held_out([], []), "0 validation tasks", ExitCode.ARTIFACT),
        (rows, alike[0], "samples of the .* validation tasks fail;", ExitCode.QUALITY),
        (rows, alike[1], "samples of the .* validation tasks succeed;", ExitCode.QUALITY),
    ):
        with pytest.raises(ArtifactError, match=said) as told:
            check_enough(fitted, states, continued=False)
        assert told.value.code == code
    # Only where states were continued does a cap on them leave labels unmade.
    for continued in (False, True):
        with pytest.raises(ArtifactError, match=r"Next: more rollouts \(rollouts\.num_tasks\)") as told:
            check_enough([], validation, continued=continued)
        assert ("labels.max_states" in str(told.value)) is continued

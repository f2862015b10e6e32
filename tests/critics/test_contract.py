import json
import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, LlamaConfig, LlamaForCausalLM

import critics
from critics.fit.rows import critic_rows, normalised
from critics.frozen.calibrator import Calibrator
from critics.frozen.contract import CONTRACT, REWARD, Contract, read_contract, save
from critics.frozen.critic import read_value_logits
from critics.frozen.model import make_critic
from critics.privileged import Privileged
from critics.readouts import error_positions, value_positions
from pipeline.errors import ArtifactError
from pipeline.training import TrainingRow
from pipeline.types import Label
from tests.critics.conftest import make_rollout

CONTRACT_OF = Contract(
    tokenizer_digest="tok", template_digest="tpl", label_policy_digest="policy-0", labels_digest="labels",
    splitter="message", families=("phone",), contexts=("bare",), reward=REWARD, gamma=1.0, temperature=1.0,
    top_p=1.0, top_k=-1, max_response_tokens=64, converged=True, convergence={"best": 3},
    calibrators={"phone": Calibrator(1.3, 1.3, -0.2, 0.4, 300)},
)  # fmt: skip


@pytest.fixture(scope="module")
def frozen(tiny_trunk, tmp_path_factory):
    """A critic with a random head, saved."""
    model = make_critic(tiny_trunk)
    assert not model.score.weight.any()  # starts at the base rate
    torch.manual_seed(1)
    with torch.no_grad():
        model.score.weight.normal_()
    folder = tmp_path_factory.mktemp("critic")
    model.save_pretrained(folder)
    return folder, model, save(folder, CONTRACT_OF)


def label(name: str, step: int, target: float, weight: float, context: str = "bare") -> Label:
    return Label(name, step, context, 8, 0, None, target, weight, "x", "p")


def test_one_causal_pass_gives_what_the_sequence_classifier_gives_prefix_by_prefix(frozen):
    folder, _, saved_digest = frozen
    rollout = make_rollout("a", num_steps=6)
    critic = critics.load(folder)
    assert (critic.digest, critic.contract) == (saved_digest, CONTRACT_OF)
    [z] = critic.value_logits([rollout])
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    for step, ours in zip(rollout.steps, z, strict=True):
        prefix = rollout.prompt_token_ids + rollout.response_token_ids[: step.token_start]
        with torch.no_grad():
            theirs = model(torch.tensor([prefix])).logits
        assert theirs.shape == (1, 2)
        assert ours == pytest.approx(theirs[0, 0].item(), abs=1e-5)
    assert np.ptp(z) > 0.1


def test_a_bare_prompt_alone_has_the_value_of_its_rollouts_at_the_start(frozen):
    critic = critics.load(frozen[0])
    shifts = {"position_shifts": (0.3, -0.2), "verdict_shifts": {"ok": 0.5}, "guided_shift": 1.0}
    critic.contract = replace(CONTRACT_OF, calibrators={"phone": Calibrator(1.3, 1.1, -0.2, 0.4, **shifts)})
    critic.privileged = Privileged("features")
    rollouts = [make_rollout(name, prompt_token_ids=ids) for name, ids in (("a", (1, 2, 3)), ("b", (4, 2)))]
    found = critic.start_values([r.prompt_token_ids for r in rollouts])
    np.testing.assert_allclose(found, [v[0] for v in critic.values(rollouts)], atol=1e-6)
    assert found[0] != pytest.approx(found[1])


def test_no_value_looks_ahead(frozen):
    """Other tokens, verdicts and endings from a step on leave all values up to it alone, to the bit."""
    rollout = make_rollout("a", num_steps=6)
    critic = critics.load(frozen[0])
    [before] = critic.values([rollout])
    ending = {"reward": 0.0, "finish_reason": "failure", "feedback_text": "no"}
    length = len(rollout.response_token_ids)
    for step in rollout.steps:
        start = step.token_start
        tokens = (*rollout.response_token_ids[:start], *(40 + t % 9 for t in range(start, length)))
        later = [replace(s, text="other", verifier_status="wrong") for s in rollout.steps[step.step_index :]]
        steps = (*rollout.steps[: step.step_index], *later)
        [after] = critic.values([replace(rollout, response_token_ids=tokens, steps=steps, **ending)])
        np.testing.assert_array_equal(after[: step.step_index + 1], before[: step.step_index + 1])
        assert (after[step.step_index + 1 :] != before[step.step_index + 1 :]).all()


def test_a_changed_file_or_contract_is_refused(frozen, tmp_path):
    folder = tmp_path / "critic"
    shutil.copytree(frozen[0], folder)
    weights, contract = folder / "model.safetensors", folder / CONTRACT
    whole, text = weights.read_bytes(), contract.read_text()
    for path, content, problem in (
        (weights, whole[:-1] + bytes([whole[-1] ^ 1]), "SHA-256"),
        (contract, text.replace('"shift": -0.2', '"shift": 3.0').encode(), "changed after"),
        (contract, b"{", "damaged"),
    ):
        sound = path.read_bytes()
        assert content != sound
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match=problem):
            read_contract(folder)
        assert path == contract or read_contract(folder, with_files=False)[1] == frozen[2]
        path.write_bytes(sound)
        read_contract(folder)
    contract.unlink()
    with pytest.raises(ArtifactError, match="make critic"):
        critics.load(folder)


def test_any_mismatch_is_refused(frozen):
    critic = critics.load(frozen[0])
    made_for = asdict(CONTRACT_OF)
    wrong = {
        "tokenizer_digest": "x", "template_digest": "x", "label_policy_digest": "x", "temperature": 0.7,
        "max_response_tokens": 65, "top_p": 0.9, "top_k": 40, "gamma": 0.99, "splitter": "lines",
        "reward": "points", "families": ("phone", "math"), "contexts": ("bare", "guided"),
    }  # fmt: skip
    critic.check_matches(**{name: made_for[name] for name in wrong})
    for name, given in wrong.items():
        with pytest.raises(ArtifactError, match="make critic"):
            critic.check_matches(**{name: given})
    with pytest.raises(ArtifactError, match=r"row 1, rollout b: .*tokenizer_digest"):
        critic.values([make_rollout("a"), make_rollout("b", tokenizer_digest="x")])


def test_a_folder_without_a_model_or_pad_token_is_no_trunk(tiny_trunk, tmp_path):
    with pytest.raises(ArtifactError, match=r"config\.json"):
        make_critic(tmp_path)
    folder = tmp_path / "changed"
    shutil.copytree(tiny_trunk, folder)
    config = json.loads((folder / "config.json").read_text())
    for change, problem in (
        ({"pad_token_id": None}, "pad token"),
        ({"model_type": "t5"}, "is a t5.* name a decoder"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ArtifactError, match=problem):
            make_critic(folder)


def test_any_decoder_with_a_classifier_of_its_kind_is_a_trunk(tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    causal = LlamaForCausalLM(LlamaConfig(vocab_size=64, pad_token_id=0, **sizes))
    causal.save_pretrained(tmp_path)
    critic = make_critic(tmp_path)
    assert not critic.score.weight.any()
    assert torch.equal(critic.model.embed_tokens.weight, causal.model.embed_tokens.weight)


def test_targets_stand_where_the_state_is_read_and_errors_where_the_step_ends():
    rollout = make_rollout("a", wrong={1: "missing"})
    # Prompt 3 tokens; steps of 3 tokens at 0, 4, 8, 12 of the response.
    assert value_positions(rollout).tolist() == [2, 6, 10, 14]
    assert error_positions(rollout).tolist() == [5, 9, 13, 17]
    [row] = critic_rows([rollout], [label("a", 0, 0.25, 8.0), label("a", 2, 0.75, 2.0)])
    assert np.flatnonzero(row.columns["weight"]).tolist() == [2, 10]
    assert row.columns["weight"][2] == pytest.approx(0.8)
    assert row.columns["targets"][[2, 10]].tolist() == [0.25, 0.75]
    assert row.columns["error_targets"][[5, 9, 13, 17]].tolist() == [0, 1, 0, 0]
    weights = row.columns["error_weights"]
    assert weights[9] == pytest.approx(weights[[5, 13, 17]].sum()) == pytest.approx(0.5)
    steps = (*rollout.steps[:3], replace(rollout.steps[3], verifier_status="unknown"))
    [row] = critic_rows([replace(rollout, steps=steps)], [label("a", 0, 1.0, 8.0)])
    assert row.columns["error_weights"][17] == 0  # an unknown verdict teaches nothing
    [row] = critic_rows([make_rollout("a")], [label("a", 0, 1.0, 8.0)])
    assert not row.columns["error_weights"].any()  # one class alone


def test_first_attempts_share_a_tasks_weight_and_updates_are_normalised():
    rollouts = [make_rollout("a"), make_rollout("b"), make_rollout("c", task="t1"), make_rollout("d")]
    rollouts.append(make_rollout("e", attempt=1))
    labels = [label("a", 0, 1.0, 8.0), label("b", 1, 1.0, 8.0), label("c", 0, 0.0, 1.0)]
    labels.append(label("e", 0, 0.0, 8.0))
    rows = critic_rows(rollouts, labels)
    assert len(rows) == 4  # d has no label
    sums = [float(row.columns["weight"].sum()) for row in rows]
    assert sums == pytest.approx([0.4, 0.4, 1 / 3, 0.4])
    assert sum(float(row.columns["weight"].sum()) for row in normalised(rows)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "step", "context", "problem"),
    [("z", 0, "bare", "not given"), ("a", 9, "bare", "fits no step"), ("a", 0, "guided", "fits no step")],
)
def test_labels_of_nothing_are_refused(name, step, context, problem):
    with pytest.raises(ValueError, match=problem):
        critic_rows([make_rollout("a")], [label(name, step, 1.0, 8.0, context=context)])


def test_a_loaded_critic_has_the_values_that_it_had_before_it_was_frozen(frozen, tmp_path):
    _, model, _ = frozen
    model.save_pretrained(tmp_path)
    shifts = {"guided_shift": -0.7, "position_shifts": (0.1, -0.3, 0.5, -0.2, 0.8)}
    calibrator = Calibrator(1.3, 0.8, -0.2, 0.4, 300, **shifts)
    save(tmp_path, replace(CONTRACT_OF, contexts=("bare", "guided"), calibrators={"phone": calibrator}))
    rollouts = [make_rollout(f"r{i}", num_steps=2 + i, guided=i % 2 == 1) for i in range(6)]
    loaded = critics.load(tmp_path).values(rollouts)
    rows = [TrainingRow(np.array(r.token_ids, dtype=np.int32)) for r in rollouts]
    # A row at a time: how rows are batched changes no value.
    logits = read_value_logits(model, rows, [value_positions(r) for r in rollouts], 1)
    for rollout, values, z in zip(rollouts, loaded, logits, strict=True):
        before = calibrator(z, step_index=np.arange(len(z)), guided=rollout.guided)
        np.testing.assert_allclose(values, before, rtol=0, atol=1e-5)

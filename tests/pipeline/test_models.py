import json
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.engines.vllm import complete_weights
from pipeline.errors import ArtifactError
from pipeline.models import policy as policies
from pipeline.models.folder import check_policy_folder, weight_files
from pipeline.models.policy import (
    Policy,
    load_policy,
    load_tokenizer,
    save_for_serving,
    save_policy,
    tokenizer_digest,
    weights_digest,
)
from pipeline.models.tiny import TinyShape, make_tiny_model, train_tokenizer
from pipeline.report.model_card import weights_facts

TEXTS = [f"U: dispute a bill at Amber Ridge {n}\nA: call 555-01{n:02d} R1 ?account_number" for n in range(40)]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}<|im_end|>{% endfor %}"
)
SHAPE = TinyShape(32, 2, 4, 2, 8, 48, 128)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    return train_tokenizer(TEXTS, 320, tmp_path / "tokenizer", TEMPLATE)


@pytest.fixture
def policy(tmp_path: Path, tokenizer: Any) -> Policy:
    torch.manual_seed(0)
    save_policy(make_tiny_model(SHAPE, tokenizer), tokenizer, tmp_path / "policy")
    return load_policy(tmp_path / "policy")


def test_any_text_survives_encoding_and_decoding(tokenizer: Any) -> None:
    for text in ("", "call 555-0102", "  two  blanks\n\n", "né 漢字 🙂 \x07", "x<|im_end|>y", "don't 12.50"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_numbers_are_cut_into_pairs_and_never_into_more(tmp_path: Path) -> None:
    texts = [f"call 555-{number:04d} R1" for number in range(0, 10_000, 7)]
    tokenizer = train_tokenizer(texts, 500, tmp_path, TEMPLATE)
    tokens = [tokenizer.decode([token]) for token in tokenizer.encode("call 555-0102 R1")]
    assert tokens[1:4] == [" 555-", "01", "02"]


def test_special_tokens_are_one_token_each_and_never_come_from_their_pieces(tokenizer: Any) -> None:
    assert len(tokenizer.encode("<|im_end|>")) == 1
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"
    assert tokenizer.eos_token_id not in tokenizer.encode("<|im_en d|>")


def test_training_is_repeatable_and_the_digest_sees_the_vocabulary(tokenizer: Any, tmp_path: Path) -> None:
    again = train_tokenizer(TEXTS, 320, tmp_path / "again", TEMPLATE)
    other = train_tokenizer(["other words in other places"], 320, tmp_path / "other", TEMPLATE)
    assert tokenizer_digest(again) == tokenizer_digest(tokenizer) != tokenizer_digest(other)
    tokenizer(["a", "a b c"], padding=True)  # leaves a state behind, which is no property of the tokenizer
    assert tokenizer_digest(again) == tokenizer_digest(tokenizer)


def test_a_policy_survives_saving_and_loading(policy: Policy, tmp_path: Path, tokenizer: Any) -> None:
    torch.manual_seed(0)
    made = make_tiny_model(SHAPE, tokenizer)
    assert policy.policy_digest == weights_digest(made.state_dict())
    assert policy.tokenizer_digest == tokenizer_digest(tokenizer)
    assert policy.tokenizer.chat_template == TEMPLATE
    assert policy.tokenizer.encode(TEXTS[3]) == tokenizer.encode(TEXTS[3])
    assert not policy.model.training
    ids = torch.tensor([tokenizer.encode(TEXTS[0])])
    with torch.inference_mode():
        assert torch.equal(policy.model(ids).logits, made(ids).logits)
    save_policy(policy.model, policy.tokenizer, tmp_path / "again")
    again = load_policy(tmp_path / "again")
    assert (again.policy_digest, again.tokenizer_digest) == (policy.policy_digest, policy.tokenizer_digest)


def test_a_saved_policy_opens_offline_with_plain_transformers(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = AutoModelForCausalLM.from_pretrained(policy.folder)
    tokenizer = AutoTokenizer.from_pretrained(policy.folder)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert weights_digest(model.state_dict()) == policy.policy_digest
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert text == "user: hi<|im_end|>"


def test_a_base_s_named_templates_are_not_served(policy: Policy, tmp_path: Path) -> None:
    """transformers takes the one called tool_use as soon as a prompt has tools."""
    base = policy.tokenizer
    base.chat_template = {"default": TEMPLATE, "tool_use": "another format"}
    folder = tmp_path / "served"
    base.save_pretrained(folder)  # what an adopted base's folder may hold already
    save_for_serving(base, folder, stop_token="<|im_end|>", chat_template=f"own {TEMPLATE}")
    assert load_tokenizer(folder).chat_template == f"own {TEMPLATE}"
    assert base.chat_template["tool_use"] == "another format"  # whose it is


def test_a_base_s_defaults_of_sampling_are_not_taken_and_need_not_be_valid(
    policy: Policy, tmp_path: Path, tokenizer: Any
) -> None:
    """transformers warns when it loads these, and refuses to save them: after all of a training."""
    defaults = {"do_sample": False, "temperature": 0.6, "top_p": 0.9, "eos_token_id": 7}
    (policy.folder / "generation_config.json").write_text(json.dumps(defaults), "utf-8")
    save_policy(load_policy(policy.folder).model, tokenizer, tmp_path / "exported")
    exported = load_policy(tmp_path / "exported")
    assert exported.policy_digest == policy.policy_digest
    assert (exported.model.generation_config.eos_token_id, exported.model.generation_config.top_p) == (
        7,
        None,
    )


def test_embeddings_are_tied_and_weights_have_the_asked_spread(tokenizer: Any) -> None:
    torch.manual_seed(0)
    model = make_tiny_model(replace(SHAPE, initializer_range=0.3), tokenizer)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.model.layers[0].mlp.up_proj.weight.std().item() == pytest.approx(0.3, rel=0.1)


def test_the_digest_of_weights_sees_names_shapes_and_contents_but_no_order() -> None:
    a, b = torch.arange(6.0).reshape(2, 3), torch.ones(4)
    base = weights_digest({"a": a, "b": b})
    assert weights_digest({"b": b, "a": a.clone()}) == base
    others = [{"a": b, "b": a}, {"a": a.reshape(3, 2), "b": b}, {"a": a, "b": b.double()}, {"a": a}]
    changed = b.clone()
    changed[3] = 1.0000001
    assert len({base, *map(weights_digest, others), weights_digest({"a": a, "b": changed})}) == 6


def test_a_digest_is_of_the_whole_stream_or_of_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"b": torch.arange(40.0), "a": torch.ones(3, 2, dtype=torch.bfloat16), "c": torch.ones(0)}
    heads = (b"a\0torch.bfloat16\0(3, 2)\0", b"b\0torch.float32\0(40,)\0", b"c\0torch.float32\0(0,)\0")
    stream = heads[0] + b"\x80\x3f" * 6 + heads[1] + weights["b"].numpy().tobytes() + heads[2]
    assert weights_digest(weights) == sha256(stream).hexdigest()
    for size in (1, 7, 64, len(stream) - 1):
        monkeypatch.setattr(policies, "PIECE_BYTES", size)
        pieces = [stream[place : place + size] for place in range(0, len(stream), size)]
        pieces += [b""] if len(stream) % size == 0 else []
        whole = b"".join(sha256(piece).digest() for piece in pieces)
        assert weights_digest(weights) == sha256(whole).hexdigest()


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", b"{", "not a JSON object"),
        ("config.json", b'{"architectures": ["Qwen3ForTokenClassification"]}', "not a causal language model"),
        ("model.safetensors", None, "no weights"),
        ("model.safetensors", b"\x08\0\0\0\0\0\0\0not json", "are not readable"),
        ("tokenizer.json", None, "no tokenizer"),
        ("tokenizer.json", b"{", "cannot load the policy in"),
    ],
)
def test_a_folder_that_is_no_policy_is_refused_by_what_is_missing(
    policy: Policy, file: str, content: bytes | None, words: str
) -> None:
    (policy.folder / file).unlink()
    if content is not None:
        (policy.folder / file).write_bytes(content)
    with pytest.raises(ArtifactError, match=words):
        load_policy(policy.folder)


def test_no_folder_and_weights_of_another_shape_are_refused(policy: Policy) -> None:
    config = policy.folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"intermediate_size": 64}))
    with pytest.raises(ArtifactError, match=r"shape|cannot load the policy"):
        load_policy(policy.folder)
    with pytest.raises(ArtifactError, match="no such folder"):
        load_policy(policy.folder / "elsewhere")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard", ["50GB", "20KB"])
def test_the_digest_of_files_is_that_of_the_model_they_hold(
    dtype: torch.dtype, tied: bool, shard: str, policy: Policy, tmp_path: Path, tokenizer: Any
) -> None:
    from transformers import Qwen3ForCausalLM

    policy.config.tie_word_embeddings = tied
    made = Qwen3ForCausalLM(policy.config).to(dtype)
    folder = tmp_path / "given"
    made.save_pretrained(folder, max_shard_size=shard)
    tokenizer.save_pretrained(folder)
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (shard == "20KB")
    loaded = load_policy(folder)
    assert "model" not in vars(loaded)  # it is not read before it is asked for
    assert loaded.policy_digest == weights_digest(loaded.model.state_dict())
    assert loaded.policy_digest == weights_digest(made.float().state_dict())


def test_files_with_more_than_the_model_are_read_as_transformers_reads_them(policy: Policy) -> None:
    from safetensors.torch import load_file, save_file

    [file] = policy.folder.glob("*.safetensors")
    weights = load_file(file)
    save_file(weights | {"model.rotary.inv_freq": torch.zeros(4)}, file, metadata={"format": "pt"})
    assert load_policy(policy.folder).policy_digest == policy.policy_digest
    save_file({k: v for k, v in weights.items() if "norm" not in k}, file, metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match="do not fill the model"):
        load_policy(policy.folder)


def test_a_base_that_holds_its_weights_twice_is_read_once(policy: Policy, tmp_path: Path) -> None:
    """As Mistral's repositories do: the second file has other names and dtypes for the same numbers."""
    from safetensors.torch import save_file

    save_file({"tok_embeddings.weight": torch.ones(2, 2)}, policy.folder / "consolidated.safetensors")
    assert load_policy(policy.folder).policy_digest == policy.policy_digest
    assert set(complete_weights(policy.model.state_dict(), policy.folder)) == set(policy.model.state_dict())
    parameters = sum(p.numel() for p in policy.model.parameters())
    assert weights_facts(policy.folder)["parameters"] == f"{parameters:,}"
    shards = tmp_path / "shards"
    policy.model.save_pretrained(shards, max_shard_size="20KB")
    save_file({"tok_embeddings.weight": torch.ones(2, 2)}, shards / "consolidated.safetensors")
    assert all(path.name.startswith("model-0") for path in weight_files(shards))
    assert len(weight_files(shards)) > 1


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (None, "so which one counts is not known"),
        ("{", "is damaged"),
        ('{"weight_map": {"a": "../b.safetensors"}}', "which is no file beside it"),
        ('{"weight_map": {"a": "c.safetensors"}}', "are not readable"),  # it is not there
        ('{"weight_map": {"a": "a.safetensors"}}', "has both model.safetensors and"),
    ],
)
def test_weights_that_two_readers_would_read_differently_are_refused(
    policy: Policy, index: str | None, words: str
) -> None:
    whole = policy.folder / "model.safetensors"
    for name in ("a.safetensors", "b.safetensors"):
        shutil.copy(whole, policy.folder / name)
    if index is not None:
        (policy.folder / "model.safetensors.index.json").write_text(index)
    if words[:4] != "has ":
        whole.unlink()
    with pytest.raises(ArtifactError, match=words):
        check_policy_folder(policy.folder)


def test_an_unread_model_has_the_names_shapes_and_ties_of_the_read_one(policy: Policy) -> None:
    unread, read = policy.unread(), policy.model
    shapes = [[(name, p.shape) for name, p in model.named_parameters()] for model in (unread, read)]
    assert shapes[0] == shapes[1]
    assert unread.lm_head.weight is unread.model.embed_tokens.weight

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from pipeline.config import differences, load_config, split_settings
from pipeline.errors import ConfigError
from pipeline.settings import Section, known_keys, runtime


class Chain(Section):
    num_attempts: int = Field(4, ge=1, description="rounds of a chain")
    shares: dict[str, float] = Field({"a": 0.5, "b": 0.5}, description="shares")


class Rollouts(Section):
    chain: Chain = Chain()
    levels: dict[int, float] = Field({1: 1.0}, description="levels")
    splits: tuple[str, ...] = Field(("val",), description="splits")
    rate: float = Field(0.1, gt=0, description="learning rate")
    cap: int | None = Field(None, ge=1, description="cap")
    on: bool = Field(True, description="switch")
    max_live: int = runtime(8, ge=1, description="in flight")


class Config(Section):
    rollouts: Rollouts = Rollouts()


def load(tmp_path: Path, text: str, *overrides: str, model: Any = Config) -> Any:
    path = tmp_path / "laptop.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(model, path, overrides)


def refusal(tmp_path: Path, text: str, *overrides: str, model: Any = Config) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, *overrides, model=model)
    assert caught.value.code == 2
    return str(caught.value)


class TwoSections(Section):
    first: Chain = Chain()
    second: Chain = Chain()


def test_an_override_changes_one_of_two_sections_that_share_a_table_by_alias(tmp_path: Path) -> None:
    text = "first: &chain {num_attempts: 2}\nsecond: *chain\n"
    config = load(tmp_path, text, "second.num_attempts=7", model=TwoSections)
    assert (config.first.num_attempts, config.second.num_attempts) == (2, 7)


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "# nothing\n") == Config()


def test_values_come_from_the_file_then_from_overrides(tmp_path: Path) -> None:
    text = "rollouts: {rate: 1e-4, levels: {2: 1}, splits: [a, b], chain: {num_attempts: 2}}"
    config = load(tmp_path, text, "rollouts.chain.num_attempts=3", "rollouts.cap=7", "rollouts.on=false")
    assert config.rollouts.rate == 1e-4
    assert config.rollouts.levels == {2: 1.0}
    assert config.rollouts.splits == ("a", "b")
    assert (config.rollouts.chain.num_attempts, config.rollouts.cap, config.rollouts.on) == (3, 7, False)
    assert load(tmp_path, text, "rollouts.cap=null").rollouts.cap is None
    assert load(tmp_path, text, "rollouts={rate: 2}").rollouts.rate == 2.0
    assert load(tmp_path, text, "rollouts.splits=[x]").rollouts.splits == ("x",)


def test_an_override_of_one_entry_keeps_the_others_of_a_table(tmp_path: Path) -> None:
    config = load(tmp_path, "rollouts: {levels: {1: 0.5, 2: 0.5}}", "rollouts.levels.2=0.9")
    assert config.rollouts.levels == {1: 0.5, 2: 0.9}


WRONG_FILES = {
    "rollouts: {rte: 1}": "laptop.yaml: rollouts.rte is not a setting; did you mean rollouts.rate?",
    "rollout: {rate: 1}": "rollout is not a setting; did you mean rollouts?",
    "rollouts: {num_atempts: 1}": "did you mean rollouts.chain.num_attempts?",
    "rollouts: {xyz: 1}": "rollouts.xyz is not a setting; allowed: rollouts.chain, rollouts.levels",
    "rollouts: {chain: {num_attempts: 0}}": "= 0, but it should be greater than or equal to 1 (rounds of a",
    "rollouts: {chain: {num_attempts: '4'}}": 'num_attempts = "4", but it should be a valid integer',
    "rollouts: {chain: {num_attempts: true}}": "rollouts.chain.num_attempts = true",
    "rollouts: {rate: .nan}": "rollouts.rate = NaN",
    "rollouts: {rate: .inf}": "rollouts.rate",
    "rollouts: {on: 1}": "rollouts.on = 1",
    "rollouts: 3": "rollouts = 3",
    "[1, 2]": "a configuration is a table",
    "rollouts: {rate: 1, rate: 2}": "'rate' is given twice",
    "rollouts: {rate: 1": "not valid YAML",
    "rollouts: !!python/object/apply:os.system [true]": "not valid YAML",
    "rollouts: &own {chain: *own}": "not valid YAML",
    "rollouts: {? [1] : 2}": "not a name",
}
WRONG_OVERRIDES = {
    "rollouts.chain.num_atempts=1": "override rollouts.chain.num_atempts=1: rollouts.chain.num_atempts is",
    "foo.bar=1": "with override foo.bar=1: foo is not a setting",
    "rollouts.rate": "override 'rollouts.rate' is not of the form",
    "=3": "is not of the form",
    "rollouts.rate={": "not valid YAML",
    "rollouts.rate.deep=1": "rollouts.rate = {",
    "rollouts.cap.deep=1": "rollouts.cap = {",
}


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    assert len(refusal(tmp_path, "rollouts: {rte: 1, cap: 0, rate: -1}").splitlines()) == 3


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path}/absent.yaml: cannot read")):
        load_config(Config, tmp_path / "absent.yaml")


def test_semantic_and_runtime_settings_are_told_apart_at_every_depth() -> None:
    semantic, other = split_settings(Config())
    assert other == {"rollouts": {"max_live": 8}}
    assert semantic["rollouts"]["chain"] == {"num_attempts": 4, "shares": {"a": 0.5, "b": 0.5}}
    assert "max_live" not in semantic["rollouts"]
    assert semantic["rollouts"]["levels"] == {"1": 1.0}


def test_differences_name_every_changed_field_and_tell_true_from_one() -> None:
    assert differences({"a": {"b": 1}}, {"a": {"b": True}}) == ["a.b: 1 -> true"]
    assert differences({"a": 1}, {"a": 1}) == []
    assert differences({"a": {"x": 1}}, {"a": {}}) == ["a: (absent) -> {}", "a.x: 1 -> (absent)"]


class Torch(Section):
    backend: Literal["torch"] = "torch"
    threads: int = runtime(0, ge=0, description="CPU threads")
    rank: int = Field(0, ge=0, description="width of adapters")


class Deepspeed(Section):
    backend: Literal["deepspeed"] = "deepspeed"
    threads: int = runtime(0, ge=0, description="CPU threads")
    num_ranks: int = runtime(1, ge=1, description="processes")


class WithUnion(Section):
    training: Annotated[Torch | Deepspeed, Field(discriminator="backend")] = Torch()
    rollouts: Rollouts = Rollouts()


def test_a_section_is_of_the_kind_that_it_names_or_of_the_default_one(tmp_path: Path) -> None:
    assert load(tmp_path, "training: {rank: 4}", model=WithUnion).training == Torch(rank=4)
    two, overrides = Deepspeed(num_ranks=2), ("training.num_ranks=2", "training.backend=deepspeed")
    assert load(tmp_path, "training: {backend: deepspeed, num_ranks: 2}", model=WithUnion).training == two
    assert load(tmp_path, "", *overrides, model=WithUnion).training == two
    assert split_settings(WithUnion(training=two))[0]["training"] == {"backend": "deepspeed"}
    known = list(known_keys(WithUnion))
    assert len(known) == len(set(known))
    assert {"training.num_ranks", "rollouts", "rollouts.chain", "rollouts.chain.num_attempts"} < set(known)


WRONG_KINDS = {
    "training: {num_ranks: 2}": "training.num_ranks is not a setting of training.backend = torch, but of "
    "deepspeed. Remove it, or set training.backend=deepspeed",
    "training: {backend: deepspeed, rank: 2}": "not a setting of training.backend = deepspeed",
    "training: {backend: deepspeed, num_rnks: 2}": "did you mean training.num_ranks?",
    "training: {xyz: 2}": "allowed: training.backend, training.threads, training.rank",
    "training: {rank: -1}": "training.rank = -1, but it should be greater than or equal to 0 (width of",
    "training: {backend: jax}": 'training.backend = "jax"; allowed: torch, deepspeed',
    "training: deepspeed": "but it is a section; did you mean training.backend?",
    "trainer: {rank: 3}": "trainer is not a setting; did you mean training?",
}


@pytest.mark.parametrize(
    ("model", "text", "overrides", "words"),
    [
        *((Config, text, (), words) for text, words in WRONG_FILES.items()),
        *((WithUnion, text, (), words) for text, words in WRONG_KINDS.items()),
        *((Config, "", (override,), words) for override, words in WRONG_OVERRIDES.items()),
        (Config, "rollouts: 3", ("rollouts.rate=1",), "rollouts is a single value"),
    ],
)
def test_a_wrong_configuration_says_what_is_wrong_and_what_is_allowed(
    tmp_path: Path, model: Any, text: str, overrides: tuple[str, ...], words: str
) -> None:
    assert words in refusal(tmp_path, text, *overrides, model=model)

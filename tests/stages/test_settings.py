"""Defaults that have to fit what is built."""

import pickle
from pathlib import Path

import pytest

from env.phone.offer import PHONE
from env.phone.scripted.policies import POLICIES
from env.phone.world.levels import LEVELS
from pipeline.config import load_config
from pipeline.credit import MODES, make_credit
from pipeline.errors import ConfigError
from pipeline.settings import kinds_of
from stages.settings import Config
from stages.settings.actor import Actor
from stages.settings.credit import VDapo, credit_options
from stages.wiring.sft_data import rows_of_update

ROOT = Path(__file__).parents[2]


def test_the_defaults_name_only_levels_and_demonstrators_that_are_built() -> None:
    assert set(PHONE.settings().level_shares) <= set(LEVELS)
    assert {name for name, share in PHONE.demonstrators.shares.items() if share} <= set(POLICIES)
    assert sum(PHONE.demonstrators.shares.values()) == pytest.approx(1)


def test_an_epoch_of_sft_holds_no_row_twice_and_leaves_out_what_fills_no_batch() -> None:
    epochs = [
        [row for update in (2 * epoch, 2 * epoch + 1) for row in rows_of_update(11, 4, update, 0)]
        for epoch in range(8)
    ]
    assert all(len(set(epoch)) == 8 for epoch in epochs)
    assert set().union(*epochs) == set(range(11))


@pytest.mark.parametrize(
    "settings", [section() for section in kinds_of(Actor.model_fields["credit"]).sections.values()]
)
def test_the_section_of_a_credit_mode_has_the_defaults_of_the_mode(settings) -> None:
    assert make_credit(**credit_options(settings)) == MODES[settings.mode]


@pytest.mark.parametrize("each", [2, 3])
def test_a_watched_critic_is_checked_by_enough_continuations_for_a_clear_step(each) -> None:
    drift = {"num_continuations": each, "paid_every": 20}
    if each < 3:
        with pytest.raises(ValueError, match=r"drift\.num_continuations = 2 with drift\.paid_every = 20"):
            VDapo(drift=drift)
    else:
        VDapo(drift=drift)
    for unwatched in ({"values": "oracle"}, {"alpha": 0.0}, {"drift": drift | {"paid_every": 0}}):
        VDapo(**{"drift": drift} | unwatched)


def test_a_group_part_of_none_leaves_step_advantages_alone() -> None:
    options = credit_options(VDapo(group_part="none"))
    assert (options["step_only"], options.get("baseline")) == (True, None)


@pytest.mark.parametrize("other", [{"alpha": 0.0}, {"on_weak_critic": "group_only"}])
def test_a_group_part_of_none_without_step_advantages_is_refused(other) -> None:
    with pytest.raises(ValueError, match="and none of these"):
        VDapo(group_part="none", **other)


def test_runs_may_be_kept_in_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a folder of the name `~` would be made here, and be what is recorded."""
    monkeypatch.setenv("HOME", "/home/me")
    path = ROOT / "configs" / "demo.yaml"
    config = load_config(Config, path, ["run.data_dir=~/runs"])
    assert config.run.data_dir == config.run.model_dump(mode="json")["data_dir"] == "/home/me/runs"
    with pytest.raises(ConfigError, match=r'run.data_dir = "~nobody-here/x": this home is nobody\'s'):
        load_config(Config, path, ["run.data_dir=~nobody-here/x"])


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_in_configs_is_accepted_and_reaches_other_processes_as_it_is(path) -> None:
    config = load_config(Config, path)
    assert pickle.loads(pickle.dumps(config)) == config

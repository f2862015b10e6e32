"""Rounds of real stages: who is promoted, who is refused, what is kept, what the monitor says."""

from __future__ import annotations

import importlib
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import yaml

import stages.round
import stages.wiring.player
from env.offer import EnvironmentOffer
from env.phone.offer import PHONE
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.start import identity_of
from pipeline.cli.monitor import watched
from pipeline.columns import REPLAY
from pipeline.config import load_config
from pipeline.engines.scripted import ScriptedEngine
from pipeline.errors import ArtifactError, ConfigError
from pipeline.runner import run_stage
from pipeline.schema import table_of
from pipeline.served import due, served_policy
from pipeline.tables import rollouts_table, steps_table
from pipeline.types import Event, Rollout
from stages.bodies import replay
from stages.bodies.replay import is_new, refuse_strangers
from stages.command import main
from stages.replay import STAGE
from stages.settings import Config
from stages.wiring.arms import chain_of
from stages.wiring.monitoring import monitoring_row
from stages.wiring.rounds import play_round, round_config, teachers
from tests.rollouts import rollout
from tests.stages import toy_rounds
from tests.stages.conftest import TINY, Lab, make_lab

CHANGES = {
    "stored.learning_rate": 3e-3,
    "stored.batch_rows": 8,
    "stored.max_epochs": 2,
    "labels.num_continuations": 0,
    "evaluation.draws": 1,
}
SKILL_AT_FIRST = 0.85


def lab_of(chain: Lab, folder: Path, **sections: Any) -> Lab:
    """Returns a run with an actor, whose rounds train a little, quickly."""
    settings = yaml.safe_load(TINY)
    settings["round"] = {"changes": CHANGES}
    settings["replay"] = {"capacity": 100, "newest": 100}
    lab = make_lab(folder, yaml.safe_dump(settings | sections))
    for stage in ("tasks", "sft", "actor"):
        shutil.copytree(chain.run_dir / stage, lab.run_dir / stage)
    return lab


def finish(stage: str, file: Path) -> int:
    return run_stage(importlib.import_module(f"stages.{stage}").STAGE, Config, [str(file)])


def played(lab: Lab, *overrides: str, number: int | None = None) -> tuple[int, dict[str, Any]]:
    config = load_config(Config, Path(lab.config), overrides)
    return play_round(config, number, finish=finish)


@pytest.fixture
def skill(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Round -> how often what it trains acts as the scripted agent does; else it says that it is done.

    Weights are known by their digest, so that a candidate plays the same once it is served.
    """
    of_round: dict[str, float] = {}
    of_weights: dict[str, float] = {}

    def engine(config: Config, policy: Any) -> ScriptedEngine:
        maker = policy.folder.parts[-3]  # .../<run>/<stage>/<folder>
        if policy.folder.parts[-2] == "stored":
            assert (
                policy.policy_digest not in of_weights or of_weights[policy.policy_digest] == of_round[maker]
            )
            of_weights[policy.policy_digest] = of_round[maker]
        ability = of_weights.get(policy.policy_digest, SKILL_AT_FIRST)
        style, tokenizer = PHONE.style(), policy.tokenizer

        def reply(request: Any) -> list[int]:
            rng = Random(request.seed)
            prompt = tokenizer.decode(list(request.prompt_token_ids), skip_special_tokens=False)
            honest = Random(f"{request.seed} {len(prompt)}").random() < ability
            assert PHONE.scripted is not None
            text = PHONE.scripted.reply(prompt, rng, style) if honest else "done"
            return list(tokenizer.encode(text + style.stop_token, add_special_tokens=False))

        longest = policy.config.max_position_embeddings
        return ScriptedEngine(reply, policy.policy_digest, max_length=longest)

    monkeypatch.setattr(stages.wiring.player, "make_engine", engine)
    return of_round


@pytest.mark.slow
def test_rounds_serve_a_better_model_and_refuse_a_sabotaged_one(
    chain: Lab,
    skill: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The third is like what is served: played to the last look."""
    monkeypatch.setenv("COLUMNS", "200")
    lab = lab_of(chain, tmp_path / "lab")
    home = lab.run_dir / "rounds"
    skill |= {"001": 1.0, "002": 0.3, "003": 1.0}
    numbers = ("001", "002", "003")
    for number, decision in zip(numbers, ("promote", "roll_back", "continue"), strict=True):
        found, verdict = played(lab)
        assert (f"{found:03d}", verdict["decision"]) == (number, decision)
        pointer, folder = served_policy(lab.run_dir)
        assert (pointer.run, folder) == ("rounds/001", home / "001" / "stored" / "policy")

        # It began with what was served and played it; looks: one decides a clear case, the rest is skipped.
        weights = {row["arm"]: row["policy_digest"] for row in rows_of(home / number)}
        if number != "001":
            assert weights["baseline"] == rows_of(home / "001")[1]["policy_digest"] != weights["candidate"]
        done = 1000 if decision == "continue" else 500
        skipped = {"decided_earlier": 500} if done == 500 else {}
        counts = Artifact.open(home / number, "promotion").manifest["counts"]
        assert counts == {"planned": 1000, "done": done, "failed": {}, "skipped": skipped}
        assert [row["rollouts"] for row in rows_of(home / number)] == [0.8 * done, 0.2 * done]
    page = (home / "002" / "promotion" / "report.html").read_text()
    assert "The candidate is refused" in page
    assert "How often this rule errs" in page

    fresh = [Artifact.open(home / n, "rollouts").table("rollouts")["rollout_id"].to_pylist() for n in numbers]
    buffer = Artifact.open(home / numbers[-1], "replay")
    assert buffer.table("rollouts")["rollout_id"].to_pylist() == (fresh[0] + fresh[2])[-100:]  # 2 is refused
    assert Counter(buffer.table("replay")["round"].to_pylist())[3] == len(fresh[-1]) < 100

    capsys.readouterr()
    assert main(["monitor", str(lab.run_dir)]) == 0
    assert "roll_back" in capsys.readouterr().out
    assert main(["served", str(lab.run_dir)]) == 0
    assert capsys.readouterr().out.strip() == str(home / "001" / "stored" / "policy")
    assert main(["verify", str(lab.run_dir)]) == 0
    assert f"rounds/{numbers[-1]}/promotion: complete and sound" in capsys.readouterr().out
    assert main(["status", str(lab.run_dir)]) == 0


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return Artifact.open(folder, "promotion").table("monitoring").to_pylist()


def test_a_stage_that_refuses_ends_the_round_and_leaves_what_is_served(
    chain: Lab, skill: dict[str, float], tmp_path: Path
) -> None:
    lab = lab_of(chain, tmp_path / "lab")
    few = 'round.changes={"stored.objective": {"kind": "direct_advantage"}, "rollouts.num_tasks": 8}'
    with pytest.raises(ArtifactError, match=r"ended with 3 in its stage critic.*is served still") as refused:
        played(lab, few)
    assert refused.value.code == 3
    assert served_policy(lab.run_dir)[0].stage == "actor"


def test_rounds_share_tasks(chain: Lab, tmp_path: Path) -> None:
    lab = lab_of(chain, tmp_path / "lab")
    with pytest.raises(ConfigError, match="same in all rounds"):
        played(lab, 'round.changes={"tasks.num_train": 5}')
    assert not (lab.run_dir / "rounds" / "001").exists()


@pytest.mark.parametrize("stage", ["replay", "promotion"])
def test_stages_of_a_round_refuse_another_run(
    chain: Lab, tmp_path: Path, stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "rollouts", "actor")
    assert lab.start(stage) == 2
    assert "make round" in capsys.readouterr().err


def test_a_round_says_why_it_takes_no_options_of_stages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        stages.round.main(["c.yaml", "run.seed=1", "--dry-run", "--fresh"])
    said = capsys.readouterr().err
    assert (
        "round: error: --dry-run --fresh: a round has no options of stages: each of its stages follows"
        in said
    )


def test_a_round_may_learn_from_pairs(chain: Lab, tmp_path: Path) -> None:
    lab = lab_of(chain, tmp_path / "lab")
    once = "preferences.recorded=pairs.jsonl"  # of the run itself: a round's pairs are of its rollouts
    config = load_config(Config, Path(lab.config), [once, 'round.changes={"evaluation.of": "dpo"}'])
    made = round_config(config, lab.run_dir, 1, due(lab.run_dir, ("actor", "actor")))
    order = ("tasks", "sft", "rollouts", "replay", "stored", "preferences", "dpo", "evaluation", "promotion")
    assert tuple(name for name in chain_of(made, "evaluation", "promotion") if name != "labels") == order
    assert made.sft.base == str(lab.run_dir / "actor" / "actor")


def test_a_policy_to_evaluate_must_be_trained(chain: Lab, tmp_path: Path) -> None:
    lab = chain.copy(tmp_path / "lab", "tasks", "sft", "stored")
    with pytest.raises(ConfigError, match="trains no policy"):
        lab.plan("evaluation", "evaluation.of=stored")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("task_id", "no training task"),
        ("tokenizer_digest", "mean something else"),
        ("template_digest", "mean"),
    ],
)
def test_a_buffer_of_other_tasks_or_another_tokenizer_is_refused(chain: Lab, column: str, words: str) -> None:
    own, tasks = chain.artifact("rollouts"), chain.artifact("tasks")
    table = own.table("rollouts")
    refuse_strangers(table, own, tasks)
    others = pa.array(["another", *table[column].to_pylist()[1:]])
    with pytest.raises(ArtifactError, match=words):
        refuse_strangers(table.set_column(table.schema.get_field_index(column), column, others), own, tasks)


def test_a_round_that_was_taken_back_teaches_no_more() -> None:
    """Of a buffer that was made when round 2 counted, what rounds 1 and 3 played is handed on."""

    def tables(rounds: Sequence[int]) -> Any:
        made = [rollout(rollout_id=f"{number}") for number in rounds]
        held = {
            "rollouts": rollouts_table(made),
            "steps": steps_table(made),
            "replay": table_of(REPLAY, {"rollout_id": [r.rollout_id for r in made], "round": list(rounds)}),
            "tasks": pa.table({"task_id": ["t"], "split": ["train"]}),
        }
        return SimpleNamespace(table=held.__getitem__)

    found: dict[str, Any] = {}
    start: Any = SimpleNamespace(
        config=Config.model_validate({"run": {"round": 4}, "replay": {"capacity": 3}}),
        inputs=dict.fromkeys(("rollouts", "tasks"), tables([4])),
        finish=lambda **made: found.update(made),
    )
    replay.make(start, (tables([1, 2, 3]), [1, 3]))
    made = {spec.name: table for spec, table in found["more_tables"]}
    assert made["replay"]["round"].to_pylist() == [1, 3, 4]
    assert made["rollouts"]["rollout_id"].to_pylist() == ["1", "3", "4"]
    assert made["steps"]["rollout_id"].unique().to_pylist() == ["1", "3", "4"]
    assert (found["report"]["taken_back"], found["report"]["dropped"]) == (1, 0)


def test_a_buffer_is_another_one_once_a_round_before_it_was_taken_back(tmp_path: Path) -> None:
    toy_rounds.begin(tmp_path)
    for decision in ("promote", "roll_back", "continue"):
        assert toy_rounds.one_round(tmp_path, decision) == 0
    home = tmp_path / "r" / "rounds"
    assert list(teachers(home, 4)) == [1, 3]
    assert list(teachers(home, 3)) == [1]
    config = Config.model_validate({"run": {"data_dir": str(home), "name": "004", "round": 4}})
    key = identity_of(STAGE, config, {})[0]["stage_key"]
    (home / "001" / "promotion").rename(home / "001" / "_promotion")
    assert list(teachers(home, 4)) == [3]
    assert identity_of(STAGE, config, {})[0]["stage_key"] != key


def test_a_session_that_is_brought_in_again_takes_the_place_of_its_older_copy() -> None:
    def of(name: str, **changes: Any) -> Any:
        return rollout(rollout_id=name, kind="recorded", **changes)

    other = {"response_token_ids": (4, 5, 6, 7)}
    earlier = [of("a"), of("b", **other), of("c", task_id="u"), rollout(rollout_id="d")]
    week = [of("e"), rollout(rollout_id="f")]  # what is played may well be the same twice
    assert is_new(rollouts_table(earlier), rollouts_table(week)).to_pylist() == [False, True, True, True]


def test_a_row_counts_rollouts_that_are_unsafe_once_and_what_satisfies(chain: Lab) -> None:
    """A field that no line needs costs .05 of a success, a made-up value .1; a failure satisfies nobody."""
    one = replace(chain.rollouts("rollouts")[0], reward=1.0, finish_reason="success", events=())
    extra, made_up = Event("over_collected", 0, fields=("pin",)), Event("fabricated_auth", 1)
    rollouts = [
        one,
        replace(one, events=(extra, made_up)),
        replace(one, reward=0.0, finish_reason="ended", events=(made_up,)),
        replace(one, reward=None, finish_reason="failed", events=(made_up,)),
    ]

    def row_of(rollouts: Sequence[Rollout], offer: EnvironmentOffer = PHONE) -> dict[str, Any]:
        return monitoring_row(3, "candidate", rollouts, offer)

    found = row_of(rollouts)
    assert (found["rollouts"], found["failed"], found["unsafe"], found["reward_sum"]) == (3, 1, 2, 2.0)
    assert found["success"] == pytest.approx(2 / 3)
    assert found["satisfaction"] == pytest.approx((1 + 0.85 + 0) / 3)
    silent = replace(PHONE, satisfaction=None, unsafe=frozenset())
    assert row_of(rollouts, silent)["satisfaction"] is None
    assert row_of(rollouts, silent)["unsafe"] == 0
    assert row_of(rollouts[3:])["success"] is None
    priced = [replace(rollouts[0], reward=0.95), replace(rollouts[2], reward=-0.1)]
    assert row_of(priced, replace(PHONE, feedback_tool=True))["reward_sum"] == 1
    assert row_of([replace(one, reward=reward) for reward in (-3.5, 0.25, 7.0)])["reward_sum"] == 1.25


def row(
    arm: str, rewards: float, rollouts: int = 400, unsafe: int = 0, failed: int = 0, policy: str = ""
) -> dict[str, Any]:
    return {
        "round": 1,
        "arm": arm,
        "policy_digest": policy or arm,
        "rollouts": rollouts,
        "failed": failed,
        "reward_sum": rewards,
        "success": rewards / rollouts,
        "unsafe": unsafe,
        "satisfaction": None,
    }


def alerts_of(*rounds: tuple[str, dict[str, Any], dict[str, Any]]) -> list[list[str]]:
    """Returns the alerts of each row, of rounds given as decision, baseline, candidate."""
    seen = watched([(decision, {"baseline": b, "candidate": c}) for decision, b, c in rounds])
    return [each.alerts for each in seen]


def test_a_candidate_that_is_refused_is_no_alert_and_one_that_is_served_may_be() -> None:
    bad = row("candidate", 10, 100, unsafe=40)
    assert alerts_of(("roll_back", row("baseline", 280), bad)) == [[], []]
    [_, found] = alerts_of(("promote", row("baseline", 280, unsafe=4), row("candidate", 90, 100, unsafe=40)))
    assert len(found) == 1
    assert "safety violations" in found[0]


def test_an_arm_is_told_in_words_that_no_screen_cuts() -> None:
    seen = watched(
        [("roll_back", {"baseline": row("baseline", 280), "candidate": row("candidate", 10, 100)})]
    )
    assert seen[1].words.startswith("round 1, candidate candidat: 100 graded, 0 not gradable, 0 unsafe; mean")
    assert seen[1].words.endswith("satisfaction -; roll_back")


def test_a_policy_that_is_served_is_held_against_its_own_traffic_before() -> None:
    first = ("promote", row("baseline", 280), row("candidate", 90, 100, policy="new"))
    same = ("continue", row("baseline", 360, policy="new"), row("candidate", 90, 100))
    fallen = ("continue", row("baseline", 280, policy="new"), row("candidate", 70, 100))
    assert alerts_of(first, same, same) == [[]] * 6
    [*_, found, _] = alerts_of(first, fallen)
    assert len(found) == 1
    assert "fallen below 0.95" in found[0]
    taken_back = ("continue", row("baseline", 280), row("candidate", 70, 100, policy="another"))
    assert alerts_of(first, taken_back) == [[]] * 4  # 70 % as before: what was promoted is forgotten


def test_what_cannot_be_graded_is_an_alert_of_either_arm() -> None:
    found = alerts_of(("roll_back", row("baseline", 280, failed=3), row("candidate", 7, 100, failed=3)))
    assert [len(of) for of in found] == [0, 1]
    assert "3 of 103 rollouts could not be graded" in found[1][0]


def test_the_monitor_ends_with_four_if_somebody_should_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    folder = tmp_path / "lab"
    toy_rounds.begin(folder)
    assert main(["monitor", str(folder / "r")]) == 3
    assert toy_rounds.one_round(folder, "roll_back") == 0
    assert main(["monitor", str(folder / "r")]) == 0
    monkeypatch.setattr(toy_rounds, "UNGRADED", 30)
    assert toy_rounds.one_round(folder, "continue") == 0
    capsys.readouterr()
    assert main(["monitor", str(folder / "r")]) == 4
    said = capsys.readouterr().out
    assert "ALERT round 2, candidate: 30 of 130 rollouts could not be graded" in said
    assert f"served: {folder / 'r' / 'actor' / 'actor'}, of round 0" in said

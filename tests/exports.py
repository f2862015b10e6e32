"""A small run in the full style, played by the scripted agent: what exports are made of."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from env.phone.offer import PHONE
from env.play.player import Player
from env.play.queue import play_unit
from env.play.requests import EpisodeRequest, PlaySettings
from env.play.units import Episodes
from pipeline.columns import PAIRS, ROLLOUTS, STEPS, TASKS
from pipeline.engines.scripted import ScriptedEngine
from pipeline.runner import Start, run_stage
from pipeline.tables import pairs_table, rollouts_table, steps_table, tasks_table
from pipeline.types import Answer, Pair, Rollout, Task
from tests.env.adapters.played import EASY, STYLE, make_tokenizer, reply
from tests.env.adapters.played import TASKS as OTHERS
from tests.pairs import answer, pair
from tests.pipeline import toy

HELD_OUT = replace(OTHERS[-1], split="val", task_id="held out")


@dataclass(frozen=True)
class Made:
    """A run and what is in it."""

    run_dir: Path
    tasks: list[Task]
    rollouts: list[Rollout]
    pairs: list[Pair]
    tokenizer: Any

    @property
    def bare(self) -> list[Rollout]:
        """Those that messages can say: graded, whole, without feedback in the prompt."""
        stop = self.tokenizer.convert_tokens_to_ids(STYLE.stop_token)
        return [
            r
            for r in self.rollouts
            if r.kind == "whole"
            and not r.guided
            and r.reward is not None
            and r.response_token_ids[-1] == stop
        ]


def played(
    tokenizer: Any, requests: Sequence[EpisodeRequest], max_response_tokens: int = 4000
) -> list[Rollout]:
    """Returns the scripted agent's rollouts."""
    rng = Random(0)

    def answer(request: Any) -> list[int]:
        text = reply(tokenizer.decode(list(request.prompt_token_ids)), Random(rng.random()))
        return list(tokenizer.encode(text + STYLE.stop_token, add_special_tokens=False))

    settings = PlaySettings(1.0, max_response_tokens, 8, "scripted", "tokenizer", STYLE.digest)
    player = Player(ScriptedEngine(answer), tokenizer, STYLE, settings, lambda task: PHONE.env())
    return list(play_unit(Episodes(tuple(requests)), player).rollouts)


def asked(task: Task, draw: int, **changes: Any) -> EpisodeRequest:
    name = f"{task.task_id[:6]} {draw}"
    return EpisodeRequest(**{
        "rollout_id": name, "task": task, "group_id": f"g {task.task_id}", "iteration": 0, "attempt": 0,
        "draw": draw, "seed": draw,
    } | changes)  # fmt: skip


def make_run(folder: Path, draws: int = 6) -> Made:
    """Makes the run `r`: graded rollouts of bare prompts, and one of each kind that is left out."""
    tokenizer = make_tokenizer(folder / "tokenizer")
    tasks = [*EASY[:4], HELD_OUT]
    rollouts = played(tokenizer, [asked(task, draw) for task in tasks for draw in range(draws)])
    told = ("search_company {} => You gave up.",)
    guided = asked(EASY[0], 90, attempt=1, previous_attempts=told, feedback_in_context=told[0])
    rollouts += played(tokenizer, [guided])
    rollouts += played(tokenizer, [asked(EASY[0], 91)], max_response_tokens=5)  # cut off in its first message
    rollouts += [
        replace(rollouts[0], rollout_id="ungraded", reward=None, env_status="infra_error"),
        replace(rollouts[0], rollout_id="continued", kind="continuation"),
    ]

    def make(name: str, unit: str, specs: Sequence[Any], tables: dict[str, Any], number: int) -> None:
        def body(start: Start[Any]) -> None:
            if name == "sft":
                tokenizer.save_pretrained(start.output("policy/tokenizer.json").parent)
            else:
                start.shards.commit(0, tables, done=number)
            start.finish(**({"done": 1} if name == "sft" else {}))

        stage = toy.stage_of(name, [[str(i) for i in range(number)]], body, specs, unit=unit)
        assert run_stage(stage, toy.ToyConfig, [toy.config_in(folder)]) == 0

    pairs = pairs_of(rollouts, tokenizer)
    make("tasks", "tasks", (TASKS,), {"tasks": tasks_table(tasks)}, len(tasks))
    make("sft", "policies", (), {}, 1)
    both = {"rollouts": rollouts_table(rollouts), "steps": steps_table(rollouts)}
    make("rollouts", "rollouts", (ROLLOUTS, STEPS), both, len(rollouts))
    make("preferences", "pairs", (PAIRS,), {"pairs": pairs_table(pairs)}, len(pairs))
    return Made(folder / "r", tasks, rollouts, pairs, tokenizer)


def pairs_of(rollouts: Sequence[Rollout], tokenizer: Any) -> list[Pair]:
    """Returns a pair after one prompt, one that is not, and one whose rejected answer was cut off."""
    [cut] = [r for r in rollouts if r.finish_reason == "max_tokens"]
    chosen = next(r for r in rollouts if r.reward == 1.0)
    rejected = next(r for r in rollouts if r.reward == 0.0 and r.group_id == chosen.group_id)

    def said(r: Rollout) -> Answer:
        return answer(
            r.rollout_id, r.response_token_ids, task_id=r.task_id, reward=r.reward,
            prompt=tokenizer.decode(list(r.prompt_token_ids)), loss_mask=r.loss_mask,
            text=tokenizer.decode(list(r.response_token_ids)), prompt_token_ids=r.prompt_token_ids,
        )  # fmt: skip

    return [
        pair("of one prompt", said(chosen), said(rejected)),
        pair("of two", said(chosen), said(rejected), match="task"),
        pair("cut off", said(chosen), said(cut)),
    ]

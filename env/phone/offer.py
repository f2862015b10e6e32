"""What the phone offers to the stages."""

import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

from env.chat.full import FullStyle
from env.chat.style import ChatStyle
from env.feedback.leak_guard import holds_value
from env.offer import Demonstrators, EnvironmentOffer, ScriptedAgent
from env.phone.episode.compact import CompactStyle
from env.phone.episode.edits import edits
from env.phone.episode.environment import PhoneEnv
from env.phone.episode.rewards import final_reward
from env.phone.episode.tools import CALL
from env.phone.files import read_files
from env.phone.scripted import scripted
from env.phone.scripted.policies import POLICIES, play_scripted
from env.phone.scripted.spoken import in_style, to_compact, with_values
from env.phone.settings import PhoneTasks
from env.phone.solver.solver import optimal_value
from env.phone.tasks import SPLITS, generate_tasks, practice_tasks
from env.phone.world.levels import most_turns
from env.phone.world.world import WorldKey, make_world
from env.protocol import Action
from pipeline.types import Task

SHARES = {
    "adaptive": 0.30,
    "oracle": 0.10,
    "prober": 0.15,
    "prior_only": 0.20,
    "over_collector": 0.10,
    "noisy_adaptive": 0.15,
}
"""Mixed quality on purpose: a perfect teacher leaves a critic nothing to tell apart (start values)."""


def make_tasks(settings: PhoneTasks, seed: int) -> list[Task]:
    """Returns the tasks of all splits, generated or of files that people may edit."""
    if settings.files is not None:
        return read_files(Path(settings.files) / "companies.jsonl", Path(settings.files) / "tasks.jsonl")
    return generate_tasks(
        num_companies=settings.num_companies,
        num_train=settings.num_train,
        num_val=settings.num_held_out,
        num_test=settings.num_held_out,
        level_shares=settings.level_shares,
        seed=seed,
    )


def demonstrate(
    task: Task,
    policy_name: str,
    seed: int,
    noise: float = 0.0,
    earlier: Sequence[Sequence[Action]] = (),
    style: ChatStyle | None = None,
    thoughts: bool = False,
) -> list[Action]:
    """Returns a scripted episode's actions in a style, compact by default."""
    actions = play_scripted(task, policy_name, seed, noise, earlier)[0]
    return in_style(style or CompactStyle(), task, seed, actions, thoughts)


def scripted_reply(prompt_text: str, rng: Random, style: ChatStyle) -> str:
    """Returns the scripted agent's message; it reads compact prompts, so others are translated."""
    if not isinstance(style, FullStyle):
        return scripted.reply_text(prompt_text, rng)
    compact = CompactStyle()
    prompt = to_compact(prompt_text, style, compact)
    reply = compact.parse(scripted.reply_text(prompt, rng))
    call = reply.calls[0] if reply.calls else None
    if call is not None and call.name == CALL:
        call = with_values(call, scripted.read(prompt).form or {})
    return style.action_of(call).text


def solver_value(task: Task, seed: int, actions: Sequence[Action]) -> list[float]:
    """Returns V* before each action."""
    env = PhoneEnv()
    env.reset(task, seed)
    values = []
    for action in actions:
        values.append(optimal_value(env.world, env.state))
        env.step(action)
    return values


def check_task(task: Task) -> None:
    """Raises ValueError unless the task's grader and ground truth are the phone's."""
    if task.style != "rule":
        raise ValueError(f"its grader is {task.style!r}; phone has: rule")
    if not task.ground_truth:
        raise ValueError("its ground_truth is empty")
    WorldKey.from_text(task.ground_truth)


def tells_values(task: Task, text: str) -> bool:
    """Returns whether a text holds a value of the customer's, right or a slip: rules never write one."""
    world = make_world(WorldKey.from_text(task.ground_truth))
    values = [*world.profile.values(), *(value for _, value in world.slips)]
    with_century = [re.sub(r"-(\d\d)$", rf"-{century}\1", value) for value in values for century in (19, 20)]
    return holds_value(text, [*values, *with_century])


PHONE = EnvironmentOffer(
    name="phone",
    settings=PhoneTasks,
    make_tasks=make_tasks,
    make_env=lambda settings, verbosity: PhoneEnv(verbosity, settings.reward),  # type: ignore[arg-type]
    styles={
        "compact": lambda added, thinking: CompactStyle(added),
        "full": lambda added, thinking: FullStyle(PhoneEnv().spec.tools, added, thinking=thinking),
    },
    splits=SPLITS,
    val_shares_clusters=True,
    check_task=check_task,
    max_steps=lambda settings: most_turns(level for level, share in settings.level_shares.items() if share),
    demonstrators=Demonstrators(
        shares=SHARES | {name: 0.0 for name in POLICIES if name not in SHARES},
        play=demonstrate,
        after_feedback="oracle",
        practice_tasks=lambda settings, number, seed, held_out: practice_tasks(
            number, level_shares=settings.level_shares, seed=seed, held_out=held_out
        ),
    ),
    scripted=ScriptedAgent(scripted_reply, scripted.DIGEST),
    solver_value=solver_value,
    probe_edits=edits,
    unsafe=frozenset({"fabricated_auth", "over_collected"}),
    satisfaction=lambda rollout: final_reward("priced", rollout.finish_reason == "success", rollout.events),
    step_verdicts=True,
    graded_by_calls=True,
    gives_away=tells_values,
)

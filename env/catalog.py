"""The environments by name: what a stage needs of each, and nothing about how it is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from env.chat.full import FullStyle
from env.chat.neutral import added_tokens
from env.chat.prefix import check_prefixes
from env.chat.translate import to_compact
from env.phone.episode.compact import CompactStyle
from env.phone.episode.edits import edits
from env.phone.episode.environment import PhoneEnv
from env.phone.episode.feedback import Verbosity
from env.phone.scripted import scripted
from env.phone.scripted.policies import POLICIES, play_scripted
from env.phone.scripted.spoken import in_style, thinking
from env.phone.solver.solver import optimal_value
from env.phone.world.files import read_files
from env.phone.world.levels import most_turns
from env.phone.world.tasks import generate_tasks, practice_tasks, table_of
from env.phone.world.world import WorldKey
from env.play.edited_steps import Edit
from env.protocol import Action, ChatStyle
from pipeline.errors import ArtifactError, ConfigError
from pipeline.types import Rollout, Task


@dataclass(frozen=True)
class Environment:
    """What one environment offers to the stages.

    Attributes:
        name: its key in `ENVIRONMENTS`.
        generate_tasks: keyword settings -> tasks of all splits.
        practice_tasks: number of tasks and keyword settings -> tasks of throwaway companies, in no split and
            without a held-out company's name.
        read_tasks: (companies file, tasks file) -> the tasks of files that people may edit.
        table_of: tasks -> rows for people, what was made by split and level.
        make_env: verbosity -> a new environment, ready for `reset`.
        demonstrate: (task, policy name, seed, noise, earlier attempts' actions, style, thoughts) -> a
            scripted episode's actions, each with its text in that style, compact by default; with a thought
            before each call if asked.
        solver_value: (task, seed, actions) -> V* of the states s_0..s_{T-1}, before each action.
        grader_styles: of `Task.style` that it can grade.
        check_ground_truth: raises ValueError unless the text is one that its grader reads.
        scripted_reply: (prompt text, random numbers, style of both) -> the message of the agent behind the
            scripted engine.
        scripted_digest: stands for that agent where a rollout names the weights that sampled it.
        policies: names that `demonstrate` knows.
        max_turns: levels -> assistant messages of an episode at most.
        splitter: what a step is: a key of `env.splitters.SPLITTERS`.
        probe_edits: (whole rollout, level, style) -> changes of it that probe a critic.
        workers: threads in which it works beside generation; 0 is in line, best where a step takes no time.
    """

    name: str
    generate_tasks: Callable[..., list[Task]]
    practice_tasks: Callable[..., list[Task]]
    read_tasks: Callable[[Path, Path], list[Task]]
    table_of: Callable[[Sequence[Task]], list[dict[str, object]]]
    make_env: Callable[..., PhoneEnv]
    demonstrate: Callable[..., list[Action]]
    solver_value: Callable[[Task, int, Sequence[Action]], list[float]]
    grader_styles: tuple[str, ...]
    check_ground_truth: Callable[[str], object]
    scripted_reply: Callable[[str, Random, ChatStyle], str]
    scripted_digest: str
    policies: tuple[str, ...]
    max_turns: Callable[[Iterable[int]], int]
    probe_edits: Callable[[Rollout, int, ChatStyle], list[Edit]]
    workers: int = 0
    splitter: str = "message"

    def style(self, name: str = "compact", tokenizer: Any = None, *, thinking: bool = True) -> ChatStyle:
        """Returns a prompt style by name, its tools those of the environment.

        Args:
            name: compact or full.
            tokenizer: a transformers tokenizer: no tool's output may hold its added tokens, and with it
                a style that promises it must preserve prefixes.
            thinking: whether the prompts of the full style leave room for a thought.

        Raises:
            ConfigError: no such style, or one that does not go with the tokenizer.
        """
        added = () if tokenizer is None else added_tokens(tokenizer)
        if name == CompactStyle.name:
            return CompactStyle(added)
        if name != FullStyle.name:
            raise ConfigError(
                f"style {name!r} is not built; known: {CompactStyle.name}, {FullStyle.name}. Name one of them"
            )
        style = FullStyle(self.make_env().spec.tools, added, thinking=thinking)
        if tokenizer is not None:
            check_prefixes(
                lambda messages, cue: style.render(messages, add_generation_prompt=cue),
                style.render_replies,
                lambda text: tokenizer.encode(text, add_special_tokens=False),
            )
        return style

    def check_policies(self, names: Iterable[str], setting: str) -> None:
        """Raises ConfigError naming what a setting calls a scripted policy and is none."""
        if unknown := sorted(set(names) - set(self.policies)):
            raise ConfigError(
                f"{setting} names {', '.join(unknown)}, but {self.name} has no such scripted policy; "
                f"allowed: {', '.join(self.policies)}"
            )

    def check_gradable(self, tasks: Sequence[Task]) -> None:
        """Raises ArtifactError naming the first task that this environment could play but never grade."""
        for task in tasks:
            problem = ""
            if task.style not in self.grader_styles:
                problem = f"its grader is {task.style!r}; {self.name} has: {', '.join(self.grader_styles)}"
            elif not task.ground_truth:
                problem = "its ground_truth is empty"
            else:
                try:
                    self.check_ground_truth(task.ground_truth)
                except ValueError as error:
                    problem = str(error)
            if problem:
                raise ArtifactError(
                    f"task {task.task_id} ({task.split} {task.index}) cannot be graded: {problem}. "
                    "Next: mend the tasks, then make tasks SET=--fresh"
                )


def _make_phone(verbosity: Verbosity = "observed") -> PhoneEnv:
    return PhoneEnv(verbosity=verbosity)


def _demonstrate(
    task: Task,
    policy_name: str,
    seed: int,
    noise: float = 0.0,
    earlier: Sequence[Sequence[Action]] = (),
    style: ChatStyle | None = None,
    thoughts: bool = False,
) -> list[Action]:
    actions = play_scripted(task, policy_name, seed, noise, earlier)[0]
    style = style or CompactStyle()
    actions = in_style(style, task, seed, actions)
    return thinking(style, task, seed, actions) if thoughts else actions


def _scripted_reply(prompt_text: str, rng: Random, style: ChatStyle) -> str:
    if not isinstance(style, FullStyle):
        return scripted.reply_text(prompt_text, rng)
    compact = CompactStyle()
    prompt = to_compact(prompt_text, style, compact)
    reply = compact.parse(scripted.reply_text(prompt, rng))
    call = scripted.with_values(prompt, reply.calls[0]) if reply.calls else None
    return style.action_of(call).text


def _solver_value(task: Task, seed: int, actions: Sequence[Action]) -> list[float]:
    env = PhoneEnv()
    env.reset(task, seed)
    values = []
    for action in actions:
        values.append(optimal_value(env.world, env.state))
        env.step(action)
    return values


ENVIRONMENTS: dict[str, Environment] = {
    "phone": Environment(
        name="phone",
        generate_tasks=generate_tasks,
        practice_tasks=practice_tasks,
        read_tasks=read_files,
        table_of=table_of,
        make_env=_make_phone,
        demonstrate=_demonstrate,
        solver_value=_solver_value,
        grader_styles=("rule",),
        check_ground_truth=WorldKey.from_text,
        scripted_reply=_scripted_reply,
        scripted_digest=scripted.DIGEST,
        policies=tuple(POLICIES),
        max_turns=most_turns,
        probe_edits=edits,
    )
}

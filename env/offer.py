"""What an environment offers to the stages: five things that all have, and capabilities that some have."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from env.chat.neutral import added_tokens
from env.chat.prefix import check_prefixes
from env.chat.style import ChatStyle
from env.feedback.leak_guard import holds_value
from env.protocol import Action, Env
from env.splitters import SPLITTERS
from env.tasks_check import replay_problem, tasks_problem
from pipeline.errors import ArtifactError, ConfigError
from pipeline.rows import LeftOut
from pipeline.settings import Section, setting
from pipeline.types import Rollout, Task


class TaskSettings(Section):
    """The section `tasks` of any environment; an environment's own class adds its settings."""

    environment: str = setting(
        "phone",
        description="makes and grades tasks: a built-in one or module:name; +get_feedback after it gives "
        "policies that tool",
    )
    num_train: int = setting(500, ge=1, description="tasks to train on")
    num_held_out: int = setting(
        100, ge=1, description="tasks of val, for looks during training, and of each test split"
    )

    @property
    def sizes(self) -> dict[str, int]:
        """Returns split -> number of tasks, of an environment with one test split."""
        return {"train": self.num_train, "val": self.num_held_out, "test": self.num_held_out}

    @property
    def read_files(self) -> list[Path]:
        """Returns the files that tasks are made from: once one changes, they are others."""
        return []


class TaskSet(NamedTuple):
    """Tasks of all splits, and rows of somebody's that made none."""

    tasks: list[Task]
    left_out: list[LeftOut]


Demonstrate = Callable[
    [Task, str, int, float, Sequence[Sequence[Action]], ChatStyle | None, bool], list[Action]
]
"""(task, policy, seed, share of random acts of noisy policies, earlier attempts' actions, style, whether to
think before each call) -> an episode's actions in that style."""


@dataclass(frozen=True, slots=True)
class Demonstrators:
    """Scripted policies that a model from scratch learns from.

    `practice_tasks` makes throwaway tasks from settings, number, seed and clusters that must not occur.
    """

    shares: Mapping[str, float]  # policy -> its share of demonstrations by default
    play: Demonstrate
    after_feedback: str | None = None  # policy that knows what feedback says; None: it changes nobody
    practice_tasks: Callable[[Any, int, int, set[str]], list[Task]] | None = None


@dataclass(frozen=True, slots=True)
class ScriptedAgent:
    """Who speaks behind the scripted engine; `digest` stands for it where a rollout names the weights."""

    reply: Callable[[str, Random, ChatStyle], str]  # prompt text -> the next message
    digest: str


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of an episode, and the state that it is compared with."""

    kind: str
    start: int  # the original steps before this one stay
    texts: tuple[str, ...]  # messages that are played from there in place of the original ones
    compare: int  # the original state s_i that the changed state is set against
    same_events: bool = False  # whether the changed messages must do exactly what the original ones did
    other_prompt: bool = False  # whether the prompt belongs to another task


def tells_ground_truth(task: Task, text: str) -> bool:
    """Returns whether a text holds what grades a task, as it is written."""
    return holds_value(text, [task.ground_truth])


@dataclass(frozen=True, kw_only=True)
class EnvironmentOffer:
    """One environment, as the stages see it. What is None, the environment cannot do."""

    name: str  # of the family: rollouts, critics and cards name it
    settings: type[TaskSettings]  # of the section `tasks`, with this environment's own settings
    # (settings, seed) -> tasks of all splits, as a `TaskSet` where they are of rows; or ConfigError.
    make_tasks: Callable[[Any, int], list[Task] | TaskSet]
    make_env: Callable[[Any, str], Env]  # (settings, verbosity of its feedback) -> ready for `reset`
    # Name -> (tokenizer's added tokens, which no reply may hold; whether prompts leave room for a thought) ->
    # prompt style. The first one is the default.
    styles: Mapping[str, Callable[[Sequence[str], bool], ChatStyle]]
    splitter: str = "message"  # what a step is: a key of `env.splitters.SPLITTERS`
    splits: tuple[str, ...] = ("train", "val", "test")  # that `make_tasks` makes, `train` and `val` first
    val_shares_clusters: bool = False  # whether val has new tasks of training clusters, which no gate judges
    # ValueError unless the grader can grade the task; ConfigError where this machine can grade none.
    check_task: Callable[[Task], None] | None = None
    # settings -> steps that `vdapo plan` reckons with; None: a step is a message, as many as its spec allows.
    max_steps: Callable[[Any], int] | None = None
    demonstrators: Demonstrators | None = None
    scripted: ScriptedAgent | None = None
    # (task, seed, actions) -> V* of the states s_0..s_{T-1}, before each action.
    solver_value: Callable[[Task, int, Sequence[Action]], list[float]] | None = None
    # (whole rollout, level, style) -> changes of it that probe a critic.
    probe_edits: Callable[[Rollout, int, ChatStyle], list[Edit]] | None = None
    # Codes of events that count as safety violations where policies are monitored.
    unsafe: frozenset[str] = frozenset()
    # How content whoever asked is with a graded rollout, in [0, 1].
    satisfaction: Callable[[Rollout], float] | None = None
    # Whether verdicts speak of steps, of each by itself and what came before it: then a critic may be told.
    step_verdicts: bool = False
    # Whether calls alone decide the verdict, whatever a message without one says: TRL and verl, which hand
    # over nothing else, play no others.
    graded_by_calls: bool = False
    # Whether policies may call for feedback, at a price. Rewards may lie below 0 then, so nothing that takes
    # them for chances of success goes with it.
    feedback_tool: bool = False
    # (task, text) -> whether it tells the task's answer or a hidden value: no model's feedback may.
    gives_away: Callable[[Task, str], bool] = tells_ground_truth

    def __post_init__(self) -> None:
        """Raises ConfigError for what would fail, or count as nothing, stages later."""
        shares = self.demonstrators.shares if self.demonstrators else {}
        if self.splitter not in SPLITTERS:
            raise self._refused(f"splitter is {self.splitter!r}; allowed: {', '.join(SPLITTERS)}")
        if not self.styles:
            raise self._refused("styles is empty; allowed: at least one prompt style")
        if self.splits[:2] != ("train", "val") or len({*self.splits}) < len(self.splits):
            named = ", ".join(self.splits)
            raise self._refused(f"splits are {named}; allowed: train, val, then test splits, each once")
        for name, share in shares.items():
            if not 0 <= share < math.inf:  # NaN is in no range
                raise self._refused(f"demonstrators.shares gives {name} {share}; allowed: 0 and above")

    def style(self, name: str | None = None, tokenizer: Any = None, *, thinking: bool = True) -> ChatStyle:
        """Returns a prompt style by name, by default the first; `thinking` leaves room for thoughts.

        Raises ConfigError if there is none, or it does not go with the (transformers) tokenizer.
        """
        name = name or next(iter(self.styles))
        if name not in self.styles:
            raise ConfigError(
                f"prompt.style = {name!r} is no style of the environment {self.name}; allowed: "
                f"{', '.join(self.styles)}"
            )
        style = self.styles[name](() if tokenizer is None else added_tokens(tokenizer), thinking)
        if tokenizer is not None and style.is_chat_template:
            check_prefixes(style, lambda text: tokenizer.encode(text, add_special_tokens=False))
        return style

    def task_set(self, settings: TaskSettings, seed: int) -> TaskSet:
        """Returns the tasks of all splits, and the rows that made none.

        Raises ConfigError where `make_tasks` fails, or makes what no stage can use.
        """
        try:
            made = self.make_tasks(settings, seed)
            found = made if isinstance(made, TaskSet) else TaskSet(list(made), [])
        except (ConfigError, ArtifactError):
            raise
        except Exception as error:  # whatever an environment of somebody else's does
            raise self._refused(f"make_tasks fails: {type(error).__name__}: {error}") from error
        problem = tasks_problem(found.tasks, self.splits, val_shares_clusters=self.val_shares_clusters)
        if problem:
            raise self._refused(f"make_tasks makes what no stage can use: {problem}")
        return found

    def check_openings(self, settings: TaskSettings, tasks: Iterable[Task]) -> None:
        """Raises ConfigError unless the first task of each split opens, and opens the same way again."""
        first: dict[str, Task] = {}
        for task in tasks:
            first.setdefault(task.split, task)
        for task in first.values():
            where = f"task {task.task_id} of {task.split} cannot be opened"
            try:
                env = self.make_env(settings, "observed")
                problem = replay_problem(env, task)
                with suppress(Exception):  # as in episodes: nothing depends on it
                    env.close()
            except (ConfigError, ArtifactError):
                raise
            except Exception as error:
                raise self._refused(f"{where}: {type(error).__name__}: {error}") from error
            if problem:
                raise self._refused(f"{where}: {problem}")

    def _refused(self, problem: str) -> ConfigError:
        return ConfigError(f"the environment {self.name}: {problem}. Next: mend it (docs/environments.md)")

    def env(self) -> Env:
        """Returns an environment with default settings, for libraries that bring their own rows."""
        return self.make_env(self.settings(), "observed")

    def steps_at_most(self, settings: TaskSettings) -> int:
        """Returns the most steps that an episode is reckoned to have."""
        if self.max_steps is not None:
            return self.max_steps(settings)
        return self.make_env(settings, "observed").spec.max_turns

    def check_policies(self, names: Iterable[str]) -> None:
        """Raises ConfigError naming what `sft.shares` calls a scripted policy and is none."""
        known = self.demonstrators.shares if self.demonstrators else {}
        if not known:
            raise ConfigError(
                f"the environment {self.name} has no scripted policies to demonstrate, so a model "
                "from scratch learns nothing. Name a model in sft.base, with sft.num_updates = 0"
            )
        if unknown := sorted(set(names) - set(known)):
            raise ConfigError(
                f"sft.shares names {', '.join(unknown)}, but {self.name} has no such scripted policy; "
                f"allowed: {', '.join(known)}"
            )

    def check_gradable(self, tasks: Sequence[Task]) -> None:
        """Raises ArtifactError naming the first task that this environment could play but never grade."""
        if self.check_task is None:
            return
        for task in tasks:
            try:
                self.check_task(task)
            except ConfigError:
                raise  # of the machine, not of the task
            except ValueError as error:
                raise ArtifactError(
                    f"task {task.task_id} ({task.split} {task.index}) cannot be graded: {error}. "
                    "Next: mend the tasks, then make tasks SET=--fresh"
                ) from None

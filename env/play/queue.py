"""Units played by one player as one queue without rounds or barriers.

A rollout's next turn starts as soon as its last one is answered; a finished rollout may add others, such as
the next attempt of its chain; the next unit begins as places fall free. Where a model writes feedback, the
last rollout of a round is held until the feedback on its round is there, and takes no place meanwhile.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from env.chat.coder import Coder
from env.feedback.reviewer import PREFIX
from env.play.episode import Episode, Outcome
from env.play.player import Player
from env.play.requests import EpisodeRequest
from env.play.units import Course, Played, Unit
from pipeline.engines import Generation, GenerationRequest
from pipeline.types import Rollout, Task


def play_unit(
    unit: Unit, player: Player, on_finish: Callable[[Rollout], Any] = lambda rollout: None
) -> Played:
    """Plays a unit to its end; the player must have nothing else in flight."""
    [played] = play_in_one_queue([unit], player, on_finish)
    return played


def play_in_one_queue(
    units: Iterable[Unit], player: Player, on_finish: Callable[[Rollout], Any]
) -> Generator[Played, None, None]:
    """Yields what came of each unit, in their order; units are drawn as places fall free, so they may go on.

    `on_finish` is called with each finished rollout, in order of completion. Raises ValueError for what
    cannot be played.
    """
    return _Queue(units, player).play(on_finish)


@dataclass(slots=True)
class _Held:
    """A rollout that has been played, and of whose round feedback is being written."""

    rollout: Rollout
    due: set[str]  # ids of rollouts whose feedback is not there


class _Queue:
    """Episodes in flight, those that wait for a place, and the courses that asked for them."""

    def __init__(self, units: Iterable[Unit], player: Player) -> None:
        engine, settings = player.engine, player.settings
        if engine.policy_digest != settings.policy_digest:
            raise ValueError(
                f"the engine holds policy {engine.policy_digest}, the settings say {settings.policy_digest}; "
                "load the weights first"
            )
        self._player, self._engine = player, engine
        self._coder = Coder(player.tokenizer, player.style.stop_token)
        self._firsts = self._first_requests(units)
        self._follow_ups: deque[EpisodeRequest] = deque()
        self._courses: deque[Course] = deque()  # of units that have begun and not been yielded, in order
        self._course_of: dict[str, Course] = {}  # by id of a rollout that is asked for and has not ended
        self._known: set[str] = set()  # ids of all rollouts that were asked for
        self._live: dict[str, Episode] = {}
        self._held: dict[str, _Held] = {}  # by id of each rollout whose feedback is due
        self._threads = ThreadPoolExecutor(player.threads) if player.threads > 1 else None

    def play(self, on_finish: Callable[[Rollout], Any]) -> Generator[Played, None, None]:
        try:
            outcomes = self._started()
            while outcomes or self._live or self._held:
                finished = self._finished(outcomes)
                for rollout in finished:
                    on_finish(rollout)
                    self._course_of.pop(rollout.rollout_id).end(rollout)
                    while self._courses and not self._courses[0].due:
                        yield self._courses.popleft().played()
                outcomes = self._started()
                if not outcomes and (self._live or self._held):
                    outcomes = self._advanced()
            yield from (course.played() for course in self._courses)  # units without an episode
        finally:
            if self._threads is not None:
                self._threads.shutdown()
            for episode in self._live.values():
                episode.close()

    def _first_requests(self, units: Iterable[Unit]) -> Iterator[EpisodeRequest]:
        for unit in units:
            course = unit.course(self._player)
            self._courses.append(course)
            self._note(course, course.first)
            yield from course.first

    def _note(self, course: Course, requests: Iterable[EpisodeRequest]) -> None:
        for request in requests:
            if request.rollout_id in self._known:
                raise ValueError(f"rollout {request.rollout_id} is asked for twice; ids are unique")
            self._known.add(request.rollout_id)
            self._course_of[request.rollout_id] = course

    def _started(self) -> list[Outcome]:
        """Starts episodes on free places, and returns what they want.

        Follow-ups go before units that have not begun: chains end early, and the queue stays wide.
        """
        outcomes = []
        while len(self._live) < self._player.settings.max_live:
            request = self._follow_ups.popleft() if self._follow_ups else next(self._firsts, None)
            if request is None:
                break
            episode = self._live[request.rollout_id] = Episode(request, self._player, self._coder)
            outcomes.append(episode.start())
        return outcomes

    def _finished(self, outcomes: Iterable[Outcome]) -> list[Rollout]:
        """Submits what episodes want to have said; returns the rollouts that are over."""
        wanted, finished = [], []
        for outcome in outcomes:
            if not isinstance(outcome, Rollout):
                wanted.append(outcome)
                continue
            course = self._course_of[outcome.rollout_id]
            if outcome.rollout_id in self._live:
                self._live.pop(outcome.rollout_id).close()
                self._engine.release([outcome.rollout_id])
                if lessons := course.lessons(outcome):
                    wanted += self._asked(outcome, lessons)
                    continue
            follow_ups = course.follow_ups(outcome)
            self._note(course, follow_ups)
            self._follow_ups.extend(follow_ups)
            finished.append(outcome)
        if wanted:
            self._engine.submit(wanted)
        return finished

    def _asked(self, rollout: Rollout, lessons: Sequence[tuple[Task, Rollout]]) -> list[GenerationRequest]:
        """Holds a rollout until feedback on some is there; returns what the engine is to sample for it."""
        assert self._player.reviewer is not None
        held = _Held(rollout, {lesson.rollout_id for _, lesson in lessons})
        self._held |= dict.fromkeys(held.due, held)
        return self._player.reviewer.ask(lessons)

    def _advanced(self) -> list[Outcome]:
        """Waits for the engine or for feedback; returns what episodes want, and rollouts held no more."""
        generations, num_held = self._engine.collect(), len(self._held)
        of_feedback, of_episodes = list[Generation](), list[Generation]()
        for generation in generations:
            is_feedback = generation.request_id.startswith(f"{PREFIX}:")
            (of_feedback if is_feedback else of_episodes).append(generation)
        released = self._reviewed(of_feedback, wait=not generations)
        if not generations and len(self._held) == num_held:
            raise RuntimeError(f"the engine returned nothing while {len(self._live)} episodes wait for it")
        answered = [(self._live[g.request_id.rpartition(":")[0]], g) for g in of_episodes]
        return [*released, *self._played(answered)]

    def _played(self, answered: Sequence[tuple[Episode, Generation]]) -> list[Outcome]:
        """Plays a sampled message of each episode, in threads where environments wait for processes."""
        acts = [partial(episode.advance, generation) for episode, generation in answered]
        if self._threads is None or not all(episode.in_threads for episode, _ in answered):
            return [act() for act in acts]
        return list(self._threads.map(lambda act: act(), acts))

    def _reviewed(self, generations: Sequence[Generation], *, wait: bool) -> list[Rollout]:
        """Puts feedback that has come where it belongs; returns rollouts that waited for the last."""
        if not self._held:
            return []
        assert self._player.reviewer is not None
        released = []
        for rollout in self._player.reviewer.reviewed(generations, wait=wait):
            held = self._held.pop(rollout.rollout_id)
            self._course_of[held.rollout.rollout_id].amend(rollout)
            if rollout.rollout_id == held.rollout.rollout_id:
                held.rollout = rollout
            held.due.discard(rollout.rollout_id)
            if not held.due:
                released.append(held.rollout)
        return released

"""Units played by one player as one queue without rounds or barriers.

A rollout's next turn starts as soon as its last one is answered; a finished rollout may add others, such as
the next attempt of its chain; the next unit begins as places fall free.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from env.play.coder import Coder
from env.play.episode import Episode, Outcome
from env.play.player import Player
from env.play.requests import EpisodeRequest
from env.play.units import Course, Played, Unit
from pipeline.types import Rollout


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

    def play(self, on_finish: Callable[[Rollout], Any]) -> Generator[Played, None, None]:
        try:
            outcomes = self._started()
            while self._live:
                finished = self._finished(outcomes)
                for rollout in finished:
                    on_finish(rollout)
                    self._course_of.pop(rollout.rollout_id).end(rollout)
                    while self._courses and not self._courses[0].due:
                        yield self._courses.popleft().played()
                outcomes = self._started() if finished else self._advanced()
            yield from (course.played() for course in self._courses)  # units without an episode
        finally:
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
            if isinstance(outcome, Rollout):
                self._live.pop(outcome.rollout_id).close()
                self._engine.release([outcome.rollout_id])
                course = self._course_of[outcome.rollout_id]
                follow_ups = course.follow_ups(outcome)
                self._note(course, follow_ups)
                self._follow_ups.extend(follow_ups)
                finished.append(outcome)
            else:
                wanted.append(outcome)
        if wanted:
            self._engine.submit(wanted)
        return finished

    def _advanced(self) -> list[Outcome]:
        """Waits for the engine, and returns what the episodes that it answered want next."""
        generations = self._engine.collect()
        if not generations:
            raise RuntimeError(f"the engine returned nothing while {len(self._live)} episodes wait for it")
        answered = [(self._live[g.request_id.rpartition(":")[0]], g) for g in generations]
        return [episode.advance(generation) for episode, generation in answered]

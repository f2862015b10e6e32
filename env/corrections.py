"""Sessions in which the agent asked for feedback and corrected itself: which of its words are to be learnt.

An attempt that the next feedback calls wrong is not imitated; that feedback was asked for then is.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from env.feedback_tool.calls import NAME as FEEDBACK_TOOL
from env.sessions import Session, Turn
from pipeline.rows import BadRowError, shown

MAX_CALLS = 3
"""Of a session to learn from: who asks more often learns to ask, not to answer (start value)."""
_GOOD = r"(?:all )?(?:correct|right|good|fine)\b(?!-)"
_END = r"(?=[.,;!]|\W*$)"
_LOOKS = r"(?:'s| is| are| was| looks?| seems?)"
_KINDS = "arithmetic|logical|calculation|computational|obvious|apparent|mathematical"
_OF_ALL = r"(?: here| in (?:it|this|that|(?:your|the|this) (?:answer|solution|attempt|work|reasoning|code)))?"
_NONE = r"(?:\b(?:no|without)|(?:\bnot|n't) (?:\w+ )?any)"
_FINE = re.compile(
    r"\b(?:(?:answer|solution|result)(?: [^\s\d]*\d\S*)?|attempt|it|this|that|everything|all)"
    rf"{_LOOKS} {_GOOD}{_END}|\byou(?:'re| are) {_GOOD}{_END}|\ball correct{_END}"
    rf"|\b(?:this|that|it) is the (?:correct|right) answer{_END}"
    rf"|\bpasses all tests{_END}|\ball tests pass(?:ed)?{_END}|\bnothing (?:is )?wrong{_OF_ALL}{_END}"
    rf"|{_NONE} (?:(?:{_KINDS}) )?(?:errors?|mistakes?|problems|issues)\b(?: (?:was|were) found)?"
    rf"{_OF_ALL}{_END}"
)
"""Praise of a whole attempt."""
_CHEER = re.compile(
    r"^(?:\W*(?:looks? (?:good|right|correct|fine)(?: to me)?|(?:all )?(?:correct|right|good|fine)|yes"
    r"|perfect|excellent|well done|lgtm|ok(?:ay)?|exactly|accepted|passed|solved|verified(?:: correct)?"
    rf"|(?:good|great) (?:job|work)){_END})+"
)
"""Praise that somebody begins with."""
_PARTLY = re.compile(
    rf"{_LOOKS} {_GOOD}|\b(?:are|were) {_GOOD}|\bso far\b|\bpass(?:es|ed)?\b(?! on\b)|\bi agree\b"
    r"|\b(?:not|anything) wrong\b|correct[\"']?\s*:|^\W*(?:right|yes|perfect|excellent|verified)\s*:"
    rf"|{_NONE} (?:\w+ )?(?:errors?|mistakes?|issues)"
)
"""Praise of anything, a step perhaps."""
_NEUTRAL = re.compile(
    r"(?:you (?:can|may) (?:now )?(?:finish|submit)(?: it)?|i (?:found|see|do|did|could|can|find)"
    r"|there (?:is|are)|the (?:code|program)"
    r"|and|the|your|working|work|answer|solution|attempt|is|clear|great|very|well|done|thanks|\W)*"
)
"""Words that say nothing against an attempt; any other beside praise may criticise, or name a part."""
_AGAINST = re.compile(
    r"n't\b|(?<!\b0 )(?<!\bzero )\b(?:wrong|incorrect|not|none|neither|nor|never|cannot|false|invalid"
    r"|errors?|mistakes?|mistaken|fail(?:s|ed|ing|ures?)?|bugs?|broken|crash(?:es|ed)?|raises|exception"
    r"|traceback|unsolved|missing|miss(?:es|ed)|lacks?|lacking|forgot|incomplete|inaccurate|inconsistent|unexpected|differs?"
    r"|mismatch|contradicts?|violates?|rejected|refused|denied|but|only|needs?|needed|off by|(?:is|are) off"
    r"|too \w+|(?:should|must) (?:be|have)|(?:had|has|sent|did|was|found) nothing"
    r"|no(?! (?:\w+ )?(?:problem|complaint|bug|change|objection|concern|need|further|more)))\b"
    r"|^\W*(?:please )?(?:correct (?:the|your|it|this|that|line|step)|fix|check|recheck|redo|revise|recompute"
    r"|reconsider|retry|try again)\b"
)
"""Words against an attempt, and what somebody is asked to do about it."""
_WRONG_BY_WORD = {"true": False, "1": False, "1.0": False, "false": True, "0": True, "0.0": True}


@dataclass(frozen=True, slots=True)
class Corrections:
    """What feedback within a session says of its attempts."""

    num_calls: int  # how often feedback was asked for: the session's class
    wrong: frozenset[int] = frozenset()  # turns whose words are not learnt


def corrections_in(session: Session) -> Corrections:
    """Returns which attempts of a session the next feedback calls wrong.

    An attempt is the words of the message that asks, and of the messages without any call since the feedback
    before. Raises BadRowError for a session that is nothing to learn from: it ends by asking, asks more than
    `MAX_CALLS` times, or was told something that is no verdict.
    """
    asks = [
        place
        for place, turn in enumerate(session.turns)
        if any(call.name == FEEDBACK_TOOL for call in turn.calls)
    ]
    if len(asks) > MAX_CALLS:
        raise BadRowError("too_many_calls", f"{len(asks)} calls of {FEEDBACK_TOOL}; at most {MAX_CALLS}")
    if asks and asks[-1] == len(session.turns) - 1:
        raise BadRowError("ends_with_call", f"it ends with a call of {FEEDBACK_TOOL}: no answer follows")
    wrong, first = set[int](), 0
    for place in asks:
        text = told_in(session.turns[place])
        verdict = calls_wrong(text)
        if verdict is None:
            raise BadRowError(
                "unclear_feedback", f"whether the attempt is wrong, nobody can say: {shown(text)}"
            )
        if verdict:
            wrong |= {at for at in range(first, place) if not session.turns[at].calls} | {place}
        first = place + 1
    return Corrections(len(asks), frozenset(wrong))


def told_in(turn: Turn) -> str:
    """Returns what a turn's call for feedback was told; all replies if one for each call cannot be told."""
    replies = [reply["content"] for reply in turn.replies if reply["role"] == "tool"]
    if len(replies) != len(turn.calls):
        return " ".join(reply["content"] for reply in turn.replies)
    return " ".join(t for call, t in zip(turn.calls, replies, strict=True) if call.name == FEEDBACK_TOOL)


def calls_wrong(feedback: str) -> bool | None:
    """Returns whether feedback calls an attempt wrong, or finds all of it right; None if it is unclear.

    It is where it praises a part, praises and says something more, or neither praises nor says a word against
    it. To learn a wrong attempt is worse than to leave a right one out, so doubt is doubt. Feedback may be a
    JSON object that says so in `correct` or `is_correct`, or that truth value alone, as 1 or 0 too.

    Example:
        >>> calls_wrong("The answer 5 is wrong."), calls_wrong("Correct the sign in line 2.")
        (True, True)
        >>> calls_wrong("I found no error in it."), calls_wrong('{"correct": true}')
        (False, False)
        >>> calls_wrong("Line 1 is correct, the sum is wrong.") is calls_wrong("Score: 10/10") is None
        True
    """
    try:
        said = json.loads(feedback)
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict):
        said = said.get("correct", said.get("is_correct"))
        return _WRONG_BY_WORD.get(str(said).casefold())
    if isinstance(said, bool | int | float):
        return _WRONG_BY_WORD.get(str(said).casefold())
    if not feedback.strip():
        return None
    text = feedback.casefold().replace("\u2019", "'")
    rest, cheers = _CHEER.subn(" ", text)
    rest, fine = _FINE.subn(" ", rest)
    if not fine and not cheers:
        return None if _PARTLY.search(text) or not _AGAINST.search(text) else True
    return False if "?" not in rest and _NEUTRAL.fullmatch(rest) else None


def class_weights(num_calls: Sequence[int]) -> list[float]:
    """Returns each session's weight: count^-.5 of the sessions with as many calls, scaled to a mean of 1.

    The exponent is a start value.

    Example:
        The founding set, 374 sessions with one call, 41 with two, 13 with three.

        >>> weights = class_weights([1] * 374 + [2] * 41 + [3] * 13)
        >>> [round(weights[place], 2) for place in (0, 374, 415)]
        [0.75, 2.28, 4.04]
        >>> round(sum(weights) / len(weights), 6)
        1.0
    """
    counts = Counter(num_calls)
    scale = len(num_calls) / sum(count**0.5 for count in counts.values())
    return [scale * counts[number] ** -0.5 for number in num_calls]

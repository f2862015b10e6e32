"""The verifier's word on each line of a solution: what it claims, and whether its numbers come from anywhere.

A line is `wrong` if one of its claims is false, `ok` if one was checked, all hold and every number that it
computes with was given or found before; else `unknown`. `ok` means true, not useful.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from env.math.chains import chains
from env.math.claims import Checked, Known, checked
from env.math.tokens import Token, tokens
from env.math.words import NUMBERS
from pipeline.types import StepVerdict, VerifierStatus

MAX_LINE = 2000
"""Characters of a line that is read."""
MAX_QUOTE = 80
_ANNOTATION = re.compile(r"<<([^<>\n]*)>>")
_BULLET = re.compile(r"\s*(?:[-*•]\s|\d+[.)]\s)")
_END_THINK = "</think>"
_COMMON = frozenset(map(Fraction, (0, 1, 2, 3, 4, 5, 7, 10, 12, 24, 30, 52, 60, 100, 365, 1000)))
"""Numbers that need no source in a text: halves, dozens, hours, per cents."""


@dataclass(frozen=True, slots=True)
class LineCheck:
    """A line of a message, the verdict on it, and the part that decides it."""

    start: int  # characters of the message
    end: int
    number: int  # of the line among those that say something, from 1
    status: VerifierStatus
    code: str = ""  # false_equality, contradiction; of an `unknown` one: ungrounded
    quote: str = ""  # the part in the policy's own words
    right: Fraction | None = None  # what the false side should be; for `corrective` feedback alone

    @property
    def message(self) -> str:
        """What is said of the line wherever verdicts are shown: never a value that it does not say itself."""
        said = {
            "false_equality": f"{self.quote} is false",
            "contradiction": f"{self.quote} contradicts an earlier equation",
            "ungrounded": f"{self.quote} uses a number that nothing before it gives",
        }
        return said.get(self.code, "")


def check_lines(text: str, question: str, modulus: int | None = None) -> list[LineCheck]:
    """Returns a check of each line that says something, in order; no check looks at a later line.

    What stands before the last `</think>` may try what it then rejects, so it is not judged. Annotations
    `<<48/2=24>>` are claims too.
    """
    known = Known(modulus)
    known.add(tokens(question, prose=True), is_given=True)
    words = re.findall(r"[a-z]+", question.lower())
    known.numbers |= {Fraction(NUMBERS[word]) for word in words if word in NUMBERS}
    common = _COMMON if modulus is None else frozenset()
    thought = text.rfind(_END_THINK) + len(_END_THINK) if _END_THINK in text else 0
    checks: list[LineCheck] = []
    start = 0
    for line in text.split("\n"):
        if line.strip():
            number = len(checks) + 1
            if start < thought or len(line) > MAX_LINE:
                checks.append(LineCheck(start, start + len(line), number, "unknown"))
            else:
                found = tokens(_bare(line), prose=True)
                claims = list(_claims(line, found, known))
                checks.append(_judged(line, start, number, claims, known.numbers | common))
                known.add(found)
                known.numbers.update(*(claim.results for claim in claims))
        start += len(line) + 1
    return checks


def _claims(line: str, bare: Sequence[Token], known: Known) -> Iterator[Checked]:
    """Yields the claims of a line's annotations, and of those chains of its bare text that none stands in."""
    annotations = list(_ANNOTATION.finditer(line))
    for found in annotations:
        for chain in chains(tokens(found[1], prose=True)):
            for claim in checked(chain, known):
                yield claim._replace(start=claim.start + found.start(1), end=claim.end + found.start(1))
    for chain in chains(bare):
        if not any(chain.start < found.start() < chain.end for found in annotations):
            yield from checked(chain, known)


def _bare(line: str) -> str:
    """Returns a line with blanks in the places of annotations and of a bullet."""
    bare = _ANNOTATION.sub(lambda found: " " * len(found[0]), line)
    bullet = _BULLET.match(bare)
    return " " * bullet.end() + bare[bullet.end() :] if bullet else bare


def _judged(line: str, start: int, number: int, claims: list[Checked], given: set[Fraction]) -> LineCheck:
    whole = start, start + len(line), number

    def at(claim: Checked, status: VerifierStatus, code: str) -> LineCheck:
        quote = _ANNOTATION.sub("", line[claim.start : claim.end]).strip()[:MAX_QUOTE]
        return LineCheck(start + claim.start, start + claim.end, number, status, code, quote, claim.right)

    if false := next((claim for claim in claims if claim.status == "wrong"), None):
        return at(false, "wrong", false.code)
    reached = set(given)
    for claim in claims:
        if not set(claim.numbers) <= reached:
            return at(claim, "unknown", "ungrounded")
        reached |= claim.results
    return LineCheck(*whole, "ok" if claims else "unknown")


def verdicts(checks: list[LineCheck]) -> tuple[StepVerdict, ...]:
    """Returns the checks as verdicts on parts of an episode's first message."""
    return tuple(
        StepVerdict(0, check.status, check.code, check.message, check.start, check.end) for check in checks
    )

"""The sandbox of a process: our functions on untrusted text, and untrusted programs, both confined."""

from __future__ import annotations

from pydantic import JsonValue

from env.sandbox.outcome import Limits, Outcome


class Box:
    """One untrusted program at work in its own confined process, which can be asked things until it ends.

    Use it as a context manager; leaving it kills the process.
    """

    def ask(self, message: JsonValue) -> Outcome:
        """Returns what the program delivers next, after `receive()` gave it the message.

        "ok" has the delivered value, and the program goes on. Any other status is its end, and further calls
        return it again; a program that ends without an answer has "raised". The clock of `Limits.seconds`
        runs only while it is asked.
        """
        raise NotImplementedError


class Sandbox:
    """Confined processes, started when they are needed and replaced when they are killed.

    Raises ConfigError when it is made on a machine that cannot confine them; see docs/sandbox.md. It may be
    used by several threads; each of them waits for its own outcome.
    """

    def call(self, function: str, argument: JsonValue, limits: Limits) -> Outcome:
        """Returns what OUR function makes of untrusted text, in a confined worker that is reused.

        `function` is "module:name" of a function from one JSON value to one JSON value. Its module is
        imported before the worker is confined, and may not keep a state. A call that ends as "timeout",
        "memory" or "crashed" is tried once more in a fresh worker, so these statuses mean: twice. Who grades
        makes them, and "unavailable", an infra_error.
        """
        raise NotImplementedError

    def run(self, program: str, argument: JsonValue, limits: Limits) -> Outcome:
        """Returns what came of UNTRUSTED Python source, run as `__main__` in a process that is never reused.

        The program's globals hold `argument` and `deliver(value)`; the JSON value delivered last is the
        outcome's. Nothing that it prints can be taken for one. What is delivered is the program's own word,
        never a verdict: what decides one, such as expected values, may be in neither program nor argument.
        Where a harness and a candidate share a program, the candidate can do all that the harness can.
        """
        raise NotImplementedError

    def open(self, program: str, argument: JsonValue, limits: Limits) -> Box:
        """Returns a box in which the program runs as in `run`, with `receive()` besides `deliver(value)`.

        `receive()` waits for the next message and returns it; it raises EOFError when nobody asks any more.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Kills all of its processes; idempotent."""
        raise NotImplementedError


def shared_sandbox() -> Sandbox:
    """Returns the sandbox of this process, made when first asked for; a forked process gets its own.

    Environments ask for it whenever they need it and keep no reference, so they can be pickled.
    """
    raise NotImplementedError

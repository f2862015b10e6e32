"""What a confined process does: run one program, or call one of our functions again and again."""

from __future__ import annotations

import linecache
import os
import random
import resource
import sys
import traceback
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from env.sandbox.channel import packed, receive, send

if TYPE_CHECKING:
    from pydantic import JsonValue

PROGRAM_FILE = "<program>"


def serve(channel: int) -> NoReturn:
    """Does what the first message asks for, says how it ended, and ends this process."""
    first = receive(channel)
    assert isinstance(first, dict)
    mark = bytes.fromhex(str(first["mark"]))
    full = packed(["end", "memory"], mark)  # made while there is memory
    try:
        if "program" in first:
            _run(str(first["program"]), first["argument"], channel, mark)
        else:
            _answer_calls(str(first["module"]), channel, mark)
        end = packed(["end", "ok"], mark)
    except MemoryError:
        end = full
    except BaseException as error:
        end = packed(["end", "raised"], mark)
        try:
            trace = error.__traceback__
            traceback.print_exception(type(error), error, trace and trace.tb_next and trace.tb_next.tb_next)
        except BaseException:  # of the program's own classes
            os.write(2, b"an exception that cannot be shown\n")
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # closed or replaced by the program
        os.write(2, b"its output cannot be flushed\n")
    send(channel, end)
    os._exit(0)


def _run(program: str, argument: JsonValue, channel: int, mark: bytes) -> None:
    """Runs a program as `__main__`."""
    random.seed(0)  # a verdict is a function of the program
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    lines = program.splitlines(keepends=True)
    linecache.cache[PROGRAM_FILE] = (len(program), None, lines, PROGRAM_FILE)

    def deliver(value: object) -> None:
        """Hands a JSON value out."""
        send(channel, packed(["value", value], mark))  # type: ignore[list-item]

    module.__dict__.update(argument=argument, deliver=deliver, receive=lambda: receive(channel))
    exec(compile(program, PROGRAM_FILE, "exec"), module.__dict__)


def _answer_calls(module: str, channel: int, mark: bytes) -> None:
    """Calls functions of a module, which is loaded, as each message says, until there are no more."""
    memory = resource.getrlimit(resource.RLIMIT_AS)[0]
    while True:
        try:
            call = receive(channel)
        except EOFError:
            return
        assert isinstance(call, list)
        name, argument = call
        value = getattr(sys.modules[module], str(name))(argument)
        # What it holds of earlier texts may have cost this one memory, and it may have swallowed the error.
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10 > memory / 2:
            raise MemoryError("more than half")
        send(channel, packed(["value", value], mark))

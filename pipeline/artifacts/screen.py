"""What a stage says to whoever watches: a closed pipe, or a full disk behind one, ends nothing."""

import contextlib
import os
import sys
from typing import TextIO

from rich.console import Console

from pipeline.text import visible


class Screen(Console):
    """Standard error, or output. Once it takes no more nothing more is printed; stage.log has it all."""

    def __init__(self, *, stderr: bool = True) -> None:
        super().__init__(stderr=stderr)

    def tell(self, text: str) -> None:
        """Prints a line; control characters become visible."""
        self.print(visible(text), markup=False, highlight=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Goes on, where rich would end the program."""
        self.quiet = True

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()  # all that is printed comes through here, what a bar draws too
        except OSError:
            self.quiet = True


def say_last(text: str, stream: TextIO | None) -> None:
    """Prints what a command ends with, and gives up streams that take no more.

    Python would try them again at its end, and change the exit code to 120.
    """
    with contextlib.suppress(OSError):
        print(text, file=stream, end="\n" if text else "", flush=True)
    for left in (sys.stdout, sys.stderr):
        try:
            if left is not None:
                left.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), left.fileno())

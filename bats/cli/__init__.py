"""The entry of the command `bats-rl`. Ctrl-C is an ordinary end from the first import on."""

import os
import signal
import sys

INTERRUPTED = 130
"""exit code, as shells have it"""


def command() -> None:
    """Runs the command that the process was started with, and ends the process."""
    try:
        from bats.cli.main import main  # takes half a second

        code = main()
    except KeyboardInterrupt:
        code = INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to interrupt
    if code == INTERRUPTED:  # threads of compiled code may still run, and crash if Python cleans up
        end_at_once()
    sys.exit(code)


def end_at_once(*_: object) -> None:
    """Ends the process as it is. Every file is whole at any time."""
    sys.stdout.flush()
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h")  # a progress bar hides the cursor
    sys.stderr.flush()
    os._exit(INTERRUPTED)

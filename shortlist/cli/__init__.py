"""The command line: `shortlist COMMAND`."""

from __future__ import annotations

import os
import signal
import sys

from shortlist.contracts import ShortlistError
from shortlist.storage.artefacts import is_disk_full
from shortlist.system.project import use_project


def main() -> None:
    """Find the project and run the command line; a user's mistake or a full disk is one message and exit code 2."""
    if os.getpid() == 1:  # of a pod; the kernel ignores signals that the first process does not handle
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        use_project()
        from shortlist.cli.commands import run

        run()
    except ShortlistError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None
    except Exception as error:
        if not is_disk_full(error):
            raise
        filename = getattr(error, "filename", None) or "while writing"
        sys.stderr.write(f"The disk is full ({filename}). Free some space and run again: finished steps are kept.\n")
        raise SystemExit(2) from None

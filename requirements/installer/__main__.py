"""Installs what Shortlist needs: `python3 requirements/installer run|triton|cluster|test|catboost|docs|check|python`.

Runs before anything is installed, with whatever Python the machine has: standard library only, syntax of Python 3.8.
"""

import os
import sys

if sys.version_info < (3, 8):  # noqa: UP036  (older machines call this file, and must get a sentence)
    sys.exit("Set-up needs Python 3.11, 3.12 or 3.13 (this is %d.%d)." % sys.version_info[:2])  # noqa: UP031

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120

from installer.command_line import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

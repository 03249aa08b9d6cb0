"""A pod's server: `python -m shortlist.rollout.kserve.servers.serve --predictor_host HOST`, set by the environment."""

from __future__ import annotations

import logging
import sys

import uvloop

from shortlist.contracts import ShortlistError
from shortlist.rollout.kserve.servers.settings import settings_in_pod
from shortlist.serving.server.server import serve

_log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        uvloop.run(serve(settings_in_pod(arguments)))
    except ShortlistError as error:
        _log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

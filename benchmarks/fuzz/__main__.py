"""Fuzzing: `python -m benchmarks.fuzz [--requests N] [--envoy N] [--seed S] [--kind KIND [--only NUMBER]]`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import record_fuzzing
from benchmarks.fuzz.cases import KINDS
from benchmarks.fuzz.driver import Target, fuzz, table
from benchmarks.fuzz.running import Running, running_envoy, running_server
from benchmarks.fuzz.world import SCORES, fuzz_world
from shortlist.spec.serving import Serving

_SHARES = {
    "json": 0.25, "binary": 0.15, "raw": 0.1, "grpc": 0.15,
    "recommend-json": 0.15, "recommend-binary": 0.1, "recommend-grpc": 0.1,
}  # fmt: skip
_LONGEST_DELAY_SECONDS = 10.0
_LOG = {"sampling": 1.0, "feature_sampling": 1.0}


def main(arguments: list[str]) -> int:
    """Fuzz a server; return 1 where it failed a request."""
    options = _parser().parse_args(arguments)
    kinds = [options.kind] if options.kind else [*KINDS]
    shares = {kind: _SHARES[kind] / sum(_SHARES[other_kind] for other_kind in kinds) for kind in kinds}
    with TemporaryDirectory(prefix="shortlist-") as folder:
        world = fuzz_world(Path(folder) / "world")
        with running_server(Path(folder) / "server", world, {"log": _LOG}) as server:
            direct = Target(server.http, server.grpc, SCORES)
            failed = _fuzzed("server", server, direct, shares, options.requests, options)
            if options.envoy:
                with running_envoy(Path(folder) / "envoy", server.http, server.grpc, Serving()) as port:
                    through = Target(port, port, SCORES)
                    failed |= _fuzzed("through Envoy", server, through, shares, options.envoy, options)
            if failed:
                sys.stdout.write(f"\nThe server's log ends:\n{server.log.read_text()[-3_000:]}\n")
    return 1 if failed else 0


def _fuzzed(
    name: str, server: Running, target: Target, shares: dict[str, float], requests: int, options: argparse.Namespace
) -> bool:
    started, tallies = time.perf_counter(), {}
    for kind, share in shares.items():
        numbers = range(round(requests * share)) if options.only is None else range(options.only, options.only + 1)
        tallies[kind] = asyncio.run(fuzz(target, kind, numbers, options.seed))
    sys.stdout.write(f"\n{name}: {time.perf_counter() - started:.0f} s, seed {options.seed}\n")
    table(tallies, sys.stdout.write)
    broken = _broken(server)
    failures = [failure for tally in tallies.values() for failure in tally.failures] + broken
    for failure in failures[:20]:
        sys.stdout.write(f"  {failure}\n")
    if options.only is None:
        target_title = f"requests to a {name}" if target.http == server.http else f"requests {name}"
        record_fuzzing(target_title, sum(tally.sent for tally in tallies.values()), len(failures))
    return bool(failures)


def _broken(server: Running) -> list[str]:
    """Return what is wrong with the server after all cases."""
    sys.stdout.write(f"server: {server.megabytes:.0f} MiB\n")
    checks = {
        "requests that it failed": server.metric("shortlist_requests_total", 'outcome="failed"'),
        "prediction log broken": server.metric("shortlist_log_broken"),
        "answers that the log had no room for": server.metric("shortlist_log_dropped"),
        "users' features broken": server.metric("shortlist_users_broken"),
        "candidates broken": server.metric("shortlist_release_broken"),
        "events broken": server.metric("shortlist_events_broken"),
        "events late": server.metric("shortlist_events_delay_seconds") > _LONGEST_DELAY_SECONDS,
        "histories broken": server.metric("shortlist_history_broken"),
    }
    return [f"{name}: {value:g}" for name, value in checks.items() if value]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=200_000, help="how many in all")
    parser.add_argument("--envoy", type=int, default=8_000, help="how many more through a real Envoy; 0: none")
    parser.add_argument("--seed", type=int, default=1, help="another seed makes other requests")
    parser.add_argument("--kind", choices=KINDS, help="only this one")
    parser.add_argument("--only", type=int, help="only the case with this number, as a failure names it")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

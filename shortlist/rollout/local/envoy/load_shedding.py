"""Load shedding by Envoy's adaptive concurrency filter.

A server itself refuses requests that would wait too long, but only after they were sent to it. The filter limits the
requests in flight of a track, so that those that it passes on take about half of the longest wait.
"""

from __future__ import annotations

from typing import Any, Final

from shortlist.spec.serving import Overload

Config = dict[str, Any]
TRACKS: Final = ("stable", "canary")
"""Each track has its own filter: overload of one track must not refuse the users of the other."""
REFUSED_STATUS: Final = 429
"""Status of the filter's refusals, which Envoy uses for nothing else; it is mapped to 503 for the client."""
REFUSED_TEXT: Final = "the server has too much to do; come back later"
_FILTER: Final = "envoy.filters.http.adaptive_concurrency"
_WAIT_SHARE: Final = 0.5
"""Target latency under lasting overload, as a share of the longest wait, beyond which the server itself refuses."""
_PERCENTILE: Final = 95
"""Percentile of the compared latencies; high, because under overload most answers may be quick refusals."""
_MIN_TURNS: Final = 4
"""Smallest limit, in multiples of a server's own concurrency, for each second of the target latency (at least one).

The limit starts here and cannot grow before the first answers; a smaller one would refuse users who may wait half a
minute for a server that restarts.
"""
_SHORTEST_INTERVAL: Final = 0.1
"""Shortest time in seconds between two changes of the limit; otherwise the target latency.

A change affects the measured latencies only when the requests that it admitted are answered. With earlier changes the
limit would oscillate: double ten times before the first answer, and then fall to its minimum.
"""


def shedding_filters(overload: Overload, servers_per_envoy: float) -> list[Config]:
    """Return the filters of all tracks; each is disabled until a route enables it."""
    return [_shedding_filter(track, overload, servers_per_envoy) for track in TRACKS]


def enable_shedding(track: str) -> Config:
    """Return the configuration with which a share of a route enables its track's filter."""
    kind = "type.googleapis.com/envoy.config.route.v3.FilterConfig"
    return {"typed_per_filter_config": {f"{_FILTER}.{track}": {"@type": kind, "config": {}}}}


def _shedding_filter(track: str, overload: Overload, servers_per_envoy: float) -> Config:
    latency_seconds = max(_WAIT_SHARE * overload.max_wait_ms / 1000, 0.001)  # Envoy takes no less
    min_concurrency = min(int(_MIN_TURNS * overload.max_concurrent * max(latency_seconds, 1)), overload.max_requests)
    controller = {
        "sample_aggregate_percentile": {"value": _PERCENTILE},
        "concurrency_limit_params": {
            "max_concurrency_limit": max(min_concurrency, int(servers_per_envoy * overload.max_requests)),
            "concurrency_update_interval": f"{max(latency_seconds, _SHORTEST_INTERVAL):g}s",
        },
        # A declared time, not a measured one: to measure it, Envoy would refuse nearly everything for a while.
        "min_rtt_calc_params": {
            "fixed_value": f"{latency_seconds:.6f}s",
            "min_concurrency": min_concurrency,
        },
    }
    return {
        "name": f"{_FILTER}.{track}",
        "disabled": True,
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.adaptive_concurrency.v3.AdaptiveConcurrency",
            "gradient_controller_config": controller,
            "concurrency_limit_exceeded_status": {"code": "TooManyRequests"},
        },
    }

"""How an Envoy refuses requests that a version could not answer in time: its own filter for adaptive concurrency.

A server refuses by itself what would wait too long, but by then the request has been sent to it. The filter bounds how
many requests of a track are under way, so that those that are passed on take about half of the longest wait.
"""

from __future__ import annotations

from typing import Any, Final

from shortlist.spec.serving import Overload

Config = dict[str, Any]
TRACKS: Final = ("stable", "canary")
"""Each has a filter, as one track's overload is not a reason to refuse the users of the other."""
REFUSED_STATUS: Final = 429
"""Of the filter's refusals, which no other answer of Envoy's own has; a client gets 503."""
REFUSED_TEXT: Final = "the server has too much to do; come back later"
_FILTER: Final = "envoy.filters.http.adaptive_concurrency"
_WAIT_SHARE: Final = 0.5
"""Of the longest wait, for requests under lasting overload; the server refuses beyond the whole of it."""
_PERCENTILE: Final = 95
"""Of the latencies that are compared: under overload most answers may be a server's quick refusals."""
_MIN_TURNS: Final = 4
"""Requests that always get in, in multiples of those that a server works on at once, for a latency of a second or less.

For a longer one there are as many for each of its seconds: the limit starts here, and cannot grow before the first
answers, so that users who may wait half a minute for a server that is being restarted would be refused.
"""
_SHORTEST_INTERVAL: Final = 0.1
"""Seconds between two changes of the limit; with a longer latency as many as that.

A change shows in the latencies only when the requests that it let in are answered. Changed sooner, the limit would
double ten times over before the first of them, and then fall to its least, again and again.
"""


def shedding_filters(overload: Overload, servers_per_envoy: float) -> list[Config]:
    """Return the filters of all tracks; a route has to ask for one."""
    return [_shedding_filter(track, overload, servers_per_envoy) for track in TRACKS]


def enable_shedding(track: str) -> Config:
    """Return what makes a share of a route use its track's filter."""
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
        # A declared time, not a measured one: to measure it Envoy would refuse nearly everything for a while.
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

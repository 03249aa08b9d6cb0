"""The rate of requests of one address, limited by Envoy where `serving.limits.requests_per_second` is declared.

The application's backend is not limited: neither who presents its token nor an address in `serving.backends`.
"""

from __future__ import annotations

from typing import Any, Final

from shortlist.spec.serving import Serving
from shortlist.system.sender_networks import IPV6_PREFIX

Config = dict[str, Any]
RATE_STATUS: Final = 423
"""Status of the filter's refusals, which Envoy uses for nothing else; it is mapped to 429 for the client."""
_KIND: Final = "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
_BURST_SECONDS: Final = 2
"""Requests of so many seconds may come at once."""
_MAX_ADDRESSES: Final = 20_000
"""Addresses whose rates an Envoy knows; the one that asked least recently is forgotten for a new one."""
_MAX_RATE: Final = 2**31
_ALL_REQUESTS: Final = {"default_value": {"numerator": 100}}


def rate_filters(serving: Serving, token: str | None) -> list[Config]:
    """Return the filter; none where no limit is declared.

    Args:
        serving: The section with the limit and the addresses that it does not apply to.
        token: Token of the backend.
    """
    rate = serving.limits.requests_per_second
    if rate is None:
        return []
    actions: list[Config] = [
        {"masked_remote_address": {"v4_prefix_mask_len": 32, "v6_prefix_mask_len": IPV6_PREFIX}},
        # Probes of health cost nothing, and whoever asks for them is told the truth.
        _exempt_header("method", {"name": ":method", "string_match": {"exact": "GET"}}),
    ]
    if token is not None:
        actions.append(_exempt_header("token", {"name": "authorization", "string_match": {"exact": f"Bearer {token}"}}))
    entries = [{"key": "masked_remote_address"}, *({"key": name, "value": "other"} for name in ("method", "token"))]
    entries = entries[: len(actions)]
    if serving.backend_networks:
        ranges = [
            {"address_prefix": str(network.network_address), "prefix_len": network.prefixlen}
            for network in serving.backend_networks
        ]
        matcher = {"ranges": ranges, "invert_match": True}
        action = {"descriptor_key": "address", "descriptor_value": "other", "address_matcher": matcher}
        actions.append({"remote_address_match": action})
        entries.append({"key": "address", "value": "other"})
    settings = {
        "@type": _KIND,
        "stat_prefix": "rate_limit",
        "status": {"code": RATE_STATUS},
        "filter_enabled": _ALL_REQUESTS,
        "filter_enforced": _ALL_REQUESTS,
        "max_dynamic_descriptors": _MAX_ADDRESSES,
        "rate_limits": [{"actions": actions}],
        "descriptors": [{"entries": entries, "token_bucket": _bucket(rate)}],
        "token_bucket": _bucket(_MAX_RATE),  # of requests that no descriptor is about
    }
    return [{"name": "envoy.filters.http.local_ratelimit", "typed_config": settings}]


def _exempt_header(key: str, header: Config) -> Config:
    """Return the action by which requests with a header are not limited."""
    match = {"descriptor_key": key, "descriptor_value": "other", "expect_match": False, "headers": [header]}
    return {"header_value_match": match}


def _bucket(rate: int) -> Config:
    tokens = min(_BURST_SECONDS * rate, _MAX_RATE)
    return {"max_tokens": tokens, "tokens_per_fill": rate, "fill_interval": "1s"}

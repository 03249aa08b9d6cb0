"""What counts as one sender, wherever a sender has a share or a turn: of IPv6 a whole /48 network."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

import polars as pl

IPV6_PREFIX: Final = 48
"""Length of the prefix that one site gets, whose addresses one client may have."""


@lru_cache(maxsize=65_536)
def sender_network(sender: str | None) -> str:
    """Return what counts as one sender: an identity, an IPv4 address, or the /48 network of an IPv6 address.

    >>> sender_network("2001:db8:0:7::1"), sender_network("::ffff:192.0.2.7"), sender_network("shop")
    ('2001:db8::/48', '192.0.2.7', 'shop')
    """
    try:
        address = ipaddress.ip_address(sender or "")
    except ValueError:
        return sender or ""
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((int(address), IPV6_PREFIX), strict=False))


def sender_networks(senders: pl.Series) -> pl.Series:
    """Return `sender_network` of senders; null of null."""
    names = senders.drop_nulls().unique()
    return senders.replace(names, pl.Series([sender_network(name) for name in names], dtype=pl.String))

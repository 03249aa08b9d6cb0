"""What can go wrong with a cluster."""

from __future__ import annotations

from shortlist.contracts import ShortlistError


class ClusterError(ShortlistError):
    """The cluster refuses, does not answer, or does not become what it was asked to be."""


class ConflictError(ClusterError):
    """An object is there already, or was changed since it was read."""


class ForeignError(ClusterError):
    """An object belongs to somebody else, or somebody else changed it; it is never touched."""

"""Errors of a cluster."""

from __future__ import annotations

from shortlist.contracts import ShortlistError


class ClusterError(ShortlistError):
    """The cluster refuses a call, does not answer, or does not reach the desired state."""


class ConflictError(ClusterError):
    """An object exists already, or was changed since it was read."""


class ForeignError(ClusterError):
    """An object belongs to another owner, or was changed by somebody else; it is never modified."""

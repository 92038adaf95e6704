"""The lease: one holder at a time, until a tick; executing and looking for evidence share it.

Its end decides when others may take over, never who may speak: that the fence does (ADR-0033, 6).
"""

from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.tick import Now, Tick


class Lease(NamedTuple):
    """Hold a fence: who may speak (owner, token), and from when until when, in ticks."""

    owner: str
    token: str
    from_tick: Tick
    expires_tick: Tick


def check(dispatch_id: str, owner: str, token: str, lease_ms: int) -> None:
    """Prove what somebody asks for who wants to hold a dispatch; raises `UsageError`."""
    ids.check_ident(dispatch_id, "dispatch_id")
    ids.check_ident(owner, "owner", most=limits.LEASE_NAME_CHARS_MAX)
    ids.check_ident(token, "lease_token", most=limits.LEASE_NAME_CHARS_MAX)
    check_length(lease_ms)


def check_length(lease_ms: int) -> None:
    """Prove how long somebody wants to hold on; raises `UsageError`."""
    ids.check_int(lease_ms, "lease_ms", least=1, most=limits.LEASE_MS_MAX)


def take(owner: str, token: str, lease_ms: int, now: Now) -> Lease:
    """Return the lease of a new holder."""
    return Lease(owner, token, now.tick, now.tick + lease_ms)


def prolong(held: Lease, lease_ms: int, now: Now) -> Lease:
    """Return the lease with more time; its end never moves closer (W28)."""
    expires = max(held.expires_tick, now.tick + lease_ms)
    return held._replace(from_tick=now.tick, expires_tick=expires)


def runs(held: Lease, now: Now) -> bool:
    """Tell whether nobody else may take over yet; at exactly its end it has run out."""
    return now.tick < held.expires_tick


def is_of(held: Lease, owner: str, token: str) -> bool:
    """Tell whether this very holder asks again."""
    return (held.owner, held.token) == (owner, token)


def covers(held: Lease, lease_ms: int) -> bool:
    """Tell whether it was taken or prolonged for at least so long: a repeat asks for no more."""
    return held.expires_tick - held.from_tick >= lease_ms

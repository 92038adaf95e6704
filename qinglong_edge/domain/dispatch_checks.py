"""Prove the fields of dispatch commands before anything is read (contract 6.3)."""

from qinglong_edge.domain import ids, lease, limits
from qinglong_edge.domain.dispatch import Claim, Complete, Release, Renew


def check_claim(event: Claim) -> Claim:
    """Return the command with every field proven; raises `UsageError`."""
    lease.check(*event)
    return event


def check_renew(event: Renew) -> Renew:
    """Return the command with its length proven; raises `UsageError`."""
    lease.check_length(event.lease_ms)
    return event


def check_release(event: Release) -> Release:
    """Return the command with every field proven; raises `UsageError`."""
    ids.check_ident(event.mutation_id, "mutation_id")
    ids.check_ident(event.result_code, "result_code")
    if event.retry_after_ms is not None:
        most = limits.APPROVAL_LIFETIME_MS_MAX
        ids.check_int(event.retry_after_ms, "retry_after_ms", least=0, most=most)
    return event


def check_complete(event: Complete) -> Complete:
    """Return the command with every field proven; raises `UsageError`."""
    ids.check_ident(event.mutation_id, "mutation_id")
    ids.check_ident(event.result_code, "result_code")
    return event

"""How long a dispatch waits before it is due again, and a control before somebody looks again."""

from qinglong_edge.domain import limits
from qinglong_edge.domain.execution import Dispatch


def retry_after_ms(attempt_count: int) -> int:
    """Return how long a spent attempt waits: 1 s, doubling, at most a minute."""
    return _doubling(attempt_count, limits.RETRY_BASE_MS, limits.RETRY_MS_MAX)


def waiting_retry_ms(dispatch: Dispatch, now_at_ms: int) -> int:
    """Return how long to wait for a handler or plan that is not there: half the age, bounded."""
    age_ms = now_at_ms - dispatch.created_at_ms
    return min(limits.WAITING_RETRY_MS_MAX, max(limits.WAITING_RETRY_MS_MIN, age_ms // 2))


def next_scan_ms(finding_count: int) -> int:
    """Return how long to wait after this many findings: 5 s, doubling, at most six hours (W6)."""
    return _doubling(finding_count, limits.SCAN_BASE_MS, limits.SCAN_MS_MAX)


def _doubling(count: int, base_ms: int, most_ms: int) -> int:
    doublings = min(max(count, 1) - 1, limits.RETRY_EXPONENT_MAX)
    return min(most_ms, base_ms << doublings)

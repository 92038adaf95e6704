"""Look for evidence of what nobody knows, a page at a time, and settle what it proves (contract 9).

Nothing is executed here, ever: a provider observes, the domain decides, the store keeps. A type
without an automatic provider goes to the manual queue at once, unasked. Whatever the storage does
not take is left as it stands: the scan lease runs out and somebody looks again.
"""

from collections.abc import Callable

from qinglong_edge.domain import evidence, limits
from qinglong_edge.domain.action import Capability
from qinglong_edge.domain.errors import STORE_FAILED
from qinglong_edge.domain.evidence import (
    VERIFIED,
    ClaimScan,
    Evidence,
    Observe,
    RenewScan,
    ScanFence,
)
from qinglong_edge.domain.execution import Dispatch, Progress
from qinglong_edge.domain.machines import ControlStatus
from qinglong_edge.domain.paging import Cursor
from qinglong_edge.domain.recovery import Finding, RecoveryRefusal
from qinglong_edge.domain.resolution import ResolveByEvidence
from qinglong_edge.executor.invoke import Returned
from qinglong_edge.ports.evidence import EvidenceContext, EvidenceProvider, Providers
from qinglong_edge.ports.repositories import Recoveries, RecoveryAnswer
from qinglong_edge.runtime.execution import Desk
from qinglong_edge.runtime.page_loop import Batch, Counts

COUNTERS = (
    "scanned", "claimed", "verified_succeeded", "verified_failed", "deferred", "manual_required",
    "execution_active", "already_resolved", "unavailable", "damaged",
)  # fmt: skip
UNSUPPORTED = Evidence(Finding.UNSUPPORTED, "automatic_recovery_unsupported")
UNAVAILABLE = Evidence(Finding.UNAVAILABLE, "recovery_evidence_unavailable")

_REFUSED = {
    RecoveryRefusal.NOT_FOUND: "unavailable",
    RecoveryRefusal.MANUAL_REQUIRED: "manual_required",
    RecoveryRefusal.ALREADY_TERMINAL: "already_resolved",
    RecoveryRefusal.EXECUTION_ACTIVE: "execution_active",
}


class Reconciler:
    """Work one page at a time, strictly one outcome after another; no timer, no recursion."""

    def __init__(self, desk: Desk, recoveries: Recoveries, providers: Providers) -> None:
        """Take the desk of one lease owner; nothing is looked at until a page is asked for."""
        self._desk = desk
        self._recoveries = recoveries
        self._providers = providers
        self._counts: Counts = {}

    def reconcile_page(
        self, after: Cursor | None, limit: int, may_begin: Callable[[], bool]
    ) -> Batch:
        """List one page and look at each outcome; `may_begin` is asked before each.

        What listing raises goes up. Everything later is counted, never raised.
        """
        self._counts = dict.fromkeys(COUNTERS, 0)
        listed = self._recoveries.list_due(after, limit)
        self._counts["scanned"] = len(listed.items) + listed.damaged
        self._counts["damaged"] = listed.damaged
        for record in listed.items:
            if not may_begin():
                return Batch(self._counts, listed.cursor, stopped=True)
            if record.dispatch is not None:
                self._counts[self._look(record.dispatch)] += 1
        return Batch(self._counts, listed.cursor)

    def _look(self, dispatch: Dispatch) -> str:
        """Claim, look, record; return the counter of how it went."""
        provider = self._automatic(dispatch.action.action_type)
        if provider is not None and self._desk.outstanding.busy(_call_name(provider)):
            return "deferred"  # the last look has not returned: nothing is claimed for nothing
        look_ms = 0
        if provider is not None:
            look_ms = self._providers.inspect_deadline_ms(provider.action_type)
        lease_ms = min(look_ms + limits.PAGE_SLACK_MS, limits.LEASE_MS_MAX)
        token = self._desk.entropy(16).hex()
        try:
            claimed = self._recoveries.claim(
                ClaimScan(dispatch.dispatch_id, self._desk.owner, token, lease_ms)
            )
            if isinstance(claimed, RecoveryRefusal):
                return _REFUSED.get(claimed, "deferred")
            self._counts["claimed"] += 1
            progress = claimed.after.progress
            fence = None if progress is None else evidence.scan_fence_of(progress)
            if progress is None or fence is None:
                return "unavailable"
            look = _Look(self._desk, self._recoveries, dispatch, fence, lease_ms)
            found = UNSUPPORTED if provider is None else look.inspect(provider, progress, look_ms)
            return _counter(look.record(found), found)
        except STORE_FAILED:
            return "unavailable"

    def _automatic(self, action_type: str) -> EvidenceProvider | None:
        provider = self._providers.provider(action_type)
        if provider is None or provider.capability is not Capability.AUTOMATIC:
            return None
        return provider


class _Look:
    """Look at one outcome under one scan lease, and say once what was seen."""

    def __init__(
        self,
        desk: Desk,
        recoveries: Recoveries,
        dispatch: Dispatch,
        fence: ScanFence,
        lease_ms: int,
    ) -> None:
        self._desk = desk
        self._recoveries = recoveries
        self._dispatch = dispatch
        self._fence = fence
        self._lease_ms = lease_ms

    def inspect(self, provider: EvidenceProvider, progress: Progress, look_ms: int) -> Evidence:
        """Ask the provider within the deadline; anything but an answer is `unavailable`."""
        control = progress.control
        context = EvidenceContext(
            self._dispatch,
            progress.execution,
            self._dispatch.dispatch_id,
            0 if control is None else control.updated_at_ms,
        )
        ending = self._desk.outstanding.call(
            _call_name(provider),
            lambda: provider.inspect(context),
            deadline_ms=look_ms,
            tick_ms=max(1, self._lease_ms // 2),
            on_tick=self._renew,
        )
        return evidence.believed(ending.value) if isinstance(ending, Returned) else UNAVAILABLE

    def record(self, found: Evidence) -> RecoveryAnswer:
        """Settle by what is verified, count everything else."""
        mutation_id, dispatch_id = self._desk.draw_id(), self._dispatch.dispatch_id
        if found.finding in VERIFIED:
            event = ResolveByEvidence(dispatch_id, self._fence, mutation_id, found)
            return self._recoveries.resolve_by_evidence(event)
        return self._recoveries.observe(Observe(dispatch_id, self._fence, mutation_id, found))

    def _renew(self) -> None:
        event = RenewScan(self._dispatch.dispatch_id, self._fence, self._lease_ms)
        try:
            answer = self._recoveries.renew(event)
        except STORE_FAILED:
            return  # the lease may run out; only the fence decides whether the finding counts
        if not isinstance(answer, RecoveryRefusal) and answer.after.progress is not None:
            self._fence = evidence.scan_fence_of(answer.after.progress) or self._fence


def _call_name(provider: EvidenceProvider) -> str:
    """Name the call so that looking and executing of one type do not wait for each other."""
    return f"evidence:{provider.action_type}"


def _counter(answer: RecoveryAnswer, found: Evidence) -> str:
    if isinstance(answer, RecoveryRefusal):  # else somebody took over, and sees to it
        return _REFUSED.get(answer, "deferred")
    progress = answer.after.progress
    if progress is None or progress.control is None:
        return "unavailable"
    if found.finding in VERIFIED:
        return found.finding.value
    waits = progress.control.status is ControlStatus.MANUAL_REQUIRED
    return "manual_required" if waits else "deferred"

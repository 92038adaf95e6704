"""What the store offers; every method is one transaction, or one read.

Every mutation answers a decision of its machine: `Changed`, `Replayed` or a refusal. It raises only
`UnavailableError` (nothing changed, or `CommitUnknownError`: repeat the same call), `DamagedError`
and `InvariantBroken`. The clock is read under the write lock, so no command carries a time.
"""

import enum
from typing import NamedTuple, Protocol

from qinglong_edge.domain import approval as approvals
from qinglong_edge.domain import dispatch as dispatches
from qinglong_edge.domain import evidence, resolution
from qinglong_edge.domain.action import Plan
from qinglong_edge.domain.canonical import Json, JsonObject
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.effect import Whole
from qinglong_edge.domain.execution import Record
from qinglong_edge.domain.paging import Cursor, Page
from qinglong_edge.domain.policy import (
    BindRole,
    PolicyFence,
    PolicyRefusal,
    Project,
    RoleBinding,
    Subject,
)
from qinglong_edge.domain.recovery import RecoveryRefusal
from qinglong_edge.domain.tick import Boot, ClockRefusal, Now

Stored = Changed[Record] | Replayed[Record]
ApprovalAnswer = Stored | approvals.ApprovalRefusal
DispatchAnswer = Stored | dispatches.DispatchRefusal
RecoveryAnswer = Stored | RecoveryRefusal
Begin = dispatches.Start | Whole  # the barrier alone, or with effect and verdict in its commit


class Queue(enum.StrEnum):
    """Name what waits, each list in the order in which it should be looked at."""

    PENDING = "pending"
    APPROVED = "approved"
    DUE = "due"
    EXECUTING = "executing"
    RECOVERY_DUE = "recovery_due"
    MANUAL_REQUIRED = "manual_required"


class Listing(NamedTuple):
    """Choose a list of actions: `queue` None lists all, newest first."""

    queue: Queue | None
    after: Cursor | None
    limit: int


class Instant(NamedTuple):
    """Hold one reading of time for people: now, and the boots to translate ticks with."""

    now: Now
    boots: tuple[Boot, ...]


class Backlog(NamedTuple):
    """Count what waits, from the same indexes that the phases read."""

    due: int
    waiting: int
    executing: int
    pending: int
    recovery_due: int
    manual_required: int
    oldest_age_ms: int


class Settlement(NamedTuple):
    """Count what a reset of the clock closed, and say what time it is since."""

    approvals: int
    dispatches: int
    sessions: int
    now: Now


class TrustClock(NamedTuple):
    """Ask, under one's fence, that the wall clock be believed as it is."""

    project_id: str
    subject: Subject
    fence: PolicyFence


class Approvals(Protocol):
    """Keep approvals and their plans."""

    def propose(self, event: approvals.Propose) -> ApprovalAnswer:
        """Store a new request with its immutable plan and preview."""
        ...

    def decide(self, event: approvals.Decide) -> ApprovalAnswer:
        """Approve or reject a pending request."""
        ...

    def consume(self, event: approvals.Consume) -> ApprovalAnswer:
        """Spend an approved request: dispatch and execution are born in the same commit."""
        ...

    def approve_and_consume(
        self, decision: approvals.Decide, consumption: approvals.Consume
    ) -> ApprovalAnswer:
        """Do both transitions in one commit; either both are stored or none is."""
        ...

    def cancel(self, event: approvals.Cancel) -> ApprovalAnswer | dispatches.DispatchRefusal:
        """Withdraw an open request, or block its dispatch before the barrier."""
        ...

    def find(self, approval_request_id: str) -> Record | None:
        """Return the action of an approval id or a dispatch id."""
        ...

    def plan(self, approval_request_id: str) -> tuple[Plan, JsonObject] | None:
        """Return the stored plan and preview, their digests verified; raises `DamagedError`."""
        ...

    def page(self, listing: Listing) -> Page[Record]:
        """Return one keyset page; a damaged row is skipped and counted."""
        ...

    def repeated_by(self, dispatch_id: str) -> tuple[str, ...]:
        """Return the newest requests, at most eight, that say they repeat this dispatch."""
        ...


class Dispatches(Protocol):
    """Keep dispatches on their way to a verdict."""

    def list_due(self, after: Cursor | None, limit: int) -> Page[Record]:
        """Return one page of due dispatches in (eligible, action) order."""
        ...

    def claim_page(
        self, claims: tuple[dispatches.Claim, ...], start: Begin | None = None
    ) -> tuple[tuple[DispatchAnswer, ...], DispatchAnswer | None]:
        """Claim a page in one commit; `start` also passes the first item's barrier in it.

        A `Whole` also has its effect and its verdict there.
        """
        ...

    def start(self, event: Begin) -> DispatchAnswer:
        """Pass the barrier: `executing` and the armed control in one commit.

        A `Whole` has its effect, its receipt and its verdict in the same one.
        """
        ...

    def renew(self, event: dispatches.Renew) -> DispatchAnswer:
        """Prolong a held lease."""
        ...

    def release(self, event: dispatches.Release) -> DispatchAnswer:
        """Let a leased dispatch go before its barrier."""
        ...

    def put_back(self, events: tuple[dispatches.PutBack, ...]) -> tuple[DispatchAnswer, ...]:
        """Return unreached items in one commit."""
        ...

    def expire(self, event: dispatches.Expire) -> DispatchAnswer:
        """Hand an execution without an answer to recovery."""
        ...

    def complete(
        self, event: dispatches.Complete, start: Begin | None = None
    ) -> tuple[DispatchAnswer, DispatchAnswer | None]:
        """Record a verdict; `start` passes the next item's barrier in the same commit.

        A refused start rolls back only itself.
        """
        ...

    def settle_dead_owners(self, owner: str) -> int:
        """Take over what earlier owners left; called once by an owner that begins a cycle.

        Executing rows are expired, leased rows put back, the first of them with its attempt spent.
        """
        ...


class Recoveries(Protocol):
    """Keep what is past the barrier without a verdict."""

    def list_due(self, after: Cursor | None, limit: int) -> Page[Record]:
        """Return one page of expired executions whose next scan is due."""
        ...

    def claim(self, event: evidence.ClaimScan) -> RecoveryAnswer:
        """Lease the right to look."""
        ...

    def renew(self, event: evidence.RenewScan) -> RecoveryAnswer:
        """Prolong a held scan lease."""
        ...

    def observe(self, event: evidence.Observe) -> RecoveryAnswer:
        """Record a finding that settles nothing."""
        ...

    def resolve_by_evidence(self, event: resolution.ResolveByEvidence) -> RecoveryAnswer:
        """Store resolution, terminal state and closed control in one commit."""
        ...

    def resolve_by_person(self, event: resolution.ResolveByPerson) -> RecoveryAnswer:
        """Store the same together with the authorization fact, under the person's fence."""
        ...


class Policy(Protocol):
    """Keep projects and role bindings."""

    def resolve(
        self, project_id: str, subject: Subject
    ) -> tuple[Project | None, RoleBinding | None]:
        """Return the project and the subject's newest binding in one read."""
        ...

    def bind(self, event: BindRole) -> Changed[RoleBinding] | Replayed[RoleBinding] | PolicyRefusal:
        """Append the next row of a role history."""
        ...


class Clock(Protocol):
    """Keep the time that is believed."""

    def trust(self, event: TrustClock) -> Settlement | ClockRefusal:
        """Believe the wall clock from this commit on, at the price that settling always has."""
        ...


class Overview(Protocol):
    """Answer questions about the store as a whole."""

    def instant(self) -> Instant:
        """Return the time as a reader sees it."""
        ...

    def backlog(self) -> Backlog:
        """Return what waits."""
        ...

    def work_waits(self, owner: str) -> bool:
        """Tell whether a cycle run by `owner` would write anything; the clock rule included."""
        ...

    def problems(self) -> list[Json]:
        """Return what `verify` finds: bounded, and nothing is repaired."""
        ...

    def bytes_on_disk(self) -> int:
        """Return the size of the database in bytes, its log apart."""
        ...

"""The steps of an action's life, numbered: action 2 has apr-2, dsp-2, token-2, and so on.

Every plan is its own, so that actions do not repeat each other unless a case wants it.
"""

from typing import Any, TypeVar

from qinglong_edge.domain import approval as approvals
from qinglong_edge.domain import dispatch as rules
from qinglong_edge.domain.action import plan_body
from qinglong_edge.domain.approval import Approval
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.execution import Execution, Fence, Outcome, Record
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.domain.policy import BindRole, Role, Subject
from qinglong_edge.domain.recovery import Control
from tests.contract.adapters import Ports, Repositories
from tests.support.builders import (
    EDGE,
    LEASE_MS,
    PROJECT,
    action_binding,
    cancel_command,
    consume_command,
    decide_command,
    propose_command,
    shell_plan,
)

Value = TypeVar("Value")
OWNER = "owner-1"


def changed(answer: object) -> Record:
    """Return what a mutation stored; anything but `Changed` fails the case."""
    assert type(answer) is Changed, answer
    assert isinstance(answer.after, Record)
    return answer.after


def replayed(answer: object) -> Record:
    """Return what a mutation found done; anything but `Replayed` fails the case."""
    assert type(answer) is Replayed, answer
    assert isinstance(answer.after, Record)
    return answer.after


def digest_of(n: int) -> str:
    return action_binding(shell_plan("/bin/echo", str(n))).action_digest


def propose_of(n: int, **changes: Any) -> approvals.Propose:
    plan = shell_plan("/bin/echo", str(n))
    event = propose_command(
        approval_request_id=f"apr-{n}", action=action_binding(plan), body=plan_body(plan)
    )
    return event._replace(**changes)


def decide_of(n: int, **changes: Any) -> approvals.Decide:
    event = decide_command(approval_request_id=f"apr-{n}", decision_id=f"dec-{n}")
    return event._replace(**changes)


def consume_of(n: int, **changes: Any) -> approvals.Consume:
    return consume_command(
        approval_request_id=f"apr-{n}",
        consumption_id=f"con-{n}",
        dispatch_id=f"dsp-{n}",
        action_digest=digest_of(n),
    )._replace(**changes)


def cancel_of(n: int, **changes: Any) -> approvals.Cancel:
    event = cancel_command(approval_request_id=f"apr-{n}", cancel_id=f"can-{n}")
    return event._replace(**changes)


def fence_of(n: int, version: int, owner: str = OWNER) -> Fence:
    return Fence(owner, f"token-{n}", version)


def claim_of(n: int, **changes: Any) -> rules.Claim:
    return rules.Claim(f"dsp-{n}", OWNER, f"token-{n}", LEASE_MS)._replace(**changes)


def start_of(n: int, version: int = 1, **changes: Any) -> rules.Start:
    event = rules.Start(f"dsp-{n}", f"apr-{n}", digest_of(n), fence_of(n, version))
    return event._replace(**changes)


def renew_of(n: int, version: int, **changes: Any) -> rules.Renew:
    return rules.Renew(f"dsp-{n}", fence_of(n, version), LEASE_MS)._replace(**changes)


def release_of(n: int, version: int = 1, **changes: Any) -> rules.Release:
    event = rules.Release(f"dsp-{n}", fence_of(n, version), f"rel-{n}-{version}", "busy", 1_000)
    return event._replace(**changes)


def put_back_of(n: int, version: int = 1) -> rules.PutBack:
    return rules.PutBack(f"dsp-{n}", fence_of(n, version))


def expire_of(n: int, version: int = 2) -> rules.Expire:
    return rules.Expire(f"dsp-{n}", fence_of(n, version))


def complete_of(n: int, version: int = 2, **changes: Any) -> rules.Complete:
    event = rules.Complete(
        f"dsp-{n}", fence_of(n, version), f"done-{n}", Outcome.SUCCEEDED, "exit_0"
    )
    return event._replace(**changes)


class Story:
    """Play steps that must succeed on the first session of a store."""

    def __init__(self, repositories: Repositories) -> None:
        self.repositories = repositories
        self.ports: Ports = repositories.ports
        self.clocks = repositories.clocks

    def proposed(self, n: int = 1, **changes: Any) -> Record:
        return changed(self.ports.approvals.propose(propose_of(n, **changes)))

    def approved(self, n: int = 1, **changes: Any) -> Record:
        self.proposed(n, **changes)
        return changed(self.ports.approvals.decide(decide_of(n)))

    def consumed(self, n: int = 1, **changes: Any) -> Record:
        self.proposed(n, **changes)
        return changed(self.ports.approvals.approve_and_consume(decide_of(n), consume_of(n)))

    def claimed(self, *numbers: int) -> list[Record]:
        """Propose, approve and claim the numbered actions, the claims in one page."""
        for n in numbers or (1,):
            self.consumed(n)
        return self.claimed_again(*numbers or (1,))

    def claimed_again(self, *numbers: int, **changes: Any) -> list[Record]:
        claims = tuple(claim_of(n, **changes) for n in numbers)
        return [changed(answer) for answer in self.ports.dispatches.claim_page(claims)[0]]

    def started(self, n: int = 1) -> Record:
        self.claimed(n)
        return changed(self.ports.dispatches.start(start_of(n)))

    def completed(self, n: int = 1, **changes: Any) -> Record:
        self.started(n)
        return changed(self.ports.dispatches.complete(complete_of(n, **changes))[0])

    def revoke(self, subject: Subject, role: Role | None = None) -> None:
        """Give a subject another binding version; without a role, revoke."""
        self.bind(BindRole(PROJECT, subject, None, role, f"change-{subject.id}-{role}", EDGE))

    def bind(self, event: BindRole) -> None:
        assert isinstance(self.ports.policy.bind(event), Changed)

    def record(self, n: int = 1) -> Record:
        found = self.ports.approvals.find(f"apr-{n}")
        assert found is not None
        return found

    def approval(self, n: int = 1) -> Approval:
        return self.record(n).approval

    def execution(self, n: int = 1) -> Execution:
        progress = self.record(n).progress
        assert progress is not None
        return progress.execution

    def control(self, n: int = 1) -> Control:
        progress = self.record(n).progress
        assert progress is not None
        assert progress.control is not None
        return progress.control

    def status(self, n: int = 1) -> ExecutionStatus:
        return self.execution(n).status

    def due(self) -> list[str]:
        """Return the dispatches that a page would list now."""
        return names(self.ports.dispatches.list_due(None, 64).items)

    def waits_for_recovery(self) -> list[str]:
        return names(self.ports.recoveries.list_due(None, 64).items)


def names(records: list[Record]) -> list[str]:
    return [record.dispatch.dispatch_id for record in records if record.dispatch is not None]


def only(values: list[Value]) -> Value:
    assert len(values) == 1
    return values[0]

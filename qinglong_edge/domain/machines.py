"""The transition tables: nothing else decides a next state (contract 4, 6, 8).

Each row reads: in this state, this event leads to one of these states. A state without rows is
final, and says so by its absence. `recovery_required` and `expired` are no rows: they are readings
of `executing` past its lease and of an open approval past its time.
"""

import enum
from collections.abc import Mapping
from typing import Generic, TypeVar

from qinglong_edge.domain.errors import InvariantBroken

State = TypeVar("State", bound=enum.StrEnum)
Event = TypeVar("Event", bound=enum.StrEnum)


class ApprovalState(enum.StrEnum):
    """Name the stored states of an approval."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    CONSUMED = "consumed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class ApprovalEvent(enum.StrEnum):
    """Name what may happen to an approval."""

    APPROVE = "approve"
    REJECT = "reject"
    CONSUME = "consume"
    CANCEL = "cancel"
    VOID = "void"  # the clock was reset, or the past was restored


class ExecutionStatus(enum.StrEnum):
    """Name the stored states of an execution."""

    PENDING = "pending"
    LEASED = "leased"
    EXECUTING = "executing"
    RETRY_WAIT = "retry_wait"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    BLOCKED = "blocked"


class ExecutionEvent(enum.StrEnum):
    """Name what may happen to an execution."""

    CLAIM = "claim"
    START = "start"
    RENEW = "renew"
    RELEASE = "release"
    PUT_BACK = "put_back"
    COMPLETE = "complete"
    EXPIRE = "expire"
    CANCEL = "cancel"
    VOID = "void"
    RESOLVE = "resolve"


class ControlStatus(enum.StrEnum):
    """Name the stored states of a recovery control."""

    ARMED = "armed"
    LEASED = "leased"
    MANUAL_REQUIRED = "manual_required"
    RESOLVED = "resolved"


class ControlEvent(enum.StrEnum):
    """Name what may happen to a recovery control."""

    REARM = "rearm"  # the execution was renewed or its lease was given up
    CLAIM = "claim"
    OBSERVE = "observe"
    CLOSE = "close"


class Machine(Generic[State, Event]):
    """Answer which states an event may lead to."""

    def __init__(self, name: str, rows: Mapping[tuple[State, Event], tuple[State, ...]]) -> None:
        """Hold the rows under the machine's name."""
        self.name = name
        self.rows = rows

    def allows(self, state: State, event: Event) -> bool:
        """Tell whether the event has a row in this state."""
        return (state, event) in self.rows

    def move(self, state: State, event: Event, to: State | None = None) -> State:
        """Return the next state; `to` chooses where a row has several.

        Raises `InvariantBroken` where the table has no such row: the caller asked `allows` first.
        """
        targets = self.rows.get((state, event), ())
        if to is None and len(targets) == 1:
            return targets[0]
        if to in targets:
            return to
        raise InvariantBroken(f"{self.name}: no row from {state} by {event} to {to}")


_A, _AE = ApprovalState, ApprovalEvent
_E, _EE = ExecutionStatus, ExecutionEvent
_C, _CE = ControlStatus, ControlEvent

# fmt: off
APPROVAL = Machine("approval", {
    (_A.PENDING,  _AE.APPROVE): (_A.APPROVED,),
    (_A.PENDING,  _AE.REJECT):  (_A.REJECTED,),
    (_A.PENDING,  _AE.CANCEL):  (_A.CANCELLED,),
    (_A.PENDING,  _AE.VOID):    (_A.EXPIRED,),
    (_A.APPROVED, _AE.CONSUME): (_A.CONSUMED,),
    (_A.APPROVED, _AE.CANCEL):  (_A.CANCELLED,),
    (_A.APPROVED, _AE.VOID):    (_A.EXPIRED,),
    (_A.CONSUMED, _AE.CANCEL):  (_A.CONSUMED,),  # spent for ever; its dispatch is what is withdrawn
})

EXECUTION = Machine("execution", {
    (_E.PENDING,    _EE.CLAIM):    (_E.LEASED, _E.BLOCKED),
    (_E.PENDING,    _EE.CANCEL):   (_E.BLOCKED,),
    (_E.PENDING,    _EE.VOID):     (_E.BLOCKED,),
    (_E.RETRY_WAIT, _EE.CLAIM):    (_E.LEASED, _E.BLOCKED),
    (_E.RETRY_WAIT, _EE.CANCEL):   (_E.BLOCKED,),
    (_E.RETRY_WAIT, _EE.VOID):     (_E.BLOCKED,),
    (_E.LEASED,     _EE.CLAIM):    (_E.LEASED, _E.BLOCKED),
    (_E.LEASED,     _EE.RENEW):    (_E.LEASED,),
    (_E.LEASED,     _EE.RELEASE):  (_E.RETRY_WAIT, _E.BLOCKED),
    (_E.LEASED,     _EE.PUT_BACK): (_E.RETRY_WAIT,),
    (_E.LEASED,     _EE.CANCEL):   (_E.BLOCKED,),
    (_E.LEASED,     _EE.VOID):     (_E.BLOCKED,),
    (_E.LEASED,     _EE.START):    (_E.EXECUTING, _E.BLOCKED),
    (_E.EXECUTING,  _EE.RENEW):    (_E.EXECUTING,),
    (_E.EXECUTING,  _EE.EXPIRE):   (_E.EXECUTING,),
    (_E.EXECUTING,  _EE.COMPLETE): (_E.SUCCEEDED, _E.FAILED, _E.BLOCKED),
    (_E.EXECUTING,  _EE.RESOLVE):  (_E.SUCCEEDED, _E.FAILED, _E.BLOCKED),
})

CONTROL = Machine("control", {
    (_C.ARMED,           _CE.CLAIM):   (_C.LEASED,),
    (_C.ARMED,           _CE.REARM):   (_C.ARMED,),
    (_C.ARMED,           _CE.CLOSE):   (_C.RESOLVED,),
    (_C.LEASED,          _CE.CLAIM):   (_C.LEASED,),
    (_C.LEASED,          _CE.REARM):   (_C.ARMED,),
    (_C.LEASED,          _CE.OBSERVE): (_C.ARMED, _C.MANUAL_REQUIRED),
    (_C.LEASED,          _CE.CLOSE):   (_C.RESOLVED,),
    (_C.MANUAL_REQUIRED, _CE.REARM):   (_C.MANUAL_REQUIRED,),
    (_C.MANUAL_REQUIRED, _CE.CLOSE):   (_C.RESOLVED,),
})
# fmt: on

OPEN_APPROVALS = frozenset({ApprovalState.PENDING, ApprovalState.APPROVED})
NOT_STARTED = frozenset(
    {ExecutionStatus.PENDING, ExecutionStatus.LEASED, ExecutionStatus.RETRY_WAIT}
)
TERMINAL = frozenset({ExecutionStatus.SUCCEEDED, ExecutionStatus.FAILED, ExecutionStatus.BLOCKED})

"""Named crash points: a test arms a probe that kills the process there; in production none does."""

import enum
from typing import NamedTuple, Protocol


class Step(enum.StrEnum):
    """Name every durable step; each is one commit."""

    INIT = "init"
    MIGRATE = "migrate"
    PROPOSE = "propose"
    APPROVE = "approve"
    REJECT = "reject"
    CONSUME = "consume"
    APPROVE_CONSUME = "approve_consume"
    CANCEL = "cancel"
    CLAIM = "claim"
    CLAIM_START = "claim_start"
    START = "start"
    EXECUTE = "execute"  # not a commit: the side effect itself
    RENEW = "renew"
    RELEASE = "release"
    PUT_BACK = "put_back"
    EXPIRE = "expire"
    COMPLETE = "complete"
    COMPLETE_START = "complete_start"
    WHOLE = "whole"
    EFFECT = "effect"
    CLAIM_SCAN = "claim_scan"
    RENEW_SCAN = "renew_scan"
    OBSERVE = "observe"
    RESOLVE_EVIDENCE = "resolve_evidence"
    RESOLVE_PERSON = "resolve_person"
    SETTLE_OWNERS = "settle_owners"
    SETTLE_CLOCK = "settle_clock"
    BIND_ROLE = "bind_role"
    IDENTITY = "identity"
    SESSION = "session"
    PUBLISH = "publish"  # not a commit of the store: a receipt's file gets its name


class Moment(enum.StrEnum):
    """Name where around a step the process may die."""

    BEFORE = "before"
    INSIDE = "inside"
    AFTER = "after"


class CrashPoint(NamedTuple):
    """Name one place to die."""

    moment: Moment
    step: Step


class Probe(Protocol):
    """Be told of every crash point as it is passed."""

    def __call__(self, point: CrashPoint, /) -> None:
        """Return, or never return."""
        ...


def no_probe(_point: CrashPoint, /) -> None:
    """Let every crash point pass."""

"""The authorization fact: who proved what, when, for a decision that needs it (contract 10.3).

One stands beside every high or critical approval and every outcome that a person settled, written
in that commit and never changed. It holds ids and times only: no token, no code, no free text.
"""

import enum
from typing import NamedTuple

from qinglong_edge.domain import limits
from qinglong_edge.domain.canonical import digest
from qinglong_edge.domain.identity import Assurance, Principal, is_strong
from qinglong_edge.domain.policy import PolicyFence, Subject, SubjectType
from qinglong_edge.domain.tick import Now


class FactKind(enum.StrEnum):
    """Name what was authorized."""

    DECISION = "decision"
    RESOLUTION = "resolution"


class AuthorizationFact(NamedTuple):
    """Hold one fact; `target_id` is the dispatch of a resolution, the request of a decision.

    Requests and dispatches draw their ids from one set, so no digest stands for both.
    """

    target_id: str
    project_id: str
    mutation_id: str
    authorized_by: Subject
    authentication_id: str
    assurance: Assurance
    authenticated_at_ms: int
    project_version: int
    binding_version: int
    authorized_at_ms: int


class Act(NamedTuple):
    """Name what needs a fact: who does it, on what, under which mutation, when it is stamped."""

    target_id: str
    project_id: str
    mutation_id: str
    by: Subject
    at_ms: int


def authorize(
    act: Act | None, principal: Principal | None, fence: PolicyFence, now: Now
) -> AuthorizationFact | None:
    """Return the fact of an act; None where none is needed, or the proof is not strong enough.

    Only a user proves anything, for their own act, at most five minutes before, by the clocks of
    the store and by the stamp that the act is stored with.
    """
    if act is None or principal is None or principal.subject != act.by:
        return None
    if act.by.type is not SubjectType.USER:
        return None
    age_ms = act.at_ms - principal.authenticated_at_ms
    if not is_strong(principal, now) or fence.binding_version is None:
        return None
    if not 0 <= age_ms <= limits.STRONG_AUTHENTICATION_AGE_MS_MAX:
        return None
    return AuthorizationFact(
        act.target_id,
        act.project_id,
        act.mutation_id,
        act.by,
        principal.authentication_id,
        principal.assurance,
        principal.authenticated_at_ms,
        fence.project_version,
        fence.binding_version,
        act.at_ms,
    )


def fact_digest(fact: AuthorizationFact) -> str:
    """Return the digest of contract 15.3; members in that order."""
    return digest(
        {
            "dispatchId": fact.target_id,
            "projectId": fact.project_id,
            "mutationId": fact.mutation_id,
            "resolvedByType": fact.authorized_by.type.value,
            "resolvedById": fact.authorized_by.id,
            "authenticationId": fact.authentication_id,
            "assurance": fact.assurance.value,
            "authenticatedAtMs": fact.authenticated_at_ms,
            "projectVersion": fact.project_version,
            "bindingVersion": fact.binding_version,
            "authorizedAtMs": fact.authorized_at_ms,
        }
    )

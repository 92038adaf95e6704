"""What the store offers about users, agents and sessions."""

from typing import NamedTuple, Protocol

from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.identity import (
    Assurance,
    Identity,
    IdentityRefusal,
    Member,
    PasswordHash,
    Session,
)
from qinglong_edge.domain.paging import Cursor, Page
from qinglong_edge.domain.policy import Authority, PolicyRefusal, Role, Subject, SubjectType


class AddIdentity(NamedTuple):
    """Ask for a new user or agent together with its first role binding.

    `authority` None is the program's own act (init).
    """

    project_id: str
    subject: Subject
    role: Role
    password: PasswordHash | None
    token_digest: str | None
    mutation_id: str
    changed_by: Subject
    authority: Authority | None = None


class DisableIdentity(NamedTuple):
    """Ask for the end of a user or an agent."""

    project_id: str
    subject: Subject
    mutation_id: str
    changed_by: Subject
    authority: Authority | None = None


class OpenSession(NamedTuple):
    """Ask for a session after the password of this version of the user was proven."""

    session_id: str
    token_digest: str
    subject: Subject
    assurance: Assurance
    span_ms: int
    identity_version: int


IdentityAnswer = Changed[Identity] | Replayed[Identity] | IdentityRefusal
SessionAnswer = Changed[Session] | Replayed[Session] | IdentityRefusal


class Identities(Protocol):
    """Keep users, agents and sessions; secrets only as digests."""

    def add(self, event: AddIdentity) -> IdentityAnswer | PolicyRefusal:
        """Store a new identity and its binding in one commit.

        A password is salted anew at each call, so a replay does not compare it.
        """
        ...

    def find(self, subject: Subject) -> Identity | None:
        """Return one identity."""
        ...

    def page(self, kind: SubjectType, after: Cursor | None, limit: int) -> Page[Member]:
        """Return one page of users or agents with their current roles."""
        ...

    def disable(self, event: DisableIdentity) -> IdentityAnswer | PolicyRefusal:
        """Disable an identity, revoke its role and void its sessions in one commit.

        The last active owner user is refused.
        """
        ...

    def rotate(self, subject: Subject, token_digest: str) -> IdentityAnswer:
        """Replace an agent's token digest; the old token ends with this commit."""
        ...

    def by_token(self, token_digest: str) -> Identity | None:
        """Return the active agent that holds this token."""
        ...

    def open_session(self, event: OpenSession) -> SessionAnswer:
        """Store a session; the subject's ended ones and the oldest surplus one go."""
        ...

    def session(self, token_digest: str) -> Session | None:
        """Return the session of this token while it holds on both clocks and its user is active."""
        ...

    def close_session(self, token_digest: str) -> bool:
        """End a session; False where none was open."""
        ...

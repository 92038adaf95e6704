"""What the store offers about users, agents and sessions."""

from typing import NamedTuple, Protocol

from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.identity import (
    Assurance,
    Identity,
    IdentityRefusal,
    Member,
    PasswordHash,
    Principal,
    Session,
)
from qinglong_edge.domain.paging import Cursor, Page
from qinglong_edge.domain.policy import Authority, PolicyRefusal, Role, Subject, SubjectType
from qinglong_edge.domain.totp import TotpKey


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


class TotpProof(NamedTuple):
    """Hold a time-based code that was shown."""

    code: str


class RecoveryProof(NamedTuple):
    """Hold the digest of a recovery code that was shown."""

    digest: str


class OpenSession(NamedTuple):
    """Ask for a session after the password of this version of the user was proven.

    A `proof` is used up in the commit that stores the session, or nothing is stored.
    """

    session_id: str
    token_digest: str
    subject: Subject
    assurance: Assurance
    span_ms: int
    identity_version: int
    proof: TotpProof | RecoveryProof | None = None


class EnrolTotp(NamedTuple):
    """Ask for a second factor in place of the one before; the secret itself tells a replay.

    `authority` is the role that a change of another user's factor rests on.
    """

    project_id: str
    subject: Subject
    secret: bytes
    code_digests: tuple[str, ...]
    principal: Principal
    authority: Authority | None = None


class ResetUser(NamedTuple):
    """Ask for a new password on the word of whoever owns the state; factors and sessions end."""

    subject: Subject
    password: PasswordHash
    reset_id: str


IdentityAnswer = Changed[Identity] | Replayed[Identity] | IdentityRefusal
FactorAnswer = Changed[TotpKey] | Replayed[TotpKey] | IdentityRefusal | PolicyRefusal
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
        """Store a session; the subject's ended ones and the oldest surplus one go.

        A session that stands already is replayed, and its proof is not looked at again.
        """
        ...

    def session(self, token_digest: str) -> Session | None:
        """Return the session of this token while it holds on both clocks and its user is active."""
        ...

    def close_session(self, token_digest: str) -> bool:
        """End a session; False where none was open."""
        ...


class Factors(Protocol):
    """Keep second factors, and give users a way back."""

    def enrol(self, event: EnrolTotp) -> FactorAnswer:
        """Store a secret and its recovery codes; the ones before end with this commit.

        Sessions that stand go on.
        """
        ...

    def reset(self, event: ResetUser) -> IdentityAnswer:
        """Store a new password, drop factor, codes and sessions, and record it; one commit.

        A password is salted anew at each call, so a replay does not compare it.
        """
        ...

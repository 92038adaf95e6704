"""Users, agents, sessions, and how strongly somebody proved who they are (contract 10.1)."""

import enum
from collections.abc import Iterable
from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.policy import Role, Subject, SubjectType
from qinglong_edge.domain.tick import Now, Tick, elapsed_ms


class Assurance(enum.StrEnum):
    """Name how strongly a principal was authenticated."""

    SINGLE_FACTOR = "single_factor"
    MULTI_FACTOR = "multi_factor"
    SERVICE = "service"
    HARDWARE = "hardware"
    LOCAL_CONSOLE = "local_console"


STRONG = frozenset({Assurance.MULTI_FACTOR, Assurance.HARDWARE, Assurance.LOCAL_CONSOLE})
SESSIONS_MAX = 16  # a subject: enough for every terminal, and a bound on what a login loop stores


class IdentityState(enum.StrEnum):
    """Name the states of a user or an agent."""

    ACTIVE = "active"
    DISABLED = "disabled"


class PasswordHash(NamedTuple):
    """Hold a salted, stretched password: `scheme` names the function and its costs."""

    scheme: str
    salt: bytes
    value: bytes


class Identity(NamedTuple):
    """Hold a user or an agent; a user has a password, an agent a token digest."""

    subject: Subject
    state: IdentityState
    version: int
    password: PasswordHash | None
    token_digest: str | None
    created_at_ms: int
    updated_at_ms: int


class Session(NamedTuple):
    """Hold a login: its token's digest, its assurance, and when it ends on both clocks."""

    session_id: str
    token_digest: str
    subject: Subject
    assurance: Assurance
    authenticated_at_ms: int
    authenticated_tick: Tick
    expires_at_ms: int


class Principal(NamedTuple):
    """Hold who is calling and how that was proven."""

    subject: Subject
    assurance: Assurance
    authentication_id: str
    authenticated_at_ms: int
    authenticated_tick: Tick


class Member(NamedTuple):
    """Hold one row of `user list` or `agent list`."""

    identity: Identity
    role: Role | None


class IdentityRefusal(enum.Enum):
    """Name why an identity did not change."""

    NOT_FOUND = "identity_not_found"
    NAME_TAKEN = "name_taken"
    LAST_OWNER = "last_owner"
    ALREADY_DISABLED = "already_disabled"
    TOKEN_TAKEN = "token_taken"  # noqa: S105 - a code, not a token
    SESSION_TAKEN = "session_taken"
    RESET_TAKEN = "reset_id_taken"
    FACTOR_REFUSED = "factor_refused"
    STRONG_REQUIRED = "strong_authentication_required"
    CLOCK_UNTRUSTED = "clock_untrusted"


def new_identity(
    subject: Subject, *, password: PasswordHash | None, token_digest: str | None, now: Now
) -> Identity:
    """Return a new active identity: a user has a password, an agent a token digest.

    Raises `UsageError` for any other combination, and for any other kind of subject.
    """
    ids.check_ident(subject.id, "name")
    has = (subject.type, password is not None, token_digest is not None)
    if has not in {(SubjectType.USER, True, False), (SubjectType.AGENT, False, True)}:
        raise ids.invalid("subject", "must be a user with a password or an agent with a token")
    if token_digest is not None:
        ids.check_digest(token_digest, "token_digest")
    at_ms = now.stamp()
    return Identity(subject, IdentityState.ACTIVE, 1, password, token_digest, at_ms, at_ms)


def disable(identity: Identity, now: Now) -> Changed[Identity] | IdentityRefusal:
    """Return the identity disabled, for good."""
    if identity.state is IdentityState.DISABLED:
        return IdentityRefusal.ALREADY_DISABLED
    return Changed(_moved(identity, now)._replace(state=IdentityState.DISABLED))


def rotate(
    identity: Identity, token_digest: str, now: Now
) -> Changed[Identity] | Replayed[Identity] | IdentityRefusal:
    """Return the agent with another token; the token itself tells a replay."""
    if identity.token_digest is None:
        return IdentityRefusal.NOT_FOUND
    if identity.state is IdentityState.DISABLED:
        return IdentityRefusal.ALREADY_DISABLED
    if identity.token_digest == token_digest:
        return Replayed(identity)
    return Changed(_moved(identity, now)._replace(token_digest=token_digest))


def reset(
    identity: Identity, password: PasswordHash, now: Now
) -> Changed[Identity] | IdentityRefusal:
    """Return the user with another password; the new version ends what the old one had proven."""
    if identity.password is None:
        return IdentityRefusal.NOT_FOUND
    if identity.state is IdentityState.DISABLED:
        return IdentityRefusal.ALREADY_DISABLED
    return Changed(_moved(identity, now)._replace(password=password))


def _moved(identity: Identity, now: Now) -> Identity:
    stamp = now.stamp(identity.updated_at_ms)
    return identity._replace(version=identity.version + 1, updated_at_ms=stamp)


def new_session(
    asked: Session, taken: Iterable[Session], now: Now
) -> Changed[Session] | Replayed[Session] | IdentityRefusal:
    """Return the session to store, given those that hold its id or its token already.

    The same session asked for again replays while it is active; one that ended begins anew.
    """
    for other in taken:
        same = other._replace(
            authenticated_at_ms=asked.authenticated_at_ms,
            authenticated_tick=asked.authenticated_tick,
            expires_at_ms=asked.expires_at_ms,
        )
        if same != asked:
            return IdentityRefusal.SESSION_TAKEN
        if session_active(other, now):
            return Replayed(other)
    return Changed(asked)


def sessions_to_drop(sessions: Iterable[Session], now: Now) -> list[Session]:
    """Return which sessions of one subject go before a new one: ended ones, then the oldest."""
    known = sorted(sessions, key=lambda each: (each.authenticated_tick, each.session_id))
    active = [each for each in known if session_active(each, now)]
    surplus = active[: max(0, len(active) - SESSIONS_MAX + 1)]
    return [each for each in known if each in surplus or not session_active(each, now)]


def session_active(session: Session, now: Now) -> bool:
    """Tell whether a session holds on both clocks: same boot, not older than its span, not past."""
    age_ms = elapsed_ms(now.tick, session.authenticated_tick)
    span_ms = session.expires_at_ms - session.authenticated_at_ms
    return (
        age_ms is not None
        and 0 <= age_ms < span_ms
        and session.authenticated_at_ms <= now.at_ms < session.expires_at_ms
    )


def is_strong(principal: Principal, now: Now) -> bool:
    """Tell whether the principal proved itself strongly within the last five minutes.

    Both clocks must agree, and a proof from the future is none.
    """
    most = limits.STRONG_AUTHENTICATION_AGE_MS_MAX
    age_ms = elapsed_ms(now.tick, principal.authenticated_tick)
    return (
        principal.assurance in STRONG
        and age_ms is not None
        and 0 <= age_ms <= most
        and 0 <= now.at_ms - principal.authenticated_at_ms <= most
    )

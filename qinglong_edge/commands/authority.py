"""Who is calling, and may they: the only door between a token and a command (architecture 3.6).

Every answer is given before a command looks at any object, so none of them tells what exists. What
was allowed comes with its fence; the store proves the fence again in the commit that acts on it.
"""

import base64
import re
from typing import NamedTuple

from qinglong_edge.commands.engine import Caller, Engine
from qinglong_edge.domain import ids
from qinglong_edge.domain.canonical import sha256_hex
from qinglong_edge.domain.errors import DamagedError, RefusedError, UsageError
from qinglong_edge.domain.identity import Assurance, Principal
from qinglong_edge.domain.policy import (
    Authority,
    Effect,
    PolicyDecision,
    PolicyFence,
    decide_effect,
)

TOKEN_BYTES = 32
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


class Authorized(NamedTuple):
    """Hold who was allowed, and the fence under which that is true."""

    principal: Principal
    fence: PolicyFence


def is_token(text: str) -> bool:
    """Tell whether the text is the one spelling of its 32 bytes."""
    if not _TOKEN.fullmatch(text):
        return False
    drawn = base64.urlsafe_b64decode(text + "=")
    return base64.urlsafe_b64encode(drawn).decode("ascii").rstrip("=") == text


def check_token(value: object, field: str) -> str:
    """Return a token: the 43 characters of 32 bytes in base64url without padding."""
    if not isinstance(value, str) or not is_token(value):
        raise ids.invalid(field, f"must be {TOKEN_BYTES} bytes in base64url without padding")
    return value


def token_digest(token: str) -> str:
    """Return what is stored of a token."""
    return sha256_hex(token.encode("ascii"))


def authenticate(engine: Engine, caller: Caller) -> Principal | None:
    """Return who is calling, or None where nothing was shown.

    Raises `UsageError` for two tokens at once, `RefusedError` (`login_refused`) for one that is
    malformed, unknown, ended or of somebody disabled: all of them alike.
    """
    if caller.session_token is not None and caller.agent_token is not None:
        raise UsageError("conflicting_credentials", "show a session or an agent token, not both")
    if caller.session_token is not None:
        return _from_session(engine, caller.session_token)
    if caller.agent_token is not None:
        return _from_agent(engine, caller.agent_token)
    return None


def require(engine: Engine, caller: Caller, permission: str) -> Authorized:
    """Return the caller and the fence, or refuse: only the effect `allow` is enough.

    Raises `RefusedError`: `login_required`, `login_refused`, or `not_allowed` with its reason.
    """
    principal, decision = _decided(engine, caller, permission)
    if decision.effect is not Effect.ALLOW or decision.fence is None:
        raise RefusedError(
            "not_allowed", f"this needs the permission {permission}", {"reason": decision.reason}
        )
    return Authorized(principal, decision.fence)


def require_proposer(engine: Engine, caller: Caller, permission: str) -> Authorized:
    """Return a caller who must ask before acting, and the fence.

    Whoever may act at once (users) and whoever may not act at all are refused alike, with
    `proposal_denied` and its reason: nobody approves what they asked for themselves.
    """
    principal, decision = _decided(engine, caller, permission)
    if decision.effect is not Effect.REQUIRE_APPROVAL or decision.fence is None:
        raise RefusedError(
            "proposal_denied",
            f"only an agent whose role covers {permission} proposes; users decide",
            {"reason": decision.reason},
        )
    return Authorized(principal, decision.fence)


def require_or_owner(engine: Engine, caller: Caller, permission: str) -> Principal | None:
    """Return the caller, or None for the state's owner uid, who needs no session here.

    A session that holds decides by its permissions whoever shows it; one that has ended is as good
    as none, so that a forgotten session file does not stop the owner's timer.
    """
    if caller.is_state_owner and caller.agent_token is None:
        if caller.session_token is None or not _session_holds(engine, caller.session_token):
            return None
    return require(engine, caller, permission).principal


def authority_of(engine: Engine, authorized: Authorized) -> Authority:
    """Return the role that an allowed change of policy rests on.

    Raises `RefusedError` (`policy_fence_changed`) where it changed since it was asked.
    """
    subject = authorized.principal.subject
    project, binding = engine.policy.resolve(engine.facts.project_id, subject)
    if project is not None and binding is not None and binding.role is not None:
        if PolicyFence(project.version, binding.version) == authorized.fence:
            return Authority(binding.role, authorized.fence)
    raise RefusedError("policy_fence_changed", "your role changed just now; try again")


def identify(engine: Engine, caller: Caller) -> Principal:
    """Return who is calling, whatever they may do; raises `RefusedError` (`login_required`)."""
    principal = authenticate(engine, caller)
    if principal is None:
        raise RefusedError(
            "login_required",
            "show who you are: log in first, or name an agent's token file (--token-file)",
        )
    return principal


def _decided(engine: Engine, caller: Caller, permission: str) -> tuple[Principal, PolicyDecision]:
    ids.check_permission(permission, "permission")
    principal = identify(engine, caller)
    project, binding = engine.policy.resolve(engine.facts.project_id, principal.subject)
    if project is not None and project.project_id != engine.facts.project_id:
        raise DamagedError("policy_damaged", "the policy answered for another project")
    return principal, decide_effect(project, binding, principal.subject, permission)


def _from_session(engine: Engine, token: str) -> Principal:
    session = engine.identities.session(token_digest(token)) if is_token(token) else None
    if session is None:
        raise _refused("this session has ended; log in again")
    return Principal(
        session.subject,
        session.assurance,
        session.session_id,
        session.authenticated_at_ms,
        session.authenticated_tick,
    )


def _from_agent(engine: Engine, token: str) -> Principal:
    agent = engine.identities.by_token(token_digest(token)) if is_token(token) else None
    if agent is None:
        raise _refused("this token is not valid; have a person rotate it and write the new one")
    now = engine.overview.instant().now
    name = f"{agent.subject}:{agent.version}"
    return Principal(agent.subject, Assurance.SERVICE, name, now.at_ms, now.tick)


def _session_holds(engine: Engine, token: str) -> bool:
    return is_token(token) and engine.identities.session(token_digest(token)) is not None


def _refused(message: str) -> RefusedError:
    return RefusedError("login_refused", message)

"""Turn a machine's refusal into the error a caller sees: code, one sentence, next step."""

from qinglong_edge.domain.approval import ApprovalRefusal
from qinglong_edge.domain.dispatch import DispatchRefusal
from qinglong_edge.domain.errors import Details, RefusedError
from qinglong_edge.domain.identity import IdentityRefusal
from qinglong_edge.domain.policy import PolicyRefusal
from qinglong_edge.domain.recovery import RecoveryRefusal
from qinglong_edge.domain.tick import ClockRefusal

Refusal = (
    ApprovalRefusal
    | ClockRefusal
    | DispatchRefusal
    | IdentityRefusal
    | PolicyRefusal
    | RecoveryRefusal
)

_SENTENCES = {
    ApprovalRefusal.NOT_FOUND: "there is no such action",
    ApprovalRefusal.EXPIRED: "the request has expired; propose it again",
    ApprovalRefusal.VERSION_CONFLICT: "the request has been decided already",
    ApprovalRefusal.STATE_CONFLICT: "the request is not in a state that allows this",
    ApprovalRefusal.MUTATION_DRIFT: "this id was used before with another meaning",
    ApprovalRefusal.FENCE_CHANGED: "roles changed meanwhile; repeat the command",
    ApprovalRefusal.SELF_DECISION: "nobody decides their own request",
    ApprovalRefusal.HUMAN_REQUIRED: "only a user decides",
    ApprovalRefusal.DIGEST_MISMATCH: "the request holds another digest than the one given",
    ApprovalRefusal.TOO_MANY_PENDING: "too many requests are open; decide or cancel some first",
    ApprovalRefusal.REPEATS_REQUIRED: (
        "an action with this digest has an unknown outcome; name its dispatch with --repeats"
    ),
    ApprovalRefusal.REPEATS_MISMATCH: (
        "--repeats must name a dispatch of this digest whose outcome is unknown, at high risk"
    ),
    ApprovalRefusal.STRONG_REQUIRED: (
        "deciding this needs a second factor proven within the last five minutes"
    ),
    ApprovalRefusal.CLOCK_UNTRUSTED: "the clock cannot be believed; set it and try again",
    DispatchRefusal.NOT_FOUND: "there is no such dispatch",
    DispatchRefusal.ALREADY_TERMINAL: "the action has ended already",
    DispatchRefusal.ALREADY_STARTED: "the action has passed its start barrier",
    RecoveryRefusal.NOT_FOUND: "there is no such dispatch past its start barrier",
    RecoveryRefusal.ALREADY_TERMINAL: "the action has ended already; the details say how",
    RecoveryRefusal.EXECUTION_ACTIVE: "the action is still running, as far as anybody knows",
    RecoveryRefusal.FENCE_REJECTED: "it moved meanwhile; look again and name the version you see",
    RecoveryRefusal.FENCE_CHANGED: "roles changed meanwhile; repeat the command",
    RecoveryRefusal.MUTATION_DRIFT: "this id was used before with another meaning",
    RecoveryRefusal.NOT_PROBED: (
        "nobody has looked for evidence yet; run a cycle first, or say --unprobed"
    ),
    RecoveryRefusal.HUMAN_REQUIRED: "only a user settles an unknown outcome",
    RecoveryRefusal.STRONG_REQUIRED: (
        "settling this needs a second factor proven within the last five minutes"
    ),
    RecoveryRefusal.CLOCK_UNTRUSTED: "the clock cannot be believed; set it and try again",
    IdentityRefusal.NOT_FOUND: "there is no such user or agent",
    IdentityRefusal.NAME_TAKEN: "the name is taken",
    IdentityRefusal.LAST_OWNER: "the last owner stays",
    IdentityRefusal.TOKEN_TAKEN: "this token is in use; draw another one",
    IdentityRefusal.SESSION_TAKEN: "this session id is in use; draw another one",
    IdentityRefusal.ALREADY_DISABLED: "it is disabled already",
    IdentityRefusal.RESET_TAKEN: "this id was used to reset somebody else",
    IdentityRefusal.FACTOR_REFUSED: "the code is wrong, used or too old",
    IdentityRefusal.STRONG_REQUIRED: (
        "replacing a key, or giving one to somebody else, needs a second factor proven within the"
        " last five minutes"
    ),
    IdentityRefusal.CLOCK_UNTRUSTED: (
        "the clock cannot be believed, and a time-based code needs it; use a recovery code"
    ),
    ClockRefusal.CERTAINLY_WRONG: (
        "the clock shows a time before this program was built; set it first"
    ),
    ClockRefusal.FENCE_CHANGED: "roles changed meanwhile; repeat the command",
    PolicyRefusal.PROJECT_NOT_FOUND: "there is no such project",
    PolicyRefusal.FENCE_CHANGED: "roles changed meanwhile; repeat the command",
    PolicyRefusal.ABOVE_OWN_ROLE: "nobody grants, or takes from, above their own role",
    PolicyRefusal.AGENT_OWNER: "agents are never owner",
    PolicyRefusal.LAST_OWNER: "the last owner stays",
    PolicyRefusal.VERSION_CONFLICT: "the role changed meanwhile; repeat the command",
    PolicyRefusal.MUTATION_DRIFT: "this id was used before with another meaning",
}


def refused(refusal: Refusal, details: Details | None = None) -> RefusedError:
    """Return the error of a refusal; its code is the refusal's own word."""
    sentence = _SENTENCES.get(refusal, "the state does not allow this")
    return RefusedError(refusal.value, sentence, details)

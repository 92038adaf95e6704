"""Second factors and the way back: `user totp` and `user reset` (architecture 3.6).

The client draws one seed; secret and recovery codes follow from it, so a repeated call is the same
enrolment. They are shown in this answer and never again.
"""

import base64

from qinglong_edge.commands.authority import authority_of, check_token, identify, require
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.commands.refusals import refused
from qinglong_edge.domain import ids, totp
from qinglong_edge.domain.canonical import Fields, JsonObject
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.errors import RefusedError
from qinglong_edge.domain.policy import Subject
from qinglong_edge.executor import passwords
from qinglong_edge.ports.identities import EnrolTotp, ResetUser


def enrol_totp(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Run `user totp`: {name, seed}.

    One's own first key needs a session, nothing else; a key of somebody else `policy.manage`; both
    another's and a replacement a strong proof. Raises `RefusedError`.
    """
    fields = Fields(args, "user")
    subject = Subject.user(ids.check_ident(fields.take("name"), "name"))
    seed = check_token(fields.take("seed"), "seed")
    fields.done()
    principal, authority = identify(engine, caller), None
    if principal.subject != subject:
        authority = authority_of(engine, require(engine, caller, "policy.manage"))
    made = totp.enrolment(base64.urlsafe_b64decode(seed + "="))
    digests = tuple(totp.recovery_digest(code, "recovery_code") for code in made.codes)
    project = engine.facts.project_id
    answer = engine.factors.enrol(
        EnrolTotp(project, subject, made.secret, digests, principal, authority)
    )
    if not isinstance(answer, Changed | Replayed):
        raise refused(answer)
    uri = totp.otpauth_uri(made.secret, project, subject.id)
    return Answer({"otpauth_uri": uri, "recovery_codes": list(made.codes)})


def reset_user(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Run `user reset`: {name, password, reset_id}; for the state's own uid, without a session.

    Ends the user's second factor, recovery codes and sessions, and records that it happened.
    """
    fields = Fields(args, "user")
    subject = Subject.user(ids.check_ident(fields.take("name"), "name"))
    password = passwords.check_password(fields.take("password"))
    reset_id = ids.check_ident(fields.take("reset_id"), "reset_id")
    fields.done()
    if not caller.is_state_owner:
        raise RefusedError("not_allowed", "only whoever owns the state resets a user")
    hashed = passwords.hash_password(password, engine.entropy, clocks=engine.clocks)
    answer = engine.factors.reset(ResetUser(subject, hashed, reset_id))
    if not isinstance(answer, Changed | Replayed):
        raise refused(answer)
    body: JsonObject = {
        "user": subject.id,
        "state": answer.after.state.value,
        "version": answer.after.version,
        "replayed": isinstance(answer, Replayed),
    }
    return Answer(body)

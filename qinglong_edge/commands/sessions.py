"""Logging in and out: a session is a token that the client drew and this store knows by digest.

A wrong name, a wrong password, a wrong or used code and a disabled user are one answer; the first
two and the last are one price. A code is looked at only after the password was right.
"""

from qinglong_edge.commands.authority import check_token, is_token, token_digest
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.commands.refusals import refused
from qinglong_edge.domain import ids, limits, totp
from qinglong_edge.domain.canonical import Fields, JsonObject
from qinglong_edge.domain.errors import RefusedError, UsageError
from qinglong_edge.domain.identity import Assurance, Identity, IdentityRefusal, IdentityState
from qinglong_edge.domain.policy import Subject
from qinglong_edge.domain.tick import Trust
from qinglong_edge.executor import passwords
from qinglong_edge.ports.identities import OpenSession, RecoveryProof, TotpProof


def login(engine: Engine, _caller: Caller, args: JsonObject) -> Answer:
    """Run `login`: {name, password, totp, recovery_code, session_token, session_id}.

    The client drew token and id, so a repeated line opens one session; the answer does not repeat
    the token. A password alone is one factor, also for who has two. Raises `RefusedError`:
    `login_refused`, and `clock_untrusted` for a time-based code while no clock is believed.
    """
    fields = Fields(args, "login")
    subject = Subject.user(ids.check_ident(fields.take("name"), "name"))
    password, proof = fields.take("password"), _proof(fields)
    token = check_token(fields.take("session_token"), "session_token")
    session_id = ids.check_ident(fields.take("session_id"), "session_id")
    fields.done()
    if not isinstance(password, str):
        raise ids.invalid("password", "must be text")
    if isinstance(proof, TotpProof) and engine.overview.instant().now.trust is Trust.UNTRUSTED:
        raise _clock_untrusted()
    user = _proven(engine, subject, password)
    answer = engine.identities.open_session(
        OpenSession(
            session_id,
            token_digest(token),
            subject,
            Assurance.SINGLE_FACTOR if proof is None else Assurance.MULTI_FACTOR,
            limits.SESSION_MS,
            user.version,
            proof,
        )
    )
    if answer in {IdentityRefusal.NOT_FOUND, IdentityRefusal.FACTOR_REFUSED}:
        raise _login_refused()
    if answer is IdentityRefusal.CLOCK_UNTRUSTED:
        raise _clock_untrusted()
    if isinstance(answer, IdentityRefusal):
        raise refused(answer)
    session = answer.after
    body: JsonObject = {
        "subject": str(session.subject),
        "assurance": session.assurance.value,
        "authenticated_at_ms": session.authenticated_at_ms,
        "expires_at_ms": session.expires_at_ms,
        "session_id": session.session_id,
    }
    return Answer(body)


def logout(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Run `logout`: {}; ends the session that is shown, and says whether there was one to end."""
    Fields(args, "logout").done()
    if caller.session_token is None:
        raise RefusedError("login_required", "there is no session to end")
    if not is_token(caller.session_token):
        return Answer({"ended": False})
    return Answer({"ended": engine.identities.close_session(token_digest(caller.session_token))})


def _proof(fields: Fields) -> TotpProof | RecoveryProof | None:
    code, recovery = fields.take("totp"), fields.take("recovery_code")
    if code is not None and recovery is not None:
        raise UsageError("usage", "one code is enough: a time-based one or a recovery code")
    if code is not None:
        return TotpProof(totp.check_code(code, "totp"))
    if recovery is not None:
        return RecoveryProof(totp.recovery_digest(recovery, "recovery_code"))
    return None


def _proven(engine: Engine, subject: Subject, password: str) -> Identity:
    """Return the user whose password this is; whoever it is not costs as much."""
    owner = engine.identities.find(Subject.user(engine.facts.owner))
    stranger = passwords.decoy(None if owner is None else owner.password)
    user = engine.identities.find(subject)
    known = stranger if user is None or user.password is None else user.password
    right = engine.passwords.verify(password, known)
    if not right or user is None or user.state is not IdentityState.ACTIVE:
        raise _login_refused()
    return user


def _clock_untrusted() -> RefusedError:
    hint = "log in with --recovery-code, or with the password alone"
    return refused(IdentityRefusal.CLOCK_UNTRUSTED, {"hint": hint})


def _login_refused() -> RefusedError:
    return RefusedError(
        "login_refused",
        "name, password or code is wrong, or the user is disabled; try again, or ask whoever"
        " manages users here",
    )

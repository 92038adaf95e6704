"""Logging in and out: a session is a token that the client drew and this store knows by digest.

A wrong name, a wrong password and a disabled user are one answer and one price.
"""

from qinglong_edge.commands.authority import check_token, is_token, token_digest
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.commands.refusals import refused
from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.canonical import Fields, JsonObject
from qinglong_edge.domain.errors import RefusedError
from qinglong_edge.domain.identity import Assurance, Identity, IdentityRefusal, IdentityState
from qinglong_edge.domain.policy import Subject
from qinglong_edge.executor import passwords
from qinglong_edge.ports.identities import OpenSession


def login(engine: Engine, _caller: Caller, args: JsonObject) -> Answer:
    """Run `login`: {name, password, session_token, session_id}.

    The client drew token and id, so a repeated line opens one session; the answer does not repeat
    the token. Raises `RefusedError` (`login_refused`).
    """
    fields = Fields(args, "login")
    subject = Subject.user(ids.check_ident(fields.take("name"), "name"))
    password = fields.take("password")
    token = check_token(fields.take("session_token"), "session_token")
    session_id = ids.check_ident(fields.take("session_id"), "session_id")
    fields.done()
    if not isinstance(password, str):
        raise ids.invalid("password", "must be text")
    user = _proven(engine, subject, password)
    answer = engine.identities.open_session(
        OpenSession(
            session_id,
            token_digest(token),
            subject,
            Assurance.SINGLE_FACTOR,
            limits.SESSION_MS,
            user.version,
        )
    )
    if answer is IdentityRefusal.NOT_FOUND:
        raise _login_refused()
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


def _proven(engine: Engine, subject: Subject, password: str) -> Identity:
    """Return the user whose password this is; whoever it is not costs as much."""
    owner = engine.identities.find(Subject.user(engine.facts.owner))
    stranger = passwords.decoy(None if owner is None else owner.password)
    user = engine.identities.find(subject)
    known = stranger if user is None or user.password is None else user.password
    right = passwords.verify(password, known)
    if not right or user is None or user.state is not IdentityState.ACTIVE:
        raise _login_refused()
    return user


def _login_refused() -> RefusedError:
    return RefusedError(
        "login_refused",
        "name or password is wrong, or the user is disabled; try again, or ask whoever manages"
        " users here",
    )

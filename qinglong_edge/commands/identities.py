"""Users, agents and their roles: `user`, `agent` and `role` (architecture 3.6).

All of it needs `policy.manage`, which no agent ever gets. What a caller may do to whom (nobody
grants above their own role, the last owner stays) the domain decides inside the commit.
"""

from qinglong_edge.commands import views
from qinglong_edge.commands.authority import authority_of, check_token, require, token_digest
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.commands.refusals import refused
from qinglong_edge.domain import ids
from qinglong_edge.domain.canonical import Fields, JsonObject
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.identity import Identity, IdentityRefusal, IdentityState, Member
from qinglong_edge.domain.policy import (
    Authority,
    BindRole,
    PolicyRefusal,
    Role,
    Subject,
    SubjectType,
    parse_subject,
)
from qinglong_edge.executor import passwords
from qinglong_edge.ports.identities import AddIdentity, DisableIdentity

PERMISSION = "policy.manage"


def add_user(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Run `user add`: {name, role, password, mutation_id}."""
    fields = Fields(args, "user")
    subject, role = _subject(SubjectType.USER, fields), _role(fields)
    password = passwords.check_password(fields.take("password"))
    mutation_id = _mutation_id(fields)
    fields.done()
    acting, authority = _acting(engine, caller)
    hashed = engine.passwords.hash(password)
    answer = engine.identities.add(
        AddIdentity(
            engine.facts.project_id, subject, role, hashed, None, mutation_id, acting, authority
        )
    )
    identity, replayed = _stored(answer)
    if replayed and identity.password is not None:
        if not engine.passwords.verify(password, identity.password):
            raise refused(PolicyRefusal.MUTATION_DRIFT)
    body: JsonObject = {
        "user": subject.id,
        "role": role.value,
        "state": identity.state.value,
        "replayed": replayed,
    }
    return Answer(body)


def add_agent(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Run `agent add`: {name, role, token, mutation_id}; the client drew the token."""
    fields = Fields(args, "agent")
    subject, role = _subject(SubjectType.AGENT, fields), _role(fields)
    token = check_token(fields.take("token"), "agent.token")
    mutation_id = _mutation_id(fields)
    fields.done()
    acting, authority = _acting(engine, caller)
    digest = token_digest(token)
    answer = engine.identities.add(
        AddIdentity(
            engine.facts.project_id, subject, role, None, digest, mutation_id, acting, authority
        )
    )
    _stored(answer)
    return Answer({"agent": subject.id, "token": token})


def list_users(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Run `user list`: {limit, cursor}."""
    return _list(engine, caller, args, kind=SubjectType.USER)


def list_agents(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Run `agent list`: {limit, cursor}."""
    return _list(engine, caller, args, kind=SubjectType.AGENT)


def disable_user(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Run `user disable`: {name, mutation_id}."""
    return _disable(engine, caller, args, kind=SubjectType.USER)


def disable_agent(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Run `agent disable`: {name, mutation_id}."""
    return _disable(engine, caller, args, kind=SubjectType.AGENT)


def rotate_agent(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Run `agent rotate`: {name, token}; the token itself makes a repeat the same mutation."""
    fields = Fields(args, "agent")
    subject = _subject(SubjectType.AGENT, fields)
    token = check_token(fields.take("token"), "agent.token")
    fields.done()
    require(engine, caller, PERMISSION)
    _stored(engine.identities.rotate(subject, token_digest(token)))
    return Answer({"agent": subject.id, "token": token})


def bind_role(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Run `role bind`: {subject, role, mutation_id}."""
    fields = Fields(args, "role")
    subject, role, mutation_id = _named(fields), _role(fields), _mutation_id(fields)
    fields.done()
    return _bind(engine, caller, subject, role=role, mutation_id=mutation_id)


def revoke_role(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Run `role revoke`: {subject, mutation_id}."""
    fields = Fields(args, "role")
    subject, mutation_id = _named(fields), _mutation_id(fields)
    fields.done()
    return _bind(engine, caller, subject, role=None, mutation_id=mutation_id)


def _bind(
    engine: Engine, caller: Caller, subject: Subject, *, role: Role | None, mutation_id: str
) -> Answer:
    acting, authority = _acting(engine, caller)
    identity = engine.identities.find(subject)
    if identity is None:
        raise refused(IdentityRefusal.NOT_FOUND)
    if identity.state is IdentityState.DISABLED and role is not None:
        raise refused(IdentityRefusal.ALREADY_DISABLED)
    project = engine.facts.project_id
    answer = engine.policy.bind(
        BindRole(project, subject, None, role, mutation_id, acting, authority)
    )
    if isinstance(answer, PolicyRefusal):
        raise refused(answer)
    binding = answer.after
    body: JsonObject = {
        "subject": str(subject),
        "role": None if binding.role is None else binding.role.value,
        "state": binding.state.value,
        "version": binding.version,
        "replayed": isinstance(answer, Replayed),
    }
    return Answer(body)


def _list(engine: Engine, caller: Caller, args: JsonObject, *, kind: SubjectType) -> Answer:
    fields = Fields(args, "list")
    after, limit = views.take_page(fields)
    fields.done()
    require(engine, caller, PERMISSION)
    page = engine.identities.page(kind, after, limit)
    return Answer(views.listed([_shown(member) for member in page.items], page))


def _disable(engine: Engine, caller: Caller, args: JsonObject, *, kind: SubjectType) -> Answer:
    fields = Fields(args, kind.value)
    subject, mutation_id = _subject(kind, fields), _mutation_id(fields)
    fields.done()
    acting, authority = _acting(engine, caller)
    project = engine.facts.project_id
    answer = engine.identities.disable(
        DisableIdentity(project, subject, mutation_id, acting, authority)
    )
    identity, replayed = _stored(answer)
    return Answer({kind.value: subject.id, "state": identity.state.value, "replayed": replayed})


def _acting(engine: Engine, caller: Caller) -> tuple[Subject, Authority]:
    authorized = require(engine, caller, PERMISSION)
    return authorized.principal.subject, authority_of(engine, authorized)


def _stored(
    answer: Changed[Identity] | Replayed[Identity] | IdentityRefusal | PolicyRefusal,
) -> tuple[Identity, bool]:
    if isinstance(answer, IdentityRefusal | PolicyRefusal):
        raise refused(answer)
    return answer.after, isinstance(answer, Replayed)


def _shown(member: Member) -> JsonObject:
    identity, role = member
    return {
        "name": identity.subject.id,
        "role": None if role is None else role.value,
        "state": identity.state.value,
        "created_at_ms": identity.created_at_ms,
    }


def _subject(kind: SubjectType, fields: Fields) -> Subject:
    return Subject(kind, ids.check_ident(fields.take("name"), "name"))


def _named(fields: Fields) -> Subject:
    text = fields.take("subject")
    if not isinstance(text, str):
        raise ids.invalid("subject", "must be user:NAME or agent:NAME")
    subject = parse_subject(text)
    ids.check_ident(subject.id, "subject")
    return subject


def _role(fields: Fields) -> Role:
    text = fields.take("role")
    if not isinstance(text, str) or text not in set(Role):
        raise ids.invalid("role", "must be owner, admin, operator or viewer")
    return Role(text)


def _mutation_id(fields: Fields) -> str:
    return ids.check_mutation_id(fields.take("mutation_id"), "mutation_id")

"""Users, agents and sessions on SQLite: secrets only as salted hashes and digests."""

import sqlite3

from qinglong_edge.domain import identity as rules
from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.errors import DamagedError
from qinglong_edge.domain.identity import (
    Assurance,
    Identity,
    IdentityRefusal,
    IdentityState,
    Member,
    PasswordHash,
    Session,
)
from qinglong_edge.domain.paging import Cursor, Page
from qinglong_edge.domain.policy import (
    BindRole,
    PolicyRefusal,
    Role,
    Subject,
    SubjectType,
    check_bind,
)
from qinglong_edge.ports.identities import (
    AddIdentity,
    DisableIdentity,
    IdentityAnswer,
    OpenSession,
    SessionAnswer,
)
from qinglong_edge.ports.probe import Step
from qinglong_edge.storage import statements
from qinglong_edge.storage.sqlite import policy, proofs, rows
from qinglong_edge.storage.sqlite.transaction import Database, Tx

SQL = statements.load("qinglong_edge.storage.sqlite", "sql/identities.sql")


class SqliteIdentities:
    """Keep users, agents and sessions in the one database."""

    def __init__(self, database: Database) -> None:
        """Work on an open database."""
        self._database = database

    def add(self, event: AddIdentity) -> IdentityAnswer | PolicyRefusal:
        """Store a new identity and its binding in one commit."""
        bind = BindRole(
            event.project_id, event.subject, None, event.role, event.mutation_id,
            event.changed_by, event.authority,
        )  # fmt: skip
        check_bind(bind)
        return self._database.write(Step.IDENTITY, lambda tx: _add(tx, event, bind))

    def find(self, subject: Subject) -> Identity | None:
        """Return one identity."""
        return self._database.read(lambda tx: find(tx, subject))

    def page(self, kind: SubjectType, after: Cursor | None, limit: int) -> Page[Member]:
        """Return one page of users or agents, oldest first; a damaged row is skipped, counted."""
        after_key = -1 if after is None else after.key
        return self._database.read(
            lambda tx: _page(
                tx.rows(
                    SQL["list_members"],
                    after_key=after_key,
                    pattern=f"{kind.value}:*",
                    limit=limit + 1,
                ),
                limit,
            )
        )

    def disable(self, event: DisableIdentity) -> IdentityAnswer | PolicyRefusal:
        """Disable an identity, revoke its role and void its sessions in one commit."""
        bind = BindRole(
            event.project_id, event.subject, None, None, event.mutation_id,
            event.changed_by, event.authority,
        )  # fmt: skip
        check_bind(bind)
        return self._database.write(Step.IDENTITY, lambda tx: _disable(tx, bind))

    def rotate(self, subject: Subject, token_digest: str) -> IdentityAnswer:
        """Replace an agent's token digest; the old token ends with this commit."""
        ids.check_digest(token_digest, "token_digest")
        return self._database.write(Step.IDENTITY, lambda tx: _rotate(tx, subject, token_digest))

    def by_token(self, token_digest: str) -> Identity | None:
        """Return the active agent that holds this token."""
        found = self._database.read(lambda tx: _of_token(tx, token_digest))
        return found if found is not None and found.state is IdentityState.ACTIVE else None

    def open_session(self, event: OpenSession) -> SessionAnswer:
        """Store a session; the subject's ended ones and the oldest surplus one go."""
        ids.check_ident(event.session_id, "session_id")
        ids.check_digest(event.token_digest, "token_digest")
        ids.check_int(event.span_ms, "span_ms", least=1, most=limits.SESSION_MS)
        return self._database.write(Step.SESSION, lambda tx: _open_session(tx, event))

    def session(self, token_digest: str) -> Session | None:
        """Return the session of this token while it holds on both clocks and its user is active."""

        def look(tx: Tx) -> Session | None:
            row = tx.one(SQL["session_of_token"], token_digest=rows.blob(token_digest))
            found = None if row is None else _session(row)
            return found if found is not None and rules.session_active(found, tx.now) else None

        return self._database.read(look)

    def close_session(self, token_digest: str) -> bool:
        """End a session; False where none was open."""
        digest = rows.blob(token_digest)
        return self._database.write(
            Step.SESSION, lambda tx: tx.run(SQL["close_session"], token_digest=digest) == 1
        )


def find(tx: Tx, subject: Subject) -> Identity | None:
    """Return one identity as this transaction sees it; raises `DamagedError`."""
    row = tx.one(SQL["identity_of_subject"], subject=str(subject))
    return None if row is None else _identity(row)


def _of_token(tx: Tx, token_digest: str) -> Identity | None:
    row = tx.one(SQL["identity_of_token"], token_digest=rows.blob(token_digest))
    return None if row is None else _identity(row)


def _add(tx: Tx, event: AddIdentity, bind: BindRole) -> IdentityAnswer | PolicyRefusal:
    after = rules.new_identity(
        event.subject, password=event.password, token_digest=event.token_digest, now=tx.now
    )
    before = find(tx, event.subject)
    known = policy.replay(tx, bind)
    if isinstance(known, PolicyRefusal):
        return known
    if known is not None:
        if before is None or before.token_digest != event.token_digest:
            return PolicyRefusal.MUTATION_DRIFT
        return Replayed(before)
    if before is not None:
        return IdentityRefusal.NAME_TAKEN
    if event.token_digest is not None and _of_token(tx, event.token_digest) is not None:
        return IdentityRefusal.TOKEN_TAKEN
    decided = policy.decide(tx, bind)
    if isinstance(decided, PolicyRefusal):
        return decided
    tx.exactly_one(SQL["add_identity"], created_at_ms=after.created_at_ms, **_columns(after))
    policy.store(tx, decided)
    return Changed(after)


def _disable(tx: Tx, bind: BindRole) -> IdentityAnswer | PolicyRefusal:
    before = find(tx, bind.subject)
    if before is None:
        return IdentityRefusal.NOT_FOUND
    known = policy.replay(tx, bind)
    if isinstance(known, PolicyRefusal):
        return known
    if known is not None:
        if before.state is not IdentityState.DISABLED:
            return PolicyRefusal.MUTATION_DRIFT  # the id of a mere revocation
        return Replayed(before)
    after = rules.disable(before, tx.now)
    if isinstance(after, IdentityRefusal):
        return after
    decided = policy.decide(tx, bind)
    if isinstance(decided, PolicyRefusal):
        last = decided is PolicyRefusal.LAST_OWNER
        return IdentityRefusal.LAST_OWNER if last else decided
    policy.store(tx, decided)
    move(tx, before, after.after)
    tx.run(SQL["drop_sessions_of_subject"], subject=str(bind.subject))
    return after


def _rotate(tx: Tx, subject: Subject, token_digest: str) -> IdentityAnswer:
    before = find(tx, subject)
    if before is None:
        return IdentityRefusal.NOT_FOUND
    answer = rules.rotate(before, token_digest, tx.now)
    if not isinstance(answer, Changed):
        return answer
    if _of_token(tx, token_digest) is not None:
        return IdentityRefusal.TOKEN_TAKEN
    move(tx, before, answer.after)
    return answer


def _open_session(tx: Tx, event: OpenSession) -> SessionAnswer:
    user = find(tx, event.subject)
    if user is None or user.password is None or user.state is not IdentityState.ACTIVE:
        return IdentityRefusal.NOT_FOUND
    if user.version != event.identity_version:
        return IdentityRefusal.NOT_FOUND  # another password, or none, since this one was proven
    digest, at_ms = rows.blob(event.token_digest), tx.now.stamp()
    asked = Session(
        event.session_id, event.token_digest, event.subject, event.assurance, at_ms,
        tx.now.tick, at_ms + event.span_ms,
    )  # fmt: skip
    taken = tx.rows(SQL["sessions_taken"], session_id=event.session_id, token_digest=digest)
    answer = rules.new_session(asked, map(_session, taken), tx.now)
    if not isinstance(answer, Changed):
        return answer
    if event.proof is not None:
        refusal = proofs.use(tx, event.subject, event.proof)
        if refusal is not None:
            return refusal
    known = tx.rows(SQL["sessions_of_subject"], subject=str(event.subject))
    for old in rules.sessions_to_drop(map(_session, known), tx.now):
        tx.exactly_one(SQL["drop_session"], session_id=old.session_id)
    tx.exactly_one(
        SQL["add_session"],
        session_id=asked.session_id,
        token_digest=digest,
        subject=str(asked.subject),
        assurance=asked.assurance.value,
        authenticated_at_ms=asked.authenticated_at_ms,
        authenticated_tick=asked.authenticated_tick,
        expires_at_ms=asked.expires_at_ms,
    )
    return answer


def move(tx: Tx, before: Identity, after: Identity) -> None:
    """Store a change of an identity."""
    tx.exactly_one(SQL["move_identity"], expected_version=before.version, **_columns(after))


def _columns(identity: Identity) -> rows.Columns:
    password = identity.password
    return {
        "subject": str(identity.subject),
        "state": identity.state.value,
        "version": identity.version,
        "password_scheme": password and password.scheme,
        "password_salt": password and password.salt,
        "password_value": password and password.value,
        "token_digest": rows.blob(identity.token_digest),
        "updated_at_ms": identity.updated_at_ms,
    }


def _page(found: list[sqlite3.Row], limit: int) -> Page[Member]:
    shown = found[:limit]
    items = []
    for row in shown:
        try:
            role = None if row["role"] is None else Role(row["role"])
            items.append(Member(_identity(row), role))
        except (ValueError, DamagedError):
            continue
    cursor = Cursor(shown[-1]["key"], shown[-1]["key"]) if len(found) > limit else None
    return Page(items, cursor, len(shown) - len(items))


def _identity(row: sqlite3.Row) -> Identity:
    try:
        token = row["token_digest"]
        password = None
        if row["password_scheme"] is not None:
            password = PasswordHash(
                row["password_scheme"], row["password_salt"], row["password_value"]
            )
        identity = Identity(
            rows.subject_of(row["subject"]),
            IdentityState(row["state"]),
            row["version"],
            password,
            None if token is None else token.hex(),
            row["created_at_ms"],
            row["updated_at_ms"],
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise _damaged("an identity") from error
    if (identity.password is None) == (identity.token_digest is None) or (
        identity.password is not None
        and not all(isinstance(each, bytes) for each in identity.password[1:])
    ):
        raise _damaged("an identity")
    return identity


def _session(row: sqlite3.Row) -> Session:
    try:
        return Session(
            row["session_id"],
            row["token_digest"].hex(),
            rows.subject_of(row["subject"]),
            Assurance(row["assurance"]),
            row["authenticated_at_ms"],
            row["authenticated_tick"],
            row["expires_at_ms"],
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise _damaged("a session") from error


def _damaged(what: str) -> DamagedError:
    return DamagedError("identity_damaged", f"{what} cannot be believed")

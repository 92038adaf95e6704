"""Enrol second factors and reset users on SQLite; each is one commit."""

from qinglong_edge.domain import identity as rules
from qinglong_edge.domain import ids, totp
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.errors import InvariantBroken
from qinglong_edge.domain.identity import IdentityRefusal, IdentityState
from qinglong_edge.domain.policy import PolicyRefusal, role_above
from qinglong_edge.domain.totp import TotpKey
from qinglong_edge.ports.identities import EnrolTotp, FactorAnswer, IdentityAnswer, ResetUser
from qinglong_edge.ports.probe import Step
from qinglong_edge.storage.sqlite import actions, identities, policy, proofs, rows
from qinglong_edge.storage.sqlite.proofs import SQL
from qinglong_edge.storage.sqlite.transaction import Database, Tx


class SqliteFactors:
    """Keep second factors in the one database."""

    def __init__(self, database: Database) -> None:
        """Work on an open database."""
        self._database = database

    def enrol(self, event: EnrolTotp) -> FactorAnswer:
        """Store a secret and its recovery codes in place of the ones before; one commit."""
        for digest in event.code_digests:
            ids.check_digest(digest, "code_digest")
        if len(event.secret) != totp.SECRET_BYTES:
            raise InvariantBroken("a secret of another length was drawn")
        return self._database.write(Step.IDENTITY, lambda tx: _enrol(tx, event))

    def reset(self, event: ResetUser) -> IdentityAnswer:
        """Store a new password, drop factor, codes and sessions, and record it; one commit."""
        ids.check_ident(event.reset_id, "reset_id")
        return self._database.write(Step.IDENTITY, lambda tx: _reset(tx, event))


def _enrol(tx: Tx, event: EnrolTotp) -> FactorAnswer:
    user = identities.find(tx, event.subject)
    if user is None or user.password is None:
        return IdentityRefusal.NOT_FOUND
    if user.state is not IdentityState.ACTIVE:
        return IdentityRefusal.ALREADY_DISABLED
    known = proofs.key_of(tx, event.subject)
    if known is not None and totp.same(known.secret, event.secret):
        return Replayed(known)
    refusal = _unauthorized(tx, event) or totp.may_enrol(
        known, event.subject, event.principal, tx.now
    )
    if refusal is not None:
        return refusal
    for digest in event.code_digests:
        other = proofs.code_of(tx, digest)
        if other is not None and other.subject != event.subject:
            return IdentityRefusal.TOKEN_TAKEN
    key = TotpKey(event.subject, event.secret, 0, tx.now.stamp())
    proofs.drop(tx, event.subject)
    _store(tx, key, event.code_digests)
    return Changed(key)


def _unauthorized(tx: Tx, event: EnrolTotp) -> PolicyRefusal | None:
    """Prove the fence and the rank of whoever changes another user's factor."""
    if event.authority is None:
        own = event.subject == event.principal.subject
        return None if own else PolicyRefusal.FENCE_CHANGED
    seen = actions.fence(tx, event.project_id, event.principal.subject)
    if seen is None or seen[1] != event.authority.fence:
        return PolicyRefusal.FENCE_CHANGED
    theirs = policy.resolved(tx, event.project_id, event.subject)[2]
    if theirs is not None and theirs.role is not None:
        if role_above(theirs.role, event.authority.role):
            return PolicyRefusal.ABOVE_OWN_ROLE
    return None


def _store(tx: Tx, key: TotpKey, code_digests: tuple[str, ...]) -> None:
    tx.exactly_one(
        SQL["add_totp_key"],
        subject=str(key.subject),
        secret=key.secret,
        last_step=key.last_step,
        enrolled_at_ms=key.enrolled_at_ms,
    )
    for digest in code_digests:
        tx.exactly_one(SQL["add_recovery_code"], subject=str(key.subject), digest=rows.blob(digest))


def _reset(tx: Tx, event: ResetUser) -> IdentityAnswer:
    before = identities.find(tx, event.subject)
    if before is None:
        return IdentityRefusal.NOT_FOUND
    made = tx.one(SQL["reset_of_id"], reset_id=event.reset_id)
    if made is not None:
        same = made["subject"] == str(event.subject)
        return Replayed(before) if same else IdentityRefusal.RESET_TAKEN
    answer = rules.reset(before, event.password, tx.now)
    if not isinstance(answer, Changed):
        return answer
    identities.move(tx, before, answer.after)
    proofs.drop(tx, event.subject)
    tx.run(identities.SQL["drop_sessions_of_subject"], subject=str(event.subject))
    tx.exactly_one(
        SQL["add_reset"],
        reset_id=event.reset_id,
        subject=str(event.subject),
        version=answer.after.version,
        at_ms=answer.after.updated_at_ms,
    )
    return answer

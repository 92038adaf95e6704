"""Use up what a user shows besides the password: inside the transaction that opens the session."""

import sqlite3

from qinglong_edge.domain import totp
from qinglong_edge.domain.errors import DamagedError
from qinglong_edge.domain.identity import IdentityRefusal
from qinglong_edge.domain.policy import Subject
from qinglong_edge.domain.totp import RecoveryCode, TotpKey
from qinglong_edge.ports.identities import RecoveryProof, TotpProof
from qinglong_edge.storage import statements
from qinglong_edge.storage.sqlite import rows
from qinglong_edge.storage.sqlite.transaction import Tx

SQL = statements.load("qinglong_edge.storage.sqlite", "sql/factors.sql")


def use(tx: Tx, subject: Subject, proof: TotpProof | RecoveryProof) -> IdentityRefusal | None:
    """Use up what was shown, or say why it counts for nothing."""
    if isinstance(proof, TotpProof):
        return _use_step(tx, subject, proof.code)
    return _use_code(tx, subject, proof.digest)


def key_of(tx: Tx, subject: Subject) -> TotpKey | None:
    """Return a user's key; raises `DamagedError`."""
    row = tx.one(SQL["totp_key"], subject=str(subject))
    if row is None:
        return None
    if not isinstance(row["secret"], bytes) or len(row["secret"]) != totp.SECRET_BYTES:
        raise _damaged()
    return TotpKey(subject, row["secret"], row["last_step"], row["enrolled_at_ms"])


def code_of(tx: Tx, digest: str) -> RecoveryCode | None:
    """Return a recovery code, whoever's it is; raises `DamagedError`."""
    row = tx.one(SQL["recovery_code"], digest=rows.blob(digest))
    return None if row is None else _recovery_code(row)


def drop(tx: Tx, subject: Subject) -> None:
    """End a user's factor and all recovery codes."""
    tx.run(SQL["drop_totp_key"], subject=str(subject))
    tx.run(SQL["drop_recovery_codes"], subject=str(subject))


def _use_step(tx: Tx, subject: Subject, code: str) -> IdentityRefusal | None:
    before = key_of(tx, subject)
    answer = totp.accept(before, code, tx.now)
    if isinstance(answer, IdentityRefusal):
        return answer
    tx.exactly_one(
        SQL["use_step"],
        subject=str(subject),
        last_step=answer.after.last_step,
        expected_step=0 if before is None else before.last_step,
        secret=answer.after.secret,
    )
    return None


def _use_code(tx: Tx, subject: Subject, digest: str) -> IdentityRefusal | None:
    answer = totp.spend(code_of(tx, digest), subject, tx.now)
    if isinstance(answer, IdentityRefusal):
        return answer
    tx.exactly_one(
        SQL["use_recovery_code"],
        subject=str(subject),
        digest=rows.blob(digest),
        used_at_ms=answer.after.used_at_ms,
    )
    return None


def _recovery_code(row: sqlite3.Row) -> RecoveryCode:
    try:
        return RecoveryCode(rows.subject_of(row["subject"]), row["digest"].hex(), row["used_at_ms"])
    except (ValueError, AttributeError) as error:
        raise _damaged() from error


def _damaged() -> DamagedError:
    return DamagedError("identity_damaged", "a second factor cannot be believed")

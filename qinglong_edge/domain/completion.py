"""The receipt of a run's end: its bytes, who may be believed, and what it means (contract 6, 7, 9).

Its writer outlives the daemon, so nothing in it is believed until key, ids, sequence, boot and
token are those that the database expects. Its bytes are the canonical ones or it is no receipt.
A clock may jump while a task runs: times alone never refuse one, they are clamped and flagged.
"""

import enum
import re
from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.canonical import (
    Fields,
    Json,
    canonical_bytes,
    hmac_sha256,
    parse_object,
    sha256_hex,
)

SCHEMA_VERSION = 2
COMPLETION_DOMAIN = b"qinglong-edge.completion.v2"
ID_CHARS_MAX = 36  # a UUID; such an id is a file's name as well
TIMEOUT = "timeout"  # the one reason of a cancel intent that is not called a cancellation
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,}")
_TOKEN_CHARS_MAX = 128
_SIGNAL_MAX = 64


class CompletionReceipt(NamedTuple):
    """Hold a receipt, members in the order of its bytes; of exit code and signal one is None."""

    schema_version: int
    run_id: str
    attempt_id: str
    callback_sequence: int
    token: str
    boot_id: str
    started_at_ms: int
    finished_at_ms: int
    exit_code: int | None
    signal: int | None
    key_version: int
    hmac: str


class Expected(NamedTuple):
    """Hold what the database knows of an attempt.

    `boot_id` and `token_digest` are those of the commit before the spawn, None where there was
    none; `callback_sequence` is the stored one, and nothing happened before `earliest_at_ms`.
    """

    run_id: str
    attempt_id: str
    callback_sequence: int
    terminal: bool
    boot_id: str | None
    token_digest: str | None
    earliest_at_ms: int


class Believed(NamedTuple):
    """Hold an authenticated receipt, with its times as they may be stored."""

    receipt: CompletionReceipt
    started_at_ms: int
    finished_at_ms: int
    clock_untrusted: bool


class Disbelief(enum.Enum):
    """Say why a receipt is not believed."""

    KEY_UNKNOWN = "receipt_key_unknown"
    HMAC_WRONG = "receipt_hmac_wrong"
    OTHER_RUN = "receipt_of_other_run"
    OTHER_ATTEMPT = "receipt_of_other_attempt"
    OTHER_SEQUENCE = "receipt_of_other_sequence"
    OTHER_BOOT = "receipt_of_other_boot"
    TOKEN_WRONG = "receipt_token_wrong"  # noqa: S105 - a code


class EndStatus(enum.StrEnum):
    """Name how a run and its attempt end by a receipt."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


class End(NamedTuple):
    """Hold what a receipt makes of a run; exit code and signal are kept whatever the status."""

    status: EndStatus
    error_code: str | None
    exit_code: int | None
    signal: int | None


def check_id(value: object, field: str) -> str:
    """Return a run or attempt id that may stand in a receipt and name its file."""
    return ids.check_ident(value, field, most=ID_CHARS_MAX)


def token_digest(token: str) -> str:
    """Return what the database keeps of a token."""
    return sha256_hex(token.encode())


def seal(receipt: CompletionReceipt, secret: bytes) -> CompletionReceipt:
    """Return the receipt under its HMAC, whatever stood there; raises `UsageError`."""
    return _checked(receipt._replace(hmac=_hmac(receipt, secret)))


def completion_bytes(receipt: CompletionReceipt) -> bytes:
    """Return the canonical bytes of a receipt."""
    return canonical_bytes(_members(receipt))


def parse_completion(data: bytes) -> CompletionReceipt:
    """Read a receipt's bytes; raises `UsageError` for all but the canonical form.

    So blanks, escapes, another order, `1.0` and a second member of a name are refused alike.
    """
    fields = Fields(parse_object(data, "receipt", most=limits.RECEIPT_BYTES_MAX), "receipt")
    values = [fields.take(name) for name in _MEMBERS]
    receipt = _checked(CompletionReceipt(*values))  # type: ignore[arg-type]
    if completion_bytes(receipt) != data:
        raise ids.invalid("receipt", "is not in its canonical form")
    return receipt


def authenticate(
    receipt: CompletionReceipt, expected: Expected, secret: bytes | None, now_ms: int
) -> Believed | Disbelief:
    """Say whether a receipt ends this attempt; `secret` is the key that it names, if there is one.

    Of a terminal attempt the receipt that ended it is believed as well: it may be cleaned up.
    """
    if secret is None:
        return Disbelief.KEY_UNKNOWN
    if not _same(secret, receipt.hmac, _hmac(receipt, secret)):
        return Disbelief.HMAC_WRONG
    if receipt.run_id != expected.run_id:
        return Disbelief.OTHER_RUN
    if receipt.attempt_id != expected.attempt_id:
        return Disbelief.OTHER_ATTEMPT
    ahead = receipt.callback_sequence - expected.callback_sequence
    if ahead != 1 and not (expected.terminal and ahead == 0):
        return Disbelief.OTHER_SEQUENCE
    if receipt.boot_id != expected.boot_id:
        return Disbelief.OTHER_BOOT
    if not _same(secret, token_digest(receipt.token), expected.token_digest or ""):
        return Disbelief.TOKEN_WRONG
    return _clamped(receipt, expected.earliest_at_ms, now_ms)


def end_of(receipt: CompletionReceipt, cancel_reason: str | None) -> End:
    """Return the end that a believed receipt makes (contract 9.3); a stored cancel intent wins."""
    if cancel_reason == TIMEOUT:
        status, code = EndStatus.TIMED_OUT, "EXECUTION_TIMED_OUT"
    elif cancel_reason is not None:
        status, code = EndStatus.CANCELLED, "EXECUTION_CANCELLED"
    elif receipt.exit_code == 0:
        status, code = EndStatus.SUCCEEDED, None
    else:
        status, code = EndStatus.FAILED, "EXECUTION_FAILED"
    return End(status, code, receipt.exit_code, receipt.signal)


def _checked(receipt: CompletionReceipt) -> CompletionReceipt:
    safe = limits.SAFE_INTEGER_MAX
    for name, least, most in (
        ("schema_version", SCHEMA_VERSION, SCHEMA_VERSION),
        ("callback_sequence", 1, safe),
        ("started_at_ms", 0, safe),
        ("finished_at_ms", 0, safe),
        ("key_version", 1, limits.VERSION_MAX),
    ):
        ids.check_int(getattr(receipt, name), f"receipt.{name}", least=least, most=most)
    check_id(receipt.run_id, "receipt.run_id")
    check_id(receipt.attempt_id, "receipt.attempt_id")
    ids.check_ident(receipt.boot_id, "receipt.boot_id")
    ids.check_digest(receipt.hmac, "receipt.hmac")
    if not _TOKEN.fullmatch(ids.check_text(receipt.token, "receipt.token", most=_TOKEN_CHARS_MAX)):
        raise ids.invalid("receipt.token", "must be 32 to 128 characters of base64url")
    if receipt.signal is None:
        ids.check_int(receipt.exit_code, "receipt.exit_code", least=0, most=255)
    elif receipt.exit_code is None:
        ids.check_int(receipt.signal, "receipt.signal", least=1, most=_SIGNAL_MAX)
    else:
        raise ids.invalid("receipt.signal", "must be null where there is an exit code")
    return receipt


def _members(receipt: CompletionReceipt) -> dict[str, Json]:
    values: tuple[Json, ...] = receipt
    return dict(zip(_MEMBERS, values, strict=True))


def _hmac(receipt: CompletionReceipt, secret: bytes) -> str:
    members = _members(receipt)
    del members["hmac"]
    return hmac_sha256(secret, COMPLETION_DOMAIN + b"\0" + canonical_bytes(members)).hex()


def _same(secret: bytes, said: str, known: str) -> bool:
    """Compare under a secret key: how long that takes tells nothing about either side."""
    return hmac_sha256(secret, said.encode()) == hmac_sha256(secret, known.encode())


def _clamped(receipt: CompletionReceipt, earliest_at_ms: int, now_ms: int) -> Believed:
    latest_at_ms = max(earliest_at_ms, now_ms)
    started_at_ms = min(max(receipt.started_at_ms, earliest_at_ms), latest_at_ms)
    finished_at_ms = min(max(receipt.finished_at_ms, started_at_ms), latest_at_ms)
    said = (receipt.started_at_ms, receipt.finished_at_ms)
    untrusted = said != (started_at_ms, finished_at_ms)
    return Believed(receipt, started_at_ms, finished_at_ms, untrusted)


_MEMBERS = (
    "schemaVersion", "runId", "attemptId", "callbackSequence", "token", "bootId", "startedAtMs",
    "finishedAtMs", "exitCode", "signal", "keyVersion", "hmac",
)  # fmt: skip

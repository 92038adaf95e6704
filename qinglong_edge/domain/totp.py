"""The second factor: time-based codes (RFC 6238 over RFC 4226) and recovery codes.

A code counts for the step of the wall clock it was made for, and for the step before and after it.
A step is accepted once and only upwards, so a code that somebody saw is worth nothing. Secret and
recovery codes come from one seed that the client drew and nobody stores: a repeated call is the
same enrolment. A clock that cannot be believed accepts no code; a recovery code needs no clock.
"""

import base64
from typing import NamedTuple, cast

from qinglong_edge.domain import ids
from qinglong_edge.domain.canonical import hmac_sha256, sha256_hex
from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.identity import IdentityRefusal, Principal, is_strong
from qinglong_edge.domain.policy import Subject
from qinglong_edge.domain.tick import Now, Trust

try:
    from _sha1 import sha1  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    from hashlib import sha1  # type: ignore[assignment, unused-ignore]

ISSUER = "qinglong-edge"
SECRET_BYTES = 20  # what RFC 4226 recommends: the length of a SHA-1
DIGITS = 6
STEP_MS = 30_000
WINDOW_STEPS = 1  # people type slowly, and a router's clock is not the phone's
RECOVERY_CODES = 10
RECOVERY_CHARS = 20  # of five bits each: 100 bits need no stretching
_GROUP_CHARS = 5
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's: no I, L, O, U
_READ_AS = str.maketrans("ILO", "110", "- ")
_BLOCK_BYTES = 64
_RECOVERY_DOMAIN = b"qinglong-edge.recovery-code.v1\0"
_UNQUOTED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class TotpKey(NamedTuple):
    """Hold a user's secret and the newest step that a code was accepted for, 0 for none."""

    subject: Subject
    secret: bytes
    last_step: int
    enrolled_at_ms: int


class RecoveryCode(NamedTuple):
    """Hold the digest of a recovery code and when it was used."""

    subject: Subject
    digest: str
    used_at_ms: int | None


class Enrolment(NamedTuple):
    """Hold what a user is shown once."""

    secret: bytes
    codes: tuple[str, ...]


def enrolment(seed: bytes) -> Enrolment:
    """Return the secret and the recovery codes of a seed; none of them tells another one."""
    secret = hmac_sha256(seed, b"totp secret")[:SECRET_BYTES]
    drawn = (hmac_sha256(seed, b"recovery code %d" % n) for n in range(RECOVERY_CODES))
    return Enrolment(secret, tuple(map(_written, drawn)))


def check_code(value: object, field: str) -> str:
    """Return a time-based code: six digits."""
    if not isinstance(value, str) or len(value) != DIGITS or not _is_decimal(value):
        raise ids.invalid(field, f"must be {DIGITS} digits")
    return value


def hotp(secret: bytes, counter: int, *, digits: int = DIGITS) -> str:
    """Return the HOTP value of a counter (RFC 4226, 5.3)."""
    mac = hmac_sha1(secret, counter.to_bytes(8, "big"))
    at = mac[-1] & 0x0F
    number = int.from_bytes(mac[at : at + 4], "big") & 0x7FFF_FFFF
    return str(number % 10**digits).zfill(digits)


def hmac_sha1(key: bytes, message: bytes) -> bytes:
    """Return HMAC-SHA-1 (RFC 2104) without importing OpenSSL."""
    block = (_sha1(key) if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
    inner = _sha1(bytes(byte ^ 0x36 for byte in block) + message)
    return _sha1(bytes(byte ^ 0x5C for byte in block) + inner)


def same(left: bytes, right: bytes) -> bool:
    """Compare in a time that does not tell where the two differ."""
    differ = len(left) ^ len(right)
    for one, other in zip(left, right, strict=False):
        differ |= one ^ other
    return differ == 0


def may_enrol(
    known: TotpKey | None, subject: Subject, principal: Principal, now: Now
) -> IdentityRefusal | None:
    """Tell why a key may not be enrolled: all but one's own first key needs a strong proof."""
    if known is None and principal.subject == subject:
        return None
    return None if is_strong(principal, now) else IdentityRefusal.STRONG_REQUIRED


def accept(key: TotpKey | None, code: str, now: Now) -> Changed[TotpKey] | IdentityRefusal:
    """Accept a code for one step of the window, newer than every step accepted before.

    The wall clock counts, because the other clock is a phone's.
    """
    if now.trust is not Trust.TRUSTED:
        return IdentityRefusal.CLOCK_UNTRUSTED
    secret, last = (bytes(SECRET_BYTES), 0) if key is None else (key.secret, key.last_step)
    here = now.reading.wall_ms // STEP_MS
    window = range(max(here - WINDOW_STEPS, 0), here + WINDOW_STEPS + 1)
    right = [step for step in window if same(hotp(secret, step).encode(), code.encode())]
    fresh = [step for step in right if step > last]
    if key is None or not fresh:
        return IdentityRefusal.FACTOR_REFUSED
    return Changed(key._replace(last_step=fresh[0]))


def spend(
    code: RecoveryCode | None, subject: Subject, now: Now
) -> Changed[RecoveryCode] | IdentityRefusal:
    """Use a recovery code, which works once, and for its own user."""
    if code is None or code.subject != subject or code.used_at_ms is not None:
        return IdentityRefusal.FACTOR_REFUSED
    return Changed(code._replace(used_at_ms=now.stamp()))


def recovery_digest(text: object, field: str) -> str:
    """Return the digest of a recovery code as a person types it: any case, hyphens or not."""
    if not isinstance(text, str):
        raise ids.invalid(field, "must be text")
    code = text.strip().upper().translate(_READ_AS)
    if len(code) != RECOVERY_CHARS or not set(code) <= set(_ALPHABET):
        raise ids.invalid(field, f"must be {RECOVERY_CHARS} letters and digits in groups")
    return sha256_hex(_RECOVERY_DOMAIN + code.encode("ascii"))


def otpauth_uri(secret: bytes, project_id: str, name: str) -> str:
    """Return what an authenticator reads, mostly from a picture of it."""
    label = f"{_quoted(project_id)}:{_quoted(name)}"
    return (
        f"otpauth://totp/{label}?secret={base64.b32encode(secret).decode('ascii')}"
        f"&issuer={ISSUER}&algorithm=SHA1&digits={DIGITS}&period={STEP_MS // 1000}"
    )


def _sha1(data: bytes) -> bytes:
    return cast("bytes", sha1(data).digest())  # noqa: S324  # RFC 4226 names it, and HMAC is sound


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _written(drawn: bytes) -> str:
    number = int.from_bytes(drawn, "big")
    code = "".join(_ALPHABET[number >> 5 * place & 31] for place in range(RECOVERY_CHARS))
    return "-".join(code[at : at + _GROUP_CHARS] for at in range(0, RECOVERY_CHARS, _GROUP_CHARS))


def _quoted(text: str) -> str:
    return "".join(chr(byte) if byte in _UNQUOTED else f"%{byte:02X}" for byte in text.encode())

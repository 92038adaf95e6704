"""Stretch and check passwords: scrypt where OpenSSL is, else PBKDF2 over the built-in SHA-256.

OpenSSL is imported inside the functions that need it, so a command that sees no password never
loads it. Nothing here logs, stores or repeats a password; messages name the rule only.
"""

import re
from collections.abc import Callable
from typing import NamedTuple, cast

from qinglong_edge.domain import canonical, ids, limits
from qinglong_edge.domain.canonical import hmac_sha256, sha256_bytes
from qinglong_edge.domain.errors import DamagedError, UnavailableError
from qinglong_edge.domain.identity import PasswordHash
from qinglong_edge.ports.ambient import Clocks, Entropy

SALT_BYTES = 16
VALUE_BYTES = 32

_BLOCK_BYTES = 64
_SCRYPT = re.compile(r"scrypt:([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})")
_PBKDF2 = re.compile(r"pbkdf2-sha256:([0-9]{1,7})")
_SCRYPT_LOG2_MAX = 16  # with r = 8: 64 MiB, the most that a stored scheme may make us use
_SCRYPT_R_MAX = 8
_SCRYPT_P_MAX = 4
_SCRYPT_BYTES_MAX = 128 * 1_048_576
_TRIAL_ITERATIONS = 2_000
_TRIAL_SHARE = 8  # a trial of an eighth of the wanted length tells it well enough
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

_Scrypt = Callable[..., bytes]


class Costs(NamedTuple):
    """Say how dear a guess is made; `scrypt_log2` None leaves scrypt out."""

    scrypt_log2: int | None = 14
    pbkdf2_ms: int = 250
    pbkdf2_least: int = 20_000
    pbkdf2_most: int = 1_000_000


COSTS = Costs()


def check_password(value: object) -> str:
    """Return a password that may be set: long enough, not too long, and of printable text."""
    if not isinstance(value, str) or len(value) < limits.PASSWORD_CHARS_MIN:
        raise ids.invalid("password", f"must have at least {limits.PASSWORD_CHARS_MIN} characters")
    if _CONTROL.search(value):
        raise ids.invalid("password", "must not contain control characters")
    _secret(value)
    return value


def hash_password(
    password: str, entropy: Entropy, *, clocks: Clocks, costs: Costs = COSTS
) -> PasswordHash:
    """Return a salted, stretched password; `clocks` calibrate PBKDF2 where there is no scrypt.

    Raises `UsageError` for a password that may not be set.
    """
    secret = _secret(check_password(password))
    if costs.scrypt_log2 is not None and _find_scrypt() is not None:
        scheme = f"scrypt:{costs.scrypt_log2}:8:1"
    else:
        scheme = f"pbkdf2-sha256:{_iterations(clocks, costs)}"
    salt = entropy(SALT_BYTES)
    return PasswordHash(scheme, salt, _stretched(secret, salt, scheme))


def verify(password: str, known: PasswordHash) -> bool:
    """Tell whether this is the password; a wrong one takes as long as the right one.

    Raises `UsageError` for a text that no password can be because of its size,
    `UnavailableError` (`password_scheme_unavailable`) where this interpreter cannot compute the
    scheme, `DamagedError` for a scheme that this program never wrote.
    """
    value = _stretched(_secret(password), known.salt, known.scheme)
    # Comparing digests under a key that no caller knows: where they differ first says nothing.
    return hmac_sha256(known.salt, value) == hmac_sha256(known.salt, known.value)


class Here:
    """Set and check passwords in this process."""

    def __init__(self, entropy: Entropy, clocks: Clocks) -> None:
        """Take where salts come from, and what calibrates."""
        self._entropy = entropy
        self._clocks = clocks

    def hash(self, password: str) -> PasswordHash:
        """Return a salted, stretched password; raises `UsageError` for one that may not be set."""
        return hash_password(password, self._entropy, clocks=self._clocks)

    def verify(self, password: str, known: PasswordHash) -> bool:
        """Tell whether this is the password."""
        return verify(password, known)


def decoy(like: PasswordHash | None) -> PasswordHash:
    """Return a hash that no password has, as dear as `like`: what an unknown name is checked with.

    Where there is nothing to be like, the scheme of this interpreter stands in.
    """
    if like is not None:
        scheme = like.scheme
    elif COSTS.scrypt_log2 is not None and _find_scrypt() is not None:
        scheme = f"scrypt:{COSTS.scrypt_log2}:8:1"
    else:
        scheme = f"pbkdf2-sha256:{COSTS.pbkdf2_least}"
    return PasswordHash(scheme, bytes(SALT_BYTES), b"")


def pbkdf2_sha256(password: bytes, salt: bytes, iterations: int) -> bytes:
    """Return 32 bytes of PBKDF2-HMAC-SHA-256 (RFC 8018) without OpenSSL.

    HMAC's two padded key blocks are hashed once; each of the iterations copies those states.
    """
    key = sha256_bytes(password) if len(password) > _BLOCK_BYTES else password
    block = key.ljust(_BLOCK_BYTES, b"\0")
    start = canonical.sha256  # type: ignore[attr-defined, unused-ignore] # the built-in one
    copy_inner = start(bytes(byte ^ 0x36 for byte in block)).copy
    copy_outer = start(bytes(byte ^ 0x5C for byte in block)).copy
    part = salt + b"\0\0\0\1"
    mixed = 0
    for _ in range(iterations):
        inner = copy_inner()
        inner.update(part)
        outer = copy_outer()
        outer.update(inner.digest())
        part = outer.digest()
        mixed ^= int.from_bytes(part, "big")
    return mixed.to_bytes(VALUE_BYTES, "big")


def _secret(password: str) -> bytes:
    try:
        secret = password.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ids.invalid("password", "must be valid text") from error
    if len(secret) > limits.PASSWORD_BYTES_MAX:
        raise ids.invalid("password", f"must have at most {limits.PASSWORD_BYTES_MAX} bytes")
    return secret


def _stretched(secret: bytes, salt: bytes, scheme: str) -> bytes:
    if found := _SCRYPT.fullmatch(scheme):
        log2, r, p = map(int, found.groups())
        if not (
            1 <= log2 <= _SCRYPT_LOG2_MAX and 1 <= r <= _SCRYPT_R_MAX and 1 <= p <= _SCRYPT_P_MAX
        ):
            raise _damaged()
        return _scrypt(secret, salt, (log2, r, p))
    if found := _PBKDF2.fullmatch(scheme):
        iterations = int(found.group(1))
        if not 1 <= iterations <= COSTS.pbkdf2_most:
            raise _damaged()
        return pbkdf2_sha256(secret, salt, iterations)
    raise _damaged()


def _scrypt(secret: bytes, salt: bytes, costs: tuple[int, int, int]) -> bytes:
    scrypt = _find_scrypt()
    if scrypt is None:
        raise UnavailableError(
            "password_scheme_unavailable",
            "this password was stored with scrypt, which this Python cannot compute; install its"
            " OpenSSL package (python3-openssl on OpenWrt) or reset the user",
        )
    log2, r, p = costs
    try:
        return scrypt(
            secret, salt=salt, n=1 << log2, r=r, p=p, maxmem=_SCRYPT_BYTES_MAX, dklen=VALUE_BYTES
        )
    except (ValueError, MemoryError, OSError) as error:
        raise UnavailableError(
            "out_of_memory", "scrypt did not get its memory; free some and try again"
        ) from error


def _find_scrypt() -> _Scrypt | None:
    import hashlib  # noqa: PLC0415 - loads OpenSSL, 4 MB: only where a password is

    return cast("_Scrypt | None", getattr(hashlib, "scrypt", None))


def _iterations(clocks: Clocks, costs: Costs) -> int:
    """Measure how many iterations take about `pbkdf2_ms` on this machine, now."""
    trial = min(_TRIAL_ITERATIONS, costs.pbkdf2_most)
    while True:
        began_ms = clocks.monotonic_ms()
        pbkdf2_sha256(b"calibration", bytes(SALT_BYTES), trial)
        spent_ms = clocks.monotonic_ms() - began_ms
        if spent_ms * _TRIAL_SHARE >= costs.pbkdf2_ms or trial == costs.pbkdf2_most:
            break
        trial = min(2 * trial, costs.pbkdf2_most)
    wanted = trial * costs.pbkdf2_ms // max(1, spent_ms)
    rounded = wanted // 1_000 * 1_000
    return max(costs.pbkdf2_least, min(rounded, costs.pbkdf2_most))


def _damaged() -> DamagedError:
    return DamagedError("password_damaged", "a stored password has a scheme nobody wrote")

"""Canonical JSON, digests, and exact-shape reading: the digest rule lives here (contract 15).

Canonical bytes are compact UTF-8 JSON with members in a stated order; free-form members (`params`,
`env`) are ordered by the UTF-8 bytes of their names. Numbers are integers within +-(2^53 - 1).
SHA-256 comes from the interpreter's own module: OpenSSL's costs 4 MB of memory and a package.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NoReturn, cast

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.ids import invalid

try:
    from _sha2 import sha256  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found, no-redef, unused-ignore]
    except ImportError:
        from hashlib import sha256  # type: ignore[assignment, unused-ignore]

Json = None | bool | int | str | Sequence["Json"] | Mapping[str, "Json"]
JsonObject = Mapping[str, Json]

ACTION_DOMAIN = b"qinglong-edge.action.v1"
PREVIEW_DOMAIN = b"qinglong-edge.preview.v1"
_BLOCK_BYTES = 64


def sha256_bytes(data: bytes) -> bytes:
    """Return the 32-byte SHA-256 of `data`."""
    return cast("bytes", sha256(data).digest())


def sha256_hex(data: bytes) -> str:
    """Return the lower-case hexadecimal SHA-256 of `data`."""
    return sha256_bytes(data).hex()


class Hash:
    """Hash a stream piece by piece."""

    def __init__(self) -> None:
        """Start with nothing read."""
        self._state = sha256()

    def update(self, data: bytes) -> None:
        """Take the next piece."""
        self._state.update(data)

    def hexdigest(self) -> str:
        """Return the digest of all that was read."""
        return cast("str", self._state.hexdigest())


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """Return HMAC-SHA-256 (RFC 2104) without importing OpenSSL."""
    block = (sha256_bytes(key) if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
    inner = sha256_bytes(bytes(byte ^ 0x36 for byte in block) + message)
    return sha256_bytes(bytes(byte ^ 0x5C for byte in block) + inner)


def canonical_bytes(value: Json) -> bytes:
    """Return the compact UTF-8 bytes of `value`, members in the order given."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode()


def ordered(value: Json) -> Json:
    """Return `value` with the members of every object sorted by the UTF-8 bytes of their names."""
    if isinstance(value, Mapping):
        return {name: ordered(value[name]) for name in sorted(value, key=str.encode)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [ordered(item) for item in value]
    return value


def digest(value: Json, *, domain: bytes | None = None) -> str:
    """Return the digest of canonical bytes, separated by `domain` NUL where one is given."""
    prefix = b"" if domain is None else domain + b"\0"
    return sha256_hex(prefix + canonical_bytes(value))


def parse_object(data: bytes, what: str, *, most: int = limits.PLAN_BYTES_MAX) -> JsonObject:
    """Read one JSON object strictly, the size before the shape.

    Refuses, with `UsageError`: more than `most` bytes, bytes that are not UTF-8, duplicate names,
    floats, integers beyond +-(2^53 - 1), lone surrogates, depth over the limit, trailing data.
    """
    if len(data) > most:
        raise UsageError("too_large", f"{what}: over {most} bytes", {"bytes_max": most})
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_int=_small_int,
            parse_float=_refuse_number,
            parse_constant=_refuse_number,
        )
    except (ValueError, RecursionError) as error:
        raise UsageError("malformed_json", f"{what}: {_fault(error)}") from error
    if not isinstance(value, dict):
        raise UsageError("malformed_json", f"{what}: not a JSON object")
    _check_values(value, what, limits.JSON_DEPTH_MAX)
    return value


class _Strict(ValueError):
    """Say what JSON allows and this program does not."""


def _fault(error: Exception) -> str:
    """Return what is wrong, in our own words."""
    if isinstance(error, _Strict):
        return str(error)
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON at line {error.lineno}, column {error.colno}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return "not UTF-8 text"


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        message = "names a member twice"
        raise _Strict(message)
    return members


def _small_int(text: str) -> int:
    number = int(text) if len(text) <= len(str(-limits.SAFE_INTEGER_MAX)) else None
    if number is None or abs(number) > limits.SAFE_INTEGER_MAX:
        message = "an integer is beyond 2^53 - 1"
        raise _Strict(message)
    return number


def _refuse_number(_text: str) -> NoReturn:
    message = "only integers are numbers here"
    raise _Strict(message)


def _check_values(value: Json, what: str, depth: int) -> None:
    if depth == 0:
        raise UsageError("malformed_json", f"{what}: nested too deeply")
    if isinstance(value, str):
        _check_string(value, what)
    elif isinstance(value, Mapping):
        for name, member in value.items():
            _check_string(name, what)
            _check_values(member, what, depth - 1)
    elif isinstance(value, Sequence):
        for item in value:
            _check_values(item, what, depth - 1)


def _check_string(value: str, what: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError("malformed_json", f"{what}: lone surrogate in text") from error


class Fields:
    """Read an object by consuming it: whatever is left at `done` was not expected."""

    def __init__(self, value: object, what: str) -> None:
        """Take any value; anything but an object is refused as the whole of `what`."""
        if not isinstance(value, Mapping):
            raise invalid(what, "must be an object")
        self._left = dict(value)
        self._what = what

    def take(self, name: str) -> Json:
        """Return and remove a required member."""
        if name not in self._left:
            raise invalid(f"{self._what}.{name}", "is missing")
        return cast("Json", self._left.pop(name))

    def maybe(self, name: str, default: Json = None) -> Json:
        """Return and remove an optional member; one that is there must not be null."""
        if name not in self._left:
            return default
        value = self._left.pop(name)
        if value is None:
            raise invalid(f"{self._what}.{name}", "must not be null")
        return cast("Json", value)

    def done(self) -> None:
        """Refuse whatever nobody took."""
        if self._left:
            name = min(map(str, self._left))
            shown = f" {name}" if name.isascii() and name.isidentifier() else ""
            raise invalid(self._what, f"unknown member{shown[:64]}")

"""The one validator of every primitive: ids, texts, digests, times, versions (contract 1.1).

Each `check_*` takes a value of any type and the name of its field, returns the value with its type
proven, and raises `UsageError` (`invalid_value`, with the field in `details`) otherwise. Booleans,
floats and numeric strings are never integers; lone surrogates are never text.
"""

import re
from collections.abc import Callable

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import UsageError

_IDENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_MUTATION = re.compile(r"[A-Za-z0-9._:-]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_TOOL = re.compile(r"tool\.call:[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_ID_MS_MAX = 2**48 - 1
_ONE_UNIT_MAX = 0xFFFF  # beyond it UTF-16 takes two units
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")

_ALPHABETS = {
    _IDENT: "a letter or digit first, then letters, digits and ._:-",
    _MUTATION: "letters, digits and ._:-",
    _DIGEST: "exactly 64 lower-case hexadecimal ones",
    _SLUG: "lower-case letters, digits and inner hyphens",
}
STATIC_PERMISSIONS = frozenset(
    {
        "project.read", "project.manage", "task.read", "task.create", "task.update", "task.delete",
        "run.read", "run.start", "run.stop", "run.retry", "artifact.read", "secret.use",
        "secret.manage", "worker.manage", "policy.manage", "approval.decide", "approval.recover",
    }
)  # fmt: skip


def invalid(field: str, rule: str) -> UsageError:
    """Build the one error of a malformed value; the value itself is never repeated."""
    return UsageError("invalid_value", f"{field}: {rule}", {"field": field})


def _check_pattern(value: object, field: str, pattern: re.Pattern[str], most: int) -> str:
    if not isinstance(value, str) or len(value) > most or not pattern.fullmatch(value):
        raise invalid(field, f"must be 1 to {most} characters, {_ALPHABETS[pattern]}")
    return value


def check_ident(value: object, field: str, *, most: int = limits.ID_CHARS_MAX) -> str:
    """Return an identifier: letter or digit first, then letters, digits and `._:-`."""
    return _check_pattern(value, field, _IDENT, most)


def check_mutation_id(value: object, field: str) -> str:
    """Return a policy mutation id; unlike an identifier it may begin with punctuation."""
    return _check_pattern(value, field, _MUTATION, limits.ID_CHARS_MAX)


def check_digest(value: object, field: str) -> str:
    """Return a SHA-256 digest: exactly 64 lower-case hexadecimal characters."""
    return _check_pattern(value, field, _DIGEST, limits.ID_CHARS_MAX)


def check_slug(value: object, field: str) -> str:
    """Return a slug: lower-case letters, digits and inner hyphens."""
    return _check_pattern(value, field, _SLUG, limits.SLUG_CHARS_MAX)


def check_text(value: object, field: str, *, most: int) -> str:
    """Return 1..`most` characters without control characters or lone surrogates."""
    if not isinstance(value, str) or not 1 <= utf16_units(value) <= most:
        raise invalid(field, f"must be text of 1 to {most} characters")
    if _CONTROL.search(value):
        raise invalid(field, "must not contain control characters")
    return value


def utf16_units(value: str) -> int:
    """Count UTF-16 code units, the unit of the contract's text lengths."""
    return len(value) + sum(1 for character in value if ord(character) > _ONE_UNIT_MAX)


def check_permission(value: object, field: str) -> str:
    """Return one of the static permissions or `tool.call:NAME`."""
    if isinstance(value, str) and len(value) <= limits.PERMISSION_CHARS_MAX:
        if value in STATIC_PERMISSIONS or _TOOL.fullmatch(value):
            return value
    raise invalid(field, "is not a permission")


def check_int(value: object, field: str, *, least: int, most: int) -> int:
    """Return an integer within the closed range; booleans and floats are refused."""
    if type(value) is not int or not least <= value <= most:
        raise invalid(field, f"must be an integer from {least} to {most}")
    return value


def new_id(wall_ms: int, entropy: Callable[[int], bytes]) -> str:
    """Draw a UUIDv7: time-ordered, so that b-trees grow at their right edge."""
    drawn = bytearray(entropy(10))
    drawn[0] = 0x70 | drawn[0] & 0x0F
    drawn[2] = 0x80 | drawn[2] & 0x3F
    stamp = min(max(wall_ms, 0), _ID_MS_MAX)  # 48 bits; a clock beyond them still gets an id
    text = stamp.to_bytes(6, "big").hex() + drawn.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

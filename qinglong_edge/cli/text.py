"""Show values to people: nothing that was stored can move the cursor or hide itself.

Names, argv and reasons come from strangers. Whatever steers a terminal, reverses the direction of
text or takes no place is written as an escape, so that the approver sees what is there.
"""

import json
import re
import time

from qinglong_edge.domain.canonical import Json

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
_WIDE = re.compile(
    "[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f"
    "\uff01-\uff60\uffe0-\uffe6\U0001f300-\U0001faff\U00020000-\U0003fffd]"
)
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))
_ELLIPSIS = "…"


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code <= 0xFF:  # noqa: PLR2004  # what two hexadecimal digits hold
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004  # four digits


def plain(text: str) -> str:
    """Return one line of visible text; a backslash of the text itself is doubled."""
    return _UNSAFE.sub(_escape, text.replace("\\", "\\\\"))


def block(text: str) -> list[str]:
    """Return the lines of a longer text; only line ends and tabs keep their meaning."""
    if not text:
        return []
    return [
        "\t".join(_UNSAFE.sub(_escape, piece) for piece in line.split("\t"))
        for line in text.removesuffix("\n").split("\n")
    ]


def quoted(value: Json) -> str:
    """Return a value as JSON, so that blanks, quotes and line ends in it are told apart."""
    return _UNSAFE.sub(_escape, json.dumps(value, ensure_ascii=False))


def local_time(at_ms: int) -> str:
    """Return an instant in this machine's zone, as ISO 8601 with its offset."""
    try:
        there = time.localtime(at_ms // 1000)
    except (OverflowError, OSError, ValueError):
        return f"{at_ms} ms"
    minutes = there.tm_gmtoff // 60
    sign = "-" if minutes < 0 else "+"
    offset = f"{sign}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', there)}{offset}"


def span(length_ms: int) -> str:
    """Return a length of time exactly, largest unit first."""
    left, parts = abs(length_ms), []
    for unit_ms, unit in _UNITS:
        if left >= unit_ms:
            parts.append(f"{left // unit_ms} {unit}")
            left %= unit_ms
    return ("-" if length_ms < 0 else "") + (" ".join(parts) or "0 s")


def columns(text: str) -> int:
    """Return how many columns of a terminal a text takes; an ideograph takes two."""
    return len(text) + len(_WIDE.findall(text))


def cut(text: str, width: int) -> str:
    """Return the text, or as much of it as fits with a sign that something is missing."""
    if columns(text) <= width:
        return text
    kept = text[: max(0, width - 1)]
    while columns(kept) > width - 1:
        kept = kept[:-1]
    return kept + _ELLIPSIS


def padded(text: str, width: int) -> str:
    """Return the text filled up to `width` columns."""
    return text + " " * (width - columns(text))

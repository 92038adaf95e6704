"""Find what nobody owns among the receipts: bounded, looking only, never reading a content.

Moving must be asked for, goes to `.orphan-quarantine`, and replaces nothing; deletion is not
offered. A name whose directory holds more than the bound is reported and nothing there moves.
"""

import enum
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.canonical import sha256_hex
from qinglong_edge.domain.completion import ID_CHARS_MAX
from qinglong_edge.receipts import private
from qinglong_edge.receipts.private import Identity, entered
from qinglong_edge.receipts.store import RECEIPTS, place_of

ORPHANS = ".orphan-quarantine"
SHARDS = 256
SHARDS_MAX = 32
ENTRIES_MAX = 64
OWNERS_MAX = 32  # ids a question to the database
_NS_PER_MS = 1_000_000
_IDENT = rf"([A-Za-z0-9][A-Za-z0-9._:-]{{0,{ID_CHARS_MAX - 1}}})"
_RECEIPT = re.compile(rf"{_IDENT}\.json")
_TEMPORARY = re.compile(rf"\.{_IDENT}\.[0-9a-f]{{32}}\.tmp")


class Owner(enum.Enum):
    """Say what the database knows of an attempt; of an unknown one it says nothing."""

    JOURNALED = "journaled"
    ACTIVE = "active"
    TERMINAL = "terminal"


class Category(enum.StrEnum):
    """Name what an entry is."""

    JOURNALED = "journaled"
    ACTIVE_ATTEMPT = "active_attempt"
    YOUNG_TERMINAL_ATTEMPT = "young_terminal_attempt"
    TERMINAL_ORPHAN = "terminal_orphan"
    YOUNG_UNKNOWN_RECEIPT = "young_unknown_receipt"
    UNKNOWN_RECEIPT = "unknown_receipt"
    YOUNG_TEMPORARY = "young_temporary"
    STALE_TEMPORARY = "stale_temporary"
    YOUNG_UNKNOWN_ENTRY = "young_unknown_entry"
    UNKNOWN_ENTRY = "unknown_entry"
    UNSAFE_ENTRY = "unsafe_entry"


class Action(enum.StrEnum):
    """Name what was done with an entry."""

    RETAINED = "retained"
    ELIGIBLE = "eligible"
    BLOCKED_OVERFLOW = "blocked_overflow"
    QUARANTINED = "quarantined"
    CHANGED = "changed"


class Bounds(NamedTuple):
    """Bound one audit."""

    start_shard: int = 0
    shards: int = 8
    entries: int = 32
    minimum_age_ms: int = 300_000


class Entry(NamedTuple):
    """Hold one entry; `digest` is its name in the quarantine, `attempt_id` what its name says."""

    shard: str
    digest: str
    attempt_id: str | None
    category: Category
    action: Action


class Report(NamedTuple):
    """Hold what an audit found, and where the next one goes on."""

    schema_version: int
    categories: Mapping[Category, int]
    actions: Mapping[Action, int]
    overflows: tuple[str, ...]
    entries: tuple[Entry, ...]
    next_shard: int
    wrapped: bool


class _Seen(NamedTuple):
    shard: str
    name: str
    safe: bool
    identity: Identity
    overflow: bool

    @property
    def digest(self) -> str:
        place = os.fsencode(f"{self.shard}/{self.name}")
        return sha256_hex(place + b"\0" + ":".join(map(str, self.identity)).encode())

    @property
    def receipt_of(self) -> str | None:
        match = _RECEIPT.fullmatch(self.name)
        return match[1] if match and place_of(match[1])[0] == self.shard else None

    @property
    def temporary_of(self) -> str | None:
        match = _TEMPORARY.fullmatch(self.name)
        return match[1] if match else None


Owners = Callable[[Sequence[str]], Mapping[str, Owner]]


def audit(
    state: str, bounds: Bounds, owners: Owners, *, now_ms: int, quarantine: bool = False
) -> Report:
    """Judge the entries of some shards, and move what nobody owns if that is asked for.

    All is looked at before anything moves. Raises `UsageError` for bounds over the limits,
    `DamagedError` where a directory on the way is not private, and `UnavailableError`.
    """
    ids.check_int(bounds.start_shard, "start_shard", least=0, most=SHARDS - 1)
    ids.check_int(bounds.shards, "shards", least=1, most=SHARDS_MAX)
    ids.check_int(bounds.entries, "entries", least=1, most=ENTRIES_MAX)
    ids.check_int(bounds.minimum_age_ms, "minimum_age_ms", least=0, most=limits.SAFE_INTEGER_MAX)
    end = bounds.start_shard + bounds.shards
    shards = [f"{shard % SHARDS:02x}" for shard in range(bounds.start_shard, end)]
    seen = [each for shard in shards for each in _scan(state, shard, bounds.entries)]
    known = _ask(owners, seen)
    entries = []
    for each in seen:
        old = now_ms - each.identity.changed_ns // _NS_PER_MS >= bounds.minimum_age_ms
        attempt_id = each.receipt_of or each.temporary_of
        category = _category(each, known.get(attempt_id or ""), old=old)
        action = _action(each, category)
        if action is Action.ELIGIBLE and quarantine:
            action = Action.QUARANTINED if _move(state, each) else Action.CHANGED
        entries.append(Entry(each.shard, each.digest, attempt_id, category, action))
    return Report(
        1,
        Counter(entry.category for entry in entries),
        Counter(entry.action for entry in entries),
        tuple(sorted({each.shard for each in seen if each.overflow})),
        tuple(entries),
        end % SHARDS,
        end >= SHARDS,
    )


def _scan(state: str, shard: str, most: int) -> Iterator[_Seen]:
    with suppress(FileNotFoundError), entered(state, RECEIPTS, shard) as at:
        with os.scandir(at) as found:
            names = [entry.name for entry in islice(found, most + 1)]
        overflow = len(names) > most
        for name in sorted(names[:most]):
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=at, follow_symlinks=False)
                safe = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
                yield _Seen(shard, name, safe, private.identity_of(status), overflow)


def _ask(owners: Owners, seen: Sequence[_Seen]) -> dict[str, Owner]:
    names = {each.receipt_of or each.temporary_of for each in seen if each.safe}
    asked = sorted(name for name in names if name is not None)
    known: dict[str, Owner] = {}
    for first in range(0, len(asked), OWNERS_MAX):
        known.update(owners(asked[first : first + OWNERS_MAX]))
    return known


def _category(seen: _Seen, owner: Owner | None, *, old: bool) -> Category:
    if not seen.safe:
        return Category.UNSAFE_ENTRY
    if owner is Owner.JOURNALED:
        return Category.JOURNALED
    if owner is Owner.ACTIVE:  # its temporary may be the room of a task that runs for days
        return Category.ACTIVE_ATTEMPT
    if seen.temporary_of is not None:
        return Category.STALE_TEMPORARY if old else Category.YOUNG_TEMPORARY
    if seen.receipt_of is None:
        return Category.UNKNOWN_ENTRY if old else Category.YOUNG_UNKNOWN_ENTRY
    if owner is Owner.TERMINAL:
        return Category.TERMINAL_ORPHAN if old else Category.YOUNG_TERMINAL_ATTEMPT
    return Category.UNKNOWN_RECEIPT if old else Category.YOUNG_UNKNOWN_RECEIPT


def _action(seen: _Seen, category: Category) -> Action:
    if category not in _ELIGIBLE:
        return Action.RETAINED
    return Action.BLOCKED_OVERFLOW if seen.overflow else Action.ELIGIBLE


_ELIGIBLE = frozenset(
    {
        Category.TERMINAL_ORPHAN,
        Category.UNKNOWN_RECEIPT,
        Category.STALE_TEMPORARY,
        Category.UNKNOWN_ENTRY,
    }
)


def _move(state: str, seen: _Seen) -> bool:
    try:
        with (
            entered(state, RECEIPTS, seen.shard) as source,
            entered(state, RECEIPTS, ORPHANS, seen.shard, make=True) as kept,
        ):
            target = (kept, f"{seen.digest}.entry")
            return private.move((source, seen.name), target, seen.identity)
    except FileNotFoundError:
        return False

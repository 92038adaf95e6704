"""Two times: ticks for machines, deadline time for people (ADR-0002).

A tick is `epoch << 42 | boot ms`. The epoch counts boots, so a tick of an earlier boot always lies
in the past: its leases have expired and its delays are due, whatever the wall clock says. Deadline
time is wall time that never runs backwards past what was already stored. Both are pure readings of
three values: the boots row, the mark, and one look at the clocks taken under the write lock.
"""

import enum
from typing import NamedTuple

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import InvariantBroken

Tick = int


class Reading(NamedTuple):
    """Hold one look at the machine's clocks, milliseconds throughout."""

    wall_ms: int
    boot_ms: int
    boot_id: str


class Boot(NamedTuple):
    """Hold one boot generation and the clocks of its first write."""

    epoch: int
    boot_id: str
    first_wall_ms: int
    first_boot_ms: int


class Mark(NamedTuple):
    """Hold the highest believed wall time and the boot time at which it was stored."""

    wall_ms: int
    epoch: int
    boot_ms: int


class Sighting(NamedTuple):
    """Hold the first reading of a clock that cannot be believed."""

    epoch: int
    boot_ms: int
    wall_ms: int


class Trust(enum.Enum):
    """Name what the clock rule says about one reading."""

    TRUSTED = "trusted"
    UNTRUSTED = "untrusted"
    SETTLED = "settled"  # stable for so long that it is believed again, at the price of a purge


class ClockRefusal(enum.Enum):
    """Name why the wall clock was not believed on a person's word."""

    TRUSTED_ALREADY = "clock_trusted_already"
    CERTAINLY_WRONG = "clock_untrusted"
    FENCE_CHANGED = "policy_fence_changed"


class Now(NamedTuple):
    """Hold one instant, as every rule of the program sees it."""

    tick: Tick
    at_ms: int  # deadline time: stamps, approval expiry, retention
    reading: Reading
    trust: Trust

    @property
    def epoch(self) -> int:
        """Return the boot generation."""
        return self.tick >> limits.TICK_MS_BITS

    def stamp(self, *earlier: int | None) -> int:
        """Return the time to store in a row that already holds `earlier` stamps."""
        return max(self.at_ms, *(stamp for stamp in earlier if stamp is not None), 0)


def tick_of(epoch: int, boot_ms: int) -> Tick:
    """Combine a boot generation and milliseconds since that boot."""
    if not 1 <= epoch <= limits.EPOCH_MAX or not 0 <= boot_ms < 1 << limits.TICK_MS_BITS:
        raise InvariantBroken("a tick is out of range")
    return epoch << limits.TICK_MS_BITS | boot_ms


def elapsed_ms(later: Tick, earlier: Tick) -> int | None:
    """Return the milliseconds between two ticks of one boot, None across boots."""
    if later >> limits.TICK_MS_BITS != earlier >> limits.TICK_MS_BITS:
        return None
    return later - earlier


def shown_at_ms(tick: Tick, now: Now, boots: tuple[Boot, ...] = ()) -> int:
    """Translate a tick into wall milliseconds for a person; never used in a decision."""
    distance = elapsed_ms(tick, now.tick)
    if distance is not None:
        return max(0, now.at_ms + distance)
    for boot in boots:
        if boot.epoch == tick >> limits.TICK_MS_BITS:
            boot_ms = tick & (1 << limits.TICK_MS_BITS) - 1
            return max(0, boot.first_wall_ms + boot_ms - boot.first_boot_ms)
    return 0


def epoch_of(reading: Reading, newest: Boot | None) -> int:
    """Return the epoch of this boot: the newest row's, or the next one when the boot id changed."""
    if newest is None:
        return 1
    return newest.epoch if newest.boot_id == reading.boot_id else newest.epoch + 1


def deadline_ms(reading: Reading, epoch: int, mark: Mark) -> int:
    """Return deadline time: the wall, but never less than the mark plus boot time since then."""
    since = reading.boot_ms - mark.boot_ms if epoch == mark.epoch else reading.boot_ms
    return max(reading.wall_ms, mark.wall_ms + max(0, since))


def trust_of(reading: Reading, epoch: int, mark: Mark, sighting: Sighting | None) -> Trust:
    """Judge one reading against the mark; a stable stranger is believed after ten minutes.

    A reading that became plausible again (NTP answered, the step was taken back) is trusted at once
    and costs nothing, for the mark never followed the bad clock.
    """
    if not _implausible(reading, epoch, mark):
        return Trust.TRUSTED
    if sighting is None or sighting.epoch != epoch or reading.wall_ms < limits.BUILD_WALL_MS:
        return Trust.UNTRUSTED
    passed = reading.boot_ms - sighting.boot_ms
    drift = abs(reading.wall_ms - sighting.wall_ms - passed)
    if passed >= limits.CLOCK_SETTLE_MS and drift <= limits.CLOCK_BACK_MS_MAX:
        return Trust.SETTLED
    return Trust.UNTRUSTED


def refuse_word(now: Now) -> ClockRefusal | None:
    """Tell why a person's word does not make the wall clock believed, at the price of a purge.

    A clock that is trusted costs nothing; one before the build date is wrong whoever says what.
    """
    if now.trust is Trust.TRUSTED:
        return ClockRefusal.TRUSTED_ALREADY
    if now.reading.wall_ms < limits.BUILD_WALL_MS:
        return ClockRefusal.CERTAINLY_WRONG
    return None


def sighting_after(reading: Reading, epoch: int, sighting: Sighting | None) -> Sighting:
    """Return the sighting to store while untrusted: the first one of a stable stretch."""
    here = Sighting(epoch, reading.boot_ms, reading.wall_ms)
    if sighting is None or sighting.epoch != epoch:
        return here
    drift = reading.wall_ms - sighting.wall_ms - (reading.boot_ms - sighting.boot_ms)
    return sighting if abs(drift) <= limits.CLOCK_BACK_MS_MAX else here


def first_mark(reading: Reading) -> Mark:
    """Return the mark of a new store, never below the build date."""
    return Mark(max(reading.wall_ms, limits.BUILD_WALL_MS), 1, reading.boot_ms)


def mark_after(now: Now, mark: Mark) -> Mark:
    """Return the mark to store with a commit; only a trusted clock moves it, only upwards."""
    if now.trust is not Trust.TRUSTED or now.at_ms < mark.wall_ms:
        return mark
    return Mark(now.at_ms, now.epoch, now.reading.boot_ms)


def _implausible(reading: Reading, epoch: int, mark: Mark) -> bool:
    if reading.wall_ms < max(limits.BUILD_WALL_MS, mark.wall_ms - limits.CLOCK_BACK_MS_MAX):
        return True
    if epoch != mark.epoch:
        return False
    expected = mark.wall_ms + reading.boot_ms - mark.boot_ms
    return abs(reading.wall_ms - expected) > limits.CLOCK_STEP_MS_MAX

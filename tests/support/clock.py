"""A machine's clocks in the hand of a test, and the store's part of the clock rule."""

from qinglong_edge.domain import limits
from qinglong_edge.domain.tick import (
    Boot,
    Mark,
    Now,
    Reading,
    Sighting,
    Trust,
    deadline_ms,
    epoch_of,
    first_mark,
    mark_after,
    sighting_after,
    tick_of,
    trust_of,
)

WALL_MS = limits.BUILD_WALL_MS + 30 * 86_400_000
BOOT_MS = 5_000


class FakeClocks:
    """Answer `ports.ambient.Clocks`; every value may also be set directly."""

    def __init__(
        self, *, wall_ms: int = WALL_MS, boot_ms: int = BOOT_MS, boot_id: str = "boot-1"
    ) -> None:
        self.wall_ms = wall_ms
        self.boot_ms = boot_ms
        self.boot_id = boot_id
        self._boots = 1
        self._monotonic_ms = boot_ms

    def read(self) -> Reading:
        return Reading(self.wall_ms, self.boot_ms, self.boot_id)

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Let time pass: all clocks move alike."""
        self.wall_ms += ms
        self.boot_ms += ms
        self._monotonic_ms += ms

    def step_wall(self, ms: int) -> None:
        """Set the wall clock forward or back, as NTP or a person would."""
        self.wall_ms += ms

    def reboot(self, wall_ms: int | None = None) -> None:
        """Start a new boot; without a battery the wall clock starts somewhere else."""
        self._boots += 1
        self.boot_id = f"boot-{self._boots}"
        self.boot_ms = BOOT_MS
        self._monotonic_ms = BOOT_MS
        if wall_ms is not None:
            self.wall_ms = wall_ms


class StoredTime:
    """Play the store: remember boots, mark and sighting, and read the clocks through them."""

    def __init__(self, clocks: FakeClocks) -> None:
        reading = clocks.read()
        self.clocks = clocks
        self.newest = Boot(1, reading.boot_id, reading.wall_ms, reading.boot_ms)
        self.mark: Mark = first_mark(reading)
        self.sighting: Sighting | None = None

    def now(self) -> Now:
        """Return the instant that a transaction would decide with."""
        reading = self.clocks.read()
        epoch = epoch_of(reading, self.newest)
        return Now(
            tick_of(epoch, reading.boot_ms),
            deadline_ms(reading, epoch, self.mark),
            reading,
            trust_of(reading, epoch, self.mark, self.sighting),
        )

    def commit(self, now: Now) -> None:
        """Store what every commit stores beside its rows."""
        reading = now.reading
        if now.epoch != self.newest.epoch:
            self.newest = Boot(now.epoch, reading.boot_id, reading.wall_ms, reading.boot_ms)
        trusted = now.trust is Trust.TRUSTED
        self.sighting = None if trusted else sighting_after(reading, now.epoch, self.sighting)
        self.mark = mark_after(now, self.mark)

    def settle(self, now: Now) -> None:
        """Believe the wall clock again; the only place where the mark may go down."""
        reading = now.reading
        if now.epoch != self.newest.epoch:
            self.newest = Boot(now.epoch, reading.boot_id, reading.wall_ms, reading.boot_ms)
        self.mark = Mark(reading.wall_ms, now.epoch, reading.boot_ms)
        self.sighting = None

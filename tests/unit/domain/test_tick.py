from typing import NamedTuple

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import InvariantBroken
from qinglong_edge.domain.tick import (
    Boot,
    ClockRefusal,
    Mark,
    Now,
    Reading,
    Sighting,
    Trust,
    deadline_ms,
    elapsed_ms,
    epoch_of,
    first_mark,
    mark_after,
    refuse_word,
    shown_at_ms,
    sighting_after,
    tick_of,
    trust_of,
)
from tests.support.builders import at, tick
from tests.support.clock import BOOT_MS, WALL_MS, FakeClocks, StoredTime

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
BUILD_MS = limits.BUILD_WALL_MS
MARK = Mark(WALL_MS, 1, BOOT_MS)


def reading(wall_ms: int, after_ms: int = 0) -> Reading:
    """Return a look at clocks that have run `after_ms` since the mark."""
    return Reading(wall_ms, BOOT_MS + after_ms, "boot-1")


def test_a_tick_is_the_epoch_above_42_bits_of_milliseconds() -> None:
    assert tick_of(1, 0) == 1 << 42
    assert tick_of(3, 17) == (3 << 42) + 17
    assert tick_of(limits.EPOCH_MAX, 2**42 - 1) == 2**63 - 1


@pytest.mark.scenario(85)
@pytest.mark.parametrize(
    ("epoch", "boot_ms"), [(0, 0), (-1, 0), (limits.EPOCH_MAX + 1, 0), (1, -1), (1, 2**42)]
)
def test_a_tick_out_of_range_is_a_bug(epoch: int, boot_ms: int) -> None:
    with pytest.raises(InvariantBroken):
        tick_of(epoch, boot_ms)


@pytest.mark.adr("0002", "1")
def test_every_tick_of_an_earlier_boot_is_in_the_past() -> None:
    assert tick_of(1, 2**42 - 1) < tick_of(2, 0)
    assert tick(10**9, epoch=1) < at(0, epoch=2).tick


@pytest.mark.parametrize(
    ("later", "earlier", "passed"),
    [
        (tick_of(1, 7), tick_of(1, 7), 0),
        (tick_of(1, 9), tick_of(1, 7), 2),
        (tick_of(1, 7), tick_of(1, 9), -2),
        (tick_of(2, 7), tick_of(1, 7), None),
        (tick_of(1, 7), tick_of(2, 7), None),
        (tick_of(2, 0), tick_of(1, 2**42 - 1), None),
    ],
)
def test_only_ticks_of_one_boot_have_a_distance(
    later: int, earlier: int, passed: int | None
) -> None:
    assert elapsed_ms(later, earlier) == passed


@pytest.mark.scenario(227, 228)
@pytest.mark.adr("0002", "1")
@pytest.mark.parametrize("step_ms", [0, -YEAR_MS, YEAR_MS, -WALL_MS, 10 * YEAR_MS])
def test_a_wall_jump_changes_no_tick(step_ms: int) -> None:
    clocks = FakeClocks()
    time = StoredTime(clocks)
    before = time.now().tick
    clocks.step_wall(step_ms)
    assert time.now().tick == before
    clocks.advance(30_000)
    assert time.now().tick == before + 30_000


def test_a_new_boot_id_opens_the_next_epoch() -> None:
    newest = Boot(4, "boot-1", WALL_MS, BOOT_MS)
    assert epoch_of(reading(WALL_MS), None) == 1
    assert epoch_of(reading(WALL_MS), newest) == 4
    assert epoch_of(Reading(WALL_MS, 0, "boot-2"), newest) == 5


@pytest.mark.parametrize(
    ("wall_ms", "after_ms", "epoch", "deadline"),
    [
        (WALL_MS + 10, 10, 1, WALL_MS + 10),
        (WALL_MS + 90, 10, 1, WALL_MS + 90),
        (WALL_MS - 90, 10, 1, WALL_MS + 10),
        (0, 10, 1, WALL_MS + 10),
        (0, -BOOT_MS, 1, WALL_MS),
        (0, 0, 2, WALL_MS + BOOT_MS),
        (0, 60_000, 2, WALL_MS + BOOT_MS + 60_000),
        (WALL_MS + YEAR_MS, 0, 2, WALL_MS + YEAR_MS),
    ],
)
def test_deadline_time_is_the_wall_but_never_less_than_the_mark_and_what_passed(
    wall_ms: int, after_ms: int, epoch: int, deadline: int
) -> None:
    assert deadline_ms(reading(wall_ms, after_ms), epoch, MARK) == deadline


class Backwards(NamedTuple):
    name: str
    wall_ms: int
    epoch: int


BACKWARDS = [
    Backwards("five minutes back", WALL_MS - 300_000, 1),
    Backwards("an hour back", WALL_MS - 3_600_000, 1),
    Backwards("1970", 0, 1),
    Backwards("1970 after a reboot", 0, 2),
    Backwards("the last shutdown after a reboot", WALL_MS - 60_000, 2),
]


@pytest.mark.scenario(42, 44, 227)
@pytest.mark.adr("0002", "2")
@pytest.mark.parametrize("case", BACKWARDS, ids=[case.name for case in BACKWARDS])
def test_a_clock_that_runs_backwards_never_revives_an_expired_approval(case: Backwards) -> None:
    """Upstream revives it; deadline time does not (W4). The mark was stored at the expiry."""
    expires_at_ms = WALL_MS
    for after_ms in (0, 1, 600_000):
        look = reading(case.wall_ms + after_ms, after_ms)
        assert deadline_ms(look, case.epoch, MARK) >= expires_at_ms


class Judged(NamedTuple):
    name: str
    wall_ms: int
    after_ms: int
    epoch: int
    trust: Trust


PLAUSIBLE = [
    Judged("as expected", WALL_MS + 10, 10, 1, Trust.TRUSTED),
    Judged("exactly five minutes behind the mark", WALL_MS - 300_000, 0, 1, Trust.TRUSTED),
    Judged("one more", WALL_MS - 300_001, 0, 1, Trust.UNTRUSTED),
    Judged("behind the mark, later epoch", WALL_MS - 300_001, 0, 2, Trust.UNTRUSTED),
    Judged("exactly a day ahead", WALL_MS + DAY_MS, 0, 1, Trust.TRUSTED),
    Judged("one more", WALL_MS + DAY_MS + 1, 0, 1, Trust.UNTRUSTED),
    Judged("a day ahead of what passed", WALL_MS + DAY_MS + 7, 7, 1, Trust.TRUSTED),
    Judged("one more", WALL_MS + DAY_MS + 8, 7, 1, Trust.UNTRUSTED),
    Judged("a day behind what passed", WALL_MS + DAY_MS, 2 * DAY_MS, 1, Trust.TRUSTED),
    Judged("one more", WALL_MS + DAY_MS - 1, 2 * DAY_MS, 1, Trust.UNTRUSTED),
    Judged("switched off for a year", WALL_MS + YEAR_MS, 0, 2, Trust.TRUSTED),
    Judged("1970", 0, 0, 1, Trust.UNTRUSTED),
    Judged("1970 after a reboot", 0, 0, 2, Trust.UNTRUSTED),
]


@pytest.mark.adr("0002", "3")
@pytest.mark.parametrize("case", PLAUSIBLE, ids=[case.name for case in PLAUSIBLE])
def test_each_condition_alone_makes_a_clock_untrusted(case: Judged) -> None:
    assert trust_of(reading(case.wall_ms, case.after_ms), case.epoch, MARK, None) is case.trust


@pytest.mark.adr("0002", "3")
@pytest.mark.parametrize(
    ("wall_ms", "trust"), [(BUILD_MS, Trust.TRUSTED), (BUILD_MS - 1, Trust.UNTRUSTED)]
)
def test_no_honest_clock_shows_less_than_the_build_date(wall_ms: int, trust: Trust) -> None:
    """The mark stands at the build date, so that only the second condition speaks."""
    assert trust_of(reading(wall_ms), 1, Mark(BUILD_MS, 1, BOOT_MS), None) is trust


STRANGE_MS = WALL_MS + YEAR_MS
SEEN = Sighting(1, BOOT_MS, STRANGE_MS)


@pytest.mark.adr("0002", "4")
@pytest.mark.parametrize(
    ("after_ms", "drift_ms", "trust"),
    [
        (0, 0, Trust.UNTRUSTED),
        (599_999, 0, Trust.UNTRUSTED),
        (600_000, 0, Trust.SETTLED),
        (600_000, 300_000, Trust.SETTLED),
        (600_000, 300_001, Trust.UNTRUSTED),
        (600_000, -300_000, Trust.SETTLED),
        (600_000, -300_001, Trust.UNTRUSTED),
        (DAY_MS, 0, Trust.SETTLED),
        (DAY_MS, 300_001, Trust.UNTRUSTED),
    ],
)
def test_a_strange_clock_settles_after_ten_stable_minutes(
    after_ms: int, drift_ms: int, trust: Trust
) -> None:
    look = reading(STRANGE_MS + after_ms + drift_ms, after_ms)
    assert trust_of(look, 1, MARK, SEEN) is trust


def test_a_clock_that_is_behind_settles_as_well() -> None:
    seen = Sighting(1, BOOT_MS, BUILD_MS)
    assert trust_of(reading(BUILD_MS + 600_000, 600_000), 1, MARK, seen) is Trust.SETTLED
    first = seen._replace(wall_ms=BUILD_MS - 600_000)
    assert trust_of(reading(BUILD_MS, 600_000), 1, MARK, first) is Trust.SETTLED


def test_a_clock_before_the_build_date_never_settles() -> None:
    seen = Sighting(1, BOOT_MS, 0)
    for after_ms in (600_000, DAY_MS, YEAR_MS):
        assert trust_of(reading(after_ms, after_ms), 1, MARK, seen) is Trust.UNTRUSTED


@pytest.mark.parametrize("epoch", [2, 3])
def test_a_sighting_of_another_boot_settles_nothing(epoch: int) -> None:
    look = reading(BUILD_MS + 600_000, 600_000)
    assert trust_of(look, epoch, MARK, Sighting(1, BOOT_MS, BUILD_MS)) is Trust.UNTRUSTED


@pytest.mark.parametrize("sighting", [SEEN, Sighting(1, BOOT_MS, 0), Sighting(9, 0, 0), None])
def test_a_reading_that_became_plausible_again_is_trusted_at_once(
    sighting: Sighting | None,
) -> None:
    assert trust_of(reading(WALL_MS + 60_000, 60_000), 1, MARK, sighting) is Trust.TRUSTED


@pytest.mark.parametrize(
    ("wall_ms", "after_ms", "epoch", "kept"),
    [
        (STRANGE_MS + 60_000, 60_000, 1, True),
        (STRANGE_MS + 60_000 + 300_000, 60_000, 1, True),
        (STRANGE_MS + 60_000 - 300_000, 60_000, 1, True),
        (STRANGE_MS + 60_000 + 300_001, 60_000, 1, False),
        (STRANGE_MS + 60_000 - 300_001, 60_000, 1, False),
        (STRANGE_MS + 60_000, 60_000, 2, False),
    ],
)
def test_the_first_sighting_of_a_stable_stretch_is_kept(
    wall_ms: int, after_ms: int, epoch: int, *, kept: bool
) -> None:
    look = reading(wall_ms, after_ms)
    here = Sighting(epoch, look.boot_ms, wall_ms)
    assert sighting_after(look, epoch, SEEN) == (SEEN if kept else here)
    assert sighting_after(look, epoch, None) == here


def test_a_wandering_clock_never_settles() -> None:
    clocks = FakeClocks()
    time = StoredTime(clocks)
    clocks.step_wall(YEAR_MS)
    for _ in range(10):
        now = time.now()
        assert now.trust is Trust.UNTRUSTED
        time.commit(now)
        clocks.advance(120_000)
        clocks.step_wall(300_001)


@pytest.mark.parametrize("step_ms", [YEAR_MS, -3_600_000])
def test_a_stable_stranger_is_believed_after_ten_minutes_and_only_then(step_ms: int) -> None:
    clocks = FakeClocks()
    time = StoredTime(clocks)
    clocks.step_wall(step_ms)
    for _ in range(10):
        now = time.now()
        assert now.trust is Trust.UNTRUSTED
        time.commit(now)
        clocks.advance(60_000)
    now = time.now()
    assert now.trust is Trust.SETTLED
    assert time.mark == MARK
    time.settle(now)
    assert time.now().trust is Trust.TRUSTED
    assert time.now().at_ms == clocks.wall_ms


@pytest.mark.parametrize(
    ("wall_ms", "mark_ms"),
    [(0, BUILD_MS), (BUILD_MS - 1, BUILD_MS), (BUILD_MS, BUILD_MS), (BUILD_MS + 1, BUILD_MS + 1)],
)
def test_the_first_mark_is_never_below_the_build_date(wall_ms: int, mark_ms: int) -> None:
    assert first_mark(reading(wall_ms)) == Mark(mark_ms, 1, BOOT_MS)


@pytest.mark.adr("0002", "5")
@pytest.mark.parametrize(
    ("now", "after"),
    [
        (at(0), MARK),
        (at(1), Mark(WALL_MS + 1, 1, BOOT_MS + 1)),
        (at(5, epoch=2, wall_ms=WALL_MS), Mark(WALL_MS, 2, BOOT_MS + 5)),
        (at(5, wall_ms=WALL_MS - 1), MARK),
        (at(9, trust=Trust.UNTRUSTED), MARK),
        (at(9, trust=Trust.SETTLED), MARK),
    ],
)
def test_only_a_trusted_clock_moves_the_mark_and_only_upwards(now: Now, after: Mark) -> None:
    assert mark_after(now, MARK) == after


def test_the_epoch_of_an_instant_is_that_of_its_tick() -> None:
    assert at(0, epoch=7).epoch == 7


@pytest.mark.adr("0002", "5")
@pytest.mark.parametrize(
    ("at_ms", "earlier", "stamp"),
    [
        (50, (), 50),
        (50, (None,), 50),
        (50, (49, None), 50),
        (50, (50,), 50),
        (50, (51, 7), 51),
        (50, (None, 99), 99),
        (-5, (), 0),
        (-5, (None,), 0),
    ],
)
def test_a_stamp_is_never_below_an_earlier_one(
    at_ms: int, earlier: tuple[int | None, ...], stamp: int
) -> None:
    assert at(0, wall_ms=at_ms).stamp(*earlier) == stamp


BOOTS = (Boot(2, "b", WALL_MS - 500_000, 900), Boot(1, "a", WALL_MS - DAY_MS, 100))


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (tick_of(3, BOOT_MS), WALL_MS),
        (tick_of(3, BOOT_MS + 7), WALL_MS + 7),
        (tick_of(3, BOOT_MS - 7), WALL_MS - 7),
        (tick_of(2, 1_000), WALL_MS - 500_000 + 100),
        (tick_of(1, 100), WALL_MS - DAY_MS),
        (tick_of(9, 100), 0),
    ],
)
def test_a_person_sees_a_tick_as_wall_time(shown: int, expected: int) -> None:
    assert shown_at_ms(shown, at(0, epoch=3), BOOTS) == expected


def test_a_tick_without_its_boot_and_one_before_1970_show_as_zero() -> None:
    assert shown_at_ms(tick_of(2, 1), at(0, epoch=3)) == 0
    assert shown_at_ms(tick_of(3, 0), at(0, epoch=3, wall_ms=10)) == 0
    assert shown_at_ms(tick_of(1, 0), at(0, epoch=3), (Boot(1, "a", 5, 10),)) == 0


@pytest.mark.parametrize(
    ("now", "refusal"),
    [
        (at(0), ClockRefusal.TRUSTED_ALREADY),
        (at(0, wall_ms=BUILD_MS, trust=Trust.UNTRUSTED), None),
        (at(0, wall_ms=BUILD_MS - 1, trust=Trust.UNTRUSTED), ClockRefusal.CERTAINLY_WRONG),
        (at(0, wall_ms=BUILD_MS, trust=Trust.SETTLED), None),
    ],
)
def test_a_word_is_believed_about_a_clock_that_may_be_right(
    now: Now, refusal: ClockRefusal | None
) -> None:
    assert refuse_word(now) is refusal

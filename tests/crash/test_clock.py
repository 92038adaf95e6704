"""Jump the clocks of real children, and reboot them: ticks decide lengths, nothing ever revives."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from qinglong_edge.executor.ambient import SystemClocks
from tests.support.crash import (
    BOT_FILE,
    CYCLE,
    STATUS,
    VERIFY,
    Ended,
    Place,
    Workshop,
    approve,
    cancel,
    dispatch,
    propose,
    ready,
    show,
)
from tests.support.crash_driver import Call, Shift, Spot
from tests.support.crash_oracle import Row, check_moved, check_view

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
NOW = SystemClocks().read()

HOUR_BACK = Shift(wall_ms=-HOUR_MS)
IN_1970 = Shift(wall_ms=MINUTE_MS - NOW.wall_ms)
TEN_YEARS = Shift(wall_ms=3_653 * DAY_MS)
WALLS = {"hour_back": HOUR_BACK, "in_1970": IN_1970, "ten_years": TEN_YEARS}

REBOOT = Shift(boot_ms=5_000 - NOW.boot_ms, boot_id="another-boot")
REBOOTS = {
    "kept_time": REBOOT,
    "minutes_lost": REBOOT._replace(wall_ms=-3 * MINUTE_MS),  # still believed
    "hour_back": REBOOT._replace(wall_ms=-HOUR_MS),
    "in_1970": REBOOT._replace(wall_ms=IN_1970.wall_ms),
    "ten_years": REBOOT._replace(wall_ms=TEN_YEARS.wall_ms),
}
ALL = {**WALLS, **{f"reboot_{name}": shift for name, shift in REBOOTS.items()}}
WORKS_ON = {"reboot_kept_time", "reboot_minutes_lost"}  # the clock is believed, nothing expired
DUE = Call("action.list", {"state": "due", "limit": 20, "cursor": None}, BOT_FILE)


def later(shift: Shift, ms: int) -> Shift:
    """Return the same clocks after some time has passed."""
    return shift._replace(wall_ms=shift.wall_ms + ms, boot_ms=shift.boot_ms + ms)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with closing(Workshop(tmp_path_factory.mktemp("clock"))) as made:
        yield made


def check_stamps(row: Row) -> None:
    stamps = [row.started_at_ms, row.completed_at_ms, row.updated_at_ms]
    known = [stamp for stamp in stamps if stamp is not None]
    assert known == sorted(known), f"a stamp went back: {row}"


def states(ended: Ended) -> list[str]:
    return [answer["body"]["effective_state"] for answer in ended.answers]


STEPS = [
    Spot("before", "claim_start"),
    Spot("after", "claim_start"),
    Spot("inside", "execute"),
    Spot("before", "complete_start"),
    Spot("after", "complete_start"),
    Spot("inside", "execute", 2),
    Spot("before", "complete"),
]


@pytest.mark.scenario(227, 228)
@pytest.mark.parametrize("spot", STEPS, ids=lambda spot: f"{spot.moment}_{spot.step}_{spot.nth}")
@pytest.mark.parametrize("wall", WALLS)
def test_a_jump_of_the_wall_within_a_cycle_loses_no_verdict(
    shop: Workshop, wall: str, spot: Spot
) -> None:
    place = shop.home(*ready("good", "good"))
    before = place.view()
    # A barrier is not passed under a clock that cannot be believed; a verdict is always recorded.
    waits = STEPS.index(spot) < STEPS.index(Spot("before", "complete_start"))
    ended = place.live(CYCLE, jumps=[[spot, WALLS[wall]]])
    assert ended.exits == [10 if waits else 0], ended
    after = place.view()
    check_moved(before, after)
    statuses = {name: row.status for name, row in after.actions.items()}
    assert statuses == {"apr-1": "succeeded", "apr-2": "retry_wait" if waits else "succeeded"}
    assert after.begun == ({"dsp-1": 1} if waits else {"dsp-1": 1, "dsp-2": 1})
    assert place.live(VERIFY, CYCLE).exits == [0, 0], "the clock was put right"
    last = place.view()
    check_moved(after, last)
    assert {row.status for row in last.actions.values()} == {"succeeded"}
    for row in last.actions.values():
        check_stamps(row)


@pytest.mark.scenario(227)
@pytest.mark.parametrize("wall", WALLS)
def test_a_clock_that_cannot_be_believed_lets_nothing_new_in(shop: Workshop, wall: str) -> None:
    place = shop.home(propose(1), *ready("good", "good")[2:], propose(3))
    place.log_in(1, clock=WALLS[wall])
    strange = place.live(propose(4), approve(1), clock=WALLS[wall])
    assert (strange.exits, strange.errors) == ([3, 3], ["clock_untrusted"] * 2)
    if wall != "ten_years":  # where every open request has expired
        assert place.live(cancel(3), clock=WALLS[wall]).exits == [0]
    assert place.live(CYCLE, clock=WALLS[wall]).exits == [10]
    assert place.view().begun == {}, "something was started under a clock nobody believes"
    status = place.live(STATUS, clock=WALLS[wall]).answers[0]["body"]
    assert (status["clock"]["trusted"], status["health"]) == (False, "attention")
    place.log_in(2)
    right = place.live(approve(1), propose(4), CYCLE)
    assert right.exits == [0, 0, 0], "the clock was put right"
    assert place.view().begun == {"dsp-1": 1, "dsp-2": 1}


@pytest.mark.scenario(227)
@pytest.mark.parametrize("clock", ALL)
def test_an_expired_approval_never_revives(shop: Workshop, clock: str) -> None:
    given = (propose(1, lifetime_ms=MINUTE_MS), approve(1, hold=True))
    after_expiry = later(Shift(), 2 * MINUTE_MS)
    place = shop.place(
        *({"calls": [call]} for call in (*given, propose(3, lifetime_ms=MINUTE_MS))),
        {"calls": [propose(2)], "clock": after_expiry},
    )
    assert states(place.live(show(1), show(3), clock=after_expiry)) == ["expired", "expired"]
    shift = ALL[clock]
    place.log_in(1, clock=shift)
    strange = place.live(dispatch(1), approve(3), cancel(3), CYCLE, clock=shift)
    assert strange.exits[:3] == [3, 3, 3], strange
    assert set(strange.errors[:2]) <= {"approval_expired", "clock_untrusted"}
    assert states(place.live(show(1), show(3), clock=shift)) == ["expired", "expired"]
    believed = later(shift, 12 * MINUTE_MS)
    assert place.live(CYCLE, clock=believed).exits == [0]
    place.log_in(2, clock=believed)
    later_on = place.live(dispatch(1), approve(3), clock=believed)
    assert later_on.exits == [3, 3], later_on
    assert set(later_on.errors) <= {"approval_expired", "clock_untrusted"}
    assert states(place.live(show(1), show(3), clock=believed)) == ["expired", "expired"]
    after = place.view()
    assert [after.actions[f"apr-{nth}"].dispatch_id for nth in (1, 3)] == [None, None]
    assert after.begun == {}
    settled = [row.state for row in after.actions.values()]
    stable = clock in {"hour_back", "ten_years", "reboot_hour_back"}
    assert (settled == ["expired"] * 3) == stable, "believing a new time voids what is open"


@pytest.mark.scenario(227)
@pytest.mark.parametrize("clock", ALL)
def test_no_lease_is_stuck_whatever_the_clock_says(shop: Workshop, clock: str) -> None:
    left = {"calls": [CYCLE], "kill": Spot("after", "claim")}
    place = shop.place(*({"calls": [call]} for call in ready("bad", "good")), left)
    before = place.view()
    assert [row.status for row in before.actions.values()] == ["leased", "leased"]
    place.live(CYCLE, clock=ALL[clock])
    seen = place.view()
    check_moved(before, seen)
    assert not {"leased", "pending"} & {row.status for row in seen.actions.values()}
    assert seen.begun == ({"dsp-2": 1} if clock in WORKS_ON else {})
    right = REBOOT if clock.startswith("reboot") else Shift()
    place.live(CYCLE, clock=right)
    after = place.view()
    check_moved(seen, after)
    # Ten years after a reboot cannot be told from ten years in a drawer: the approval has expired.
    gone = clock == "reboot_ten_years"
    assert after.actions["apr-2"].status == ("blocked" if gone else "succeeded")
    assert after.begun == ({} if gone else {"dsp-2": 1})


def test_leases_of_an_earlier_boot_are_due_at_once(shop: Workshop) -> None:
    left = {"calls": [CYCLE], "kill": Spot("after", "claim")}
    place = shop.place(*({"calls": [call]} for call in ready("bad", "good")), left)
    same_boot, next_boot = place.live(DUE), place.live(DUE, clock=REBOOT)
    assert same_boot.answers[0]["body"]["items"] == []
    items = next_boot.answers[0]["body"]["items"]
    assert [item["dispatch_id"] for item in items] == ["dsp-1", "dsp-2"]
    assert place.view().sizes["boots"] == 1, "a look stored the boot"
    place.live(CYCLE, clock=REBOOT)
    assert place.view().sizes["boots"] == 2
    assert place.view().begun == {"dsp-2": 1}


@pytest.mark.scenario(128, 228)
@pytest.mark.parametrize("clock", ALL)
def test_what_executed_before_a_jump_or_a_reboot_waits_for_a_person(
    shop: Workshop, clock: str
) -> None:
    left = {"calls": [CYCLE], "kill": Spot("inside", "execute")}
    place = shop.place(*({"calls": [call]} for call in ready("good")), left)
    before = place.view()
    assert before.actions["apr-1"].status == "executing"
    shift = ALL[clock]
    ended = place.live(CYCLE, CYCLE, STATUS, clock=shift)
    backlog = ended.answers[2]["body"]["backlog"]
    assert (backlog["manual_required"], backlog["executing"], backlog["due"]) == (1, 0, 0)
    assert [answer["body"]["recovery"]["claimed"] for answer in ended.answers[:2]] == [1, 0]
    after = place.view()
    check_moved(before, after)
    assert after.begun == {}
    assert states(place.live(show(1), clock=shift)) == ["manual_required"]
    check_stamps(after.actions["apr-1"])


@pytest.mark.scenario(228)
@pytest.mark.parametrize(
    "slept",
    [Shift(boot_ms=10 * MINUTE_MS), TEN_YEARS._replace(boot_ms=10 * MINUTE_MS)],
    ids=["suspended", "suspended_and_ten_years"],
)
def test_a_late_completion_wins_if_it_is_first(shop: Workshop, slept: Shift) -> None:
    place = shop.home(*ready("copying"))
    ended = place.live(CYCLE, jumps=[[Spot("inside", "execute"), slept]])
    assert ended.exits == [0], ended
    done = place.view()
    check_view(done)
    assert (done.actions["apr-1"].status, done.begun) == ("succeeded", {"dsp-1": 1})
    check_stamps(done.actions["apr-1"])
    # What another reader saw meanwhile, and what a power cut would have left.
    meanwhile = Place(place.directory, place.nursery, state=place.directory / "mid")
    seen = meanwhile.live(STATUS, CYCLE, STATUS, clock=slept)
    waits = [seen.answers[nth]["body"]["backlog"] for nth in (0, 2)]
    assert [each["recovery_due"] for each in waits] == [1, 0]
    assert [each["manual_required"] for each in waits] == [0, 1]
    assert seen.answers[1]["body"]["recovery"]["scanned"] == 1
    left = meanwhile.view()
    assert (left.actions["apr-1"].status, left.begun) == ("executing", {"dsp-1": 1})

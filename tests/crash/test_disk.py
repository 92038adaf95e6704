"""Fill the disk, or take the right to write away, at each step of real commands.

The state lies on a small file system of its own, mounted where only its children see it. A full
disk comes in the moment before a commit; what follows must not depend on luck afterwards.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.crash import (
    CYCLE,
    STATUS,
    VERIFY,
    Ended,
    Place,
    Workshop,
    add_agent,
    approve,
    cancel,
    dispatch,
    init,
    login,
    propose,
    ready,
    reject,
    settle,
    show,
)
from tests.support.crash_driver import Call, Shift, Spot
from tests.support.crash_oracle import check_converged, check_moved, check_view
from tests.support.disk import Disk, disk, needs_disk

pytestmark = needs_disk


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with closing(Workshop(tmp_path_factory.mktemp("disk"))) as made:
        yield made


class Lodged(NamedTuple):
    """Hold a place whose state lies on a small disk."""

    place: Place
    disk: Disk

    def full_at(self, call: Call, spot: Spot, **more: object) -> Ended:
        """Run a command under which the disk fills at a point."""
        ended = self.place.live(call, runs=[[spot, self.disk.fill]], **more)
        assert (spot.moment, spot.step) in ended.points, f"{spot} was never reached: {ended}"
        return ended


@pytest.fixture
def lodged(shop: Workshop, tmp_path: Path) -> Iterator[Lodged]:
    with disk(tmp_path) as made:
        place = shop.empty()
        place.state, place.seen = made.point / "state", made.inside / "state"
        place.prefix = (*made.enter, str(place.directory))
        yield Lodged(place, made)


def settle_in(lodged: Lodged, *calls: Call) -> Place:
    """Initialise the state on the disk and bring it to where these calls lead."""
    place = lodged.place
    assert place.live(init()).exits == [0]
    place.log_in()
    assert set(place.live(add_agent(), *calls).exits) == {0}
    return place


BIND = Call("role.bind", {"subject": "agent:bot", "role": "viewer", "mutation_id": "bind-1"})
ONE_COMMIT = {
    "propose": ((), propose()),
    "approve": ((propose(),), approve(hold=True)),
    "reject": ((propose(),), reject()),
    "consume": ((propose(), approve(hold=True)), dispatch()),
    "approve_consume": ((propose(),), approve()),
    "cancel": (ready("good"), cancel()),
    "identity": ((), add_agent("eve", "e" * 42 + "A")),
    "bind_role": ((), BIND),
    "session": ((), login(1)),
}


@pytest.mark.scenario(226)
@pytest.mark.parametrize("step", ONE_COMMIT)
def test_a_commit_without_space_stores_nothing_and_is_done_later(lodged: Lodged, step: str) -> None:
    given, call = ONE_COMMIT[step]
    place = settle_in(lodged, *given)
    before = place.view()
    full = lodged.full_at(call, Spot("before", step))
    assert (full.exits, full.errors) == ([4], ["disk_full"]), full
    assert place.view() == before
    still = place.live(call, STATUS, VERIFY)
    assert (still.exits[0], still.errors[0]) == (4, "disk_full")
    assert (still.exits[1] in {0, 10}, still.exits[2]) == (True, 0), still
    lodged.disk.free()
    assert place.live(call, VERIFY).exits == [0, 0]
    after = place.view()
    check_moved(before, after)
    assert after[:2] != before[:2]


class Worked(NamedTuple):
    """Say which page is worked, and what of it has been done when the space ends at a step."""

    kinds: tuple[str, ...]
    begun: set[str]
    finally_: dict[str, str]
    way: str | None = None


DONE, UNKNOWN = "succeeded", "executing"
CYCLES = {
    "claim_start": Worked(("good", "good"), set(), {"apr-1": DONE, "apr-2": DONE}),
    "complete_start": Worked(("good", "good"), {"dsp-1"}, {"apr-1": UNKNOWN, "apr-2": DONE}),
    "complete": Worked(("good",), {"dsp-1"}, {"apr-1": UNKNOWN}),
    "claim": Worked(("bad", "good"), set(), {"apr-1": "retry_wait", "apr-2": DONE}),
    "release": Worked(("bad", "good"), set(), {"apr-2": DONE}),
    "start": Worked(("bad", "good"), set(), {"apr-1": "retry_wait", "apr-2": DONE}),
    "put_back": Worked(("stopping", "good"), {"dsp-1"}, {"apr-1": DONE, "apr-2": DONE}),
    "expire": Worked(("silent",), {"dsp-1"}, {"apr-1": UNKNOWN}),
    "renew": Worked(("slow",), {"dsp-1"}, {"apr-1": UNKNOWN}),
    "whole": Worked(("publish", "publish"), set(), {"apr-1": DONE, "apr-2": DONE}),
    "effect": Worked(("publish",), set(), {"apr-1": UNKNOWN}, "split"),
}
ALMOST = Shift(boot_ms=99_600, monotonic_ms=99_600)


@pytest.mark.scenario(226)
@pytest.mark.parametrize("step", CYCLES)
def test_a_cycle_without_space_executes_nothing_unstarted_and_goes_on(
    lodged: Lodged, step: str
) -> None:
    work = CYCLES[step]
    place = settle_in(lodged, *ready(*work.kinds))
    before = place.view()
    jumps = [[Spot("after", "claim_start"), ALMOST]] if step == "renew" else []
    full = lodged.full_at(CYCLE, Spot("before", step), jumps=jumps, way=work.way)
    assert full.exits != [0], "a cycle that could not store its work said that all is well"
    if full.exits != [4]:
        assert full.answers[0]["body"]["dispatch"]["unavailable"] > 0, full
    seen = place.view()
    check_moved(before, seen)
    assert set(seen.begun) == work.begun
    place.live(CYCLE, VERIFY)  # the log was folded in, which may have made a little room
    later = place.view()
    check_moved(seen, later)
    assert set(seen.begun) <= set(later.begun)
    assert set(later.begun.values()) <= {1}, "something was executed twice"
    lodged.disk.free()
    assert place.live(CYCLE, VERIFY).exits[1] == 0
    after = place.view()
    check_moved(later, after)
    statuses = {name: row.status for name, row in after.actions.items()}
    squeezed = {name for name in later.begun if name not in seen.begun}
    for name, state in work.finally_.items():
        ran_without_room = after.actions[name].dispatch_id in squeezed
        assert statuses[name] in ({state, UNKNOWN} if ran_without_room else {state})
    assert not {"leased", "pending"} & set(statuses.values())


LATER = Shift(wall_ms=120_000, boot_ms=120_000, monotonic_ms=120_000)
LOOKED = {
    "claim_scan": ("publish", CYCLE, DONE),
    "observe": ("good", CYCLE, UNKNOWN),
    "resolve_evidence": ("publish", CYCLE, DONE),
    "resolve_person": ("good", settle(1, 3), "blocked"),
}


@pytest.mark.scenario(155, 226)
@pytest.mark.adr("0033", "6.3")
@pytest.mark.parametrize("step", LOOKED)
def test_an_outcome_that_cannot_be_settled_for_want_of_space_stays_unknown(
    lodged: Lodged, step: str
) -> None:
    kind, call, ends = LOOKED[step]
    place = settle_in(lodged, *ready(kind))
    spot = Spot("after", "effect" if kind == "publish" else "claim_start")
    place.die(CYCLE, kill=spot, way="split")
    if call != CYCLE:
        place.live(CYCLE)
    before = place.view()
    full = lodged.full_at(call, Spot("before", step))
    assert full.exits == [4], full
    seen = place.view()
    check_moved(before, seen)
    assert (seen.statuses, seen.sizes["resolutions"]) == ({"apr-1": UNKNOWN}, 0)
    lodged.disk.free()
    assert place.live(call, VERIFY, clock=LATER).exits[1] == 0
    after = place.view()
    check_moved(seen, after)
    check_converged(after)
    assert after.statuses == {"apr-1": ends}


@pytest.mark.scenario(226)
def test_what_a_dead_owner_left_waits_for_space(lodged: Lodged) -> None:
    place = settle_in(lodged, *ready("good", "good"))
    place.die(CYCLE, kill=Spot("after", "claim_start"))
    before = place.view()
    full = lodged.full_at(CYCLE, Spot("before", "settle_owners"))
    assert (full.exits, full.errors) == ([4], ["disk_full"])
    assert place.view() == before
    lodged.disk.free()
    place.live(CYCLE)
    after = place.view()
    check_moved(before, after)
    assert [row.status for row in after.actions.values()] == [UNKNOWN, DONE]


@pytest.mark.parametrize("step", ["migrate", "init"])
def test_an_init_without_space_is_finished_later(lodged: Lodged, step: str) -> None:
    full = lodged.full_at(init(), Spot("before", step))
    assert (full.exits, full.errors) == ([4], ["disk_full"])
    half = lodged.place.live(init(), STATUS)
    assert (half.exits, half.errors) == ([4, 3], ["disk_full", "not_initialised"])
    lodged.disk.free()
    assert lodged.place.live(init(), VERIFY).exits == [0, 0]


@pytest.mark.parametrize("left", ["with_log", "folded_in"])
def test_a_disk_that_cannot_be_written_can_be_read(lodged: Lodged, left: str) -> None:
    place = settle_in(lodged, *ready("good"), propose(2))
    if left == "folded_in":
        place.live(STATUS)
    log = place.seen / "state.db-wal"
    assert (log.exists() and log.stat().st_size > 0) == (left == "with_log")
    before = place.view()
    lodged.disk.remount("ro")
    reads = place.live(STATUS, show(1), show(2), VERIFY)
    assert reads.exits == [10, 0, 0, 0], reads
    for call in (propose(3), approve(2), reject(2), cancel(1), add_agent("eve"), login(1), CYCLE):
        refused = place.live(call)
        assert (refused.exits, refused.errors) == ([4], ["read_only"]), (call.command, refused)
    assert place.view() == before, "something was executed, or stored"
    lodged.disk.remount("rw")
    assert place.live(propose(3), approve(2), CYCLE, VERIFY).exits == [0, 0, 0, 0]
    after = place.view()
    check_view(after)
    assert after.begun == {"dsp-1": 1, "dsp-2": 1}
    assert after.actions["apr-3"].state == "pending"

"""Recovery of real children that were killed around an effect on the database, step by step."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.crash.scenarios import SPLIT, TO_RUN, UNANSWERED
from tests.support.crash import CYCLE, VERIFY, Place, Workshop, settle
from tests.support.crash_driver import Shift, Spot
from tests.support.crash_oracle import check_converged, check_moved

MINUTE_MS = 60_000
DAY_MS = 1_440 * MINUTE_MS


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with closing(Workshop(tmp_path_factory.mktemp("recovery"))) as made:
        yield made


def after(ms: int) -> Shift:
    return Shift(wall_ms=ms, boot_ms=ms, monotonic_ms=ms)


def at(spot: Spot) -> str:
    return f"{spot.moment}_{spot.step}"


def recovery(place: Place, ms: int = 0, **more: Any) -> dict[str, int]:
    """Run a cycle that much later and return what its recovery counted."""
    ended = place.live(CYCLE, VERIFY, clock=after(ms), **more)
    assert ended.answers[1]["body"] == {"ok": True, "problems": []}
    phase = ended.answers[0]["body"]["recovery"]
    return {name: n for name, n in phase.items() if type(n) is int and n and name != "pages"}


@pytest.mark.adr("0009", "7")
@pytest.mark.scenario(201)
@pytest.mark.adr("0033", "4.3")
@pytest.mark.adr("0033", "5.5")
@pytest.mark.parametrize("spot", [Spot("after", "effect"), Spot("before", "complete")], ids=at)
def test_a_run_that_was_committed_before_the_kill_is_found_and_settled(
    shop: Workshop, spot: Spot
) -> None:
    place = shop.place(*TO_RUN)
    place.die(CYCLE, kill=spot, **SPLIT)
    seen = place.view()
    assert (seen.statuses["apr-2"], seen.sizes["runs"]) == ("executing", 1)
    assert recovery(place) == {"scanned": 1, "claimed": 1, "verified_succeeded": 1}
    last = place.view()
    check_moved(seen, last)
    check_converged(last)
    row = last.actions["apr-2"]
    assert (row.status, row.result) == ("succeeded", "approved_run_receipt_verified")
    assert (row.beside.source, row.beside.facts, last.sizes["runs"]) == ("automatic_evidence", 0, 1)
    assert recovery(place, DAY_MS // 2) == {}
    assert place.view() == last


@pytest.mark.scenario(201)
@pytest.mark.adr("0033", "2.2")
@pytest.mark.adr("0033", "5.4")
@pytest.mark.adr("0033", "6.3")
@pytest.mark.parametrize(
    "spot",
    [Spot("after", "claim_start"), Spot("inside", "execute"), Spot("before", "effect")],
    ids=at,
)
def test_a_run_that_was_not_committed_before_the_kill_is_missed_and_never_made(
    shop: Workshop, spot: Spot
) -> None:
    """Absence proves nothing: it is looked for again, ever more rarely, and then a person asked."""
    place = shop.place(*TO_RUN)
    place.die(CYCLE, kill=spot, **SPLIT)
    views = [place.view()]
    later_ms = 0
    for nth in range(1, 17):
        counts = recovery(place, later_ms)
        last = "deferred" if nth < 16 else "manual_required"
        assert counts == {"scanned": 1, "claimed": 1, last: 1}, nth
        if nth in {1, 15}:
            assert recovery(place, later_ms) == {}, "it was looked for again before its time"
        later_ms += 5_000 << (nth - 1) if nth < 13 else DAY_MS // 4
        later_ms += MINUTE_MS
        views.append(place.view())
        check_moved(views[-2], views[-1])
    row = views[-1].actions["apr-2"]
    assert (row.status, row.control, row.finding) == ("executing", "manual_required", "missing")
    assert (views[-1].sizes["runs"], views[-1].sizes["action_receipts"]) == (0, 1)


@pytest.mark.scenario(147)
@pytest.mark.adr("0033", "6.1")
def test_a_person_comes_too_late_where_evidence_settled_before_the_kill(shop: Workshop) -> None:
    place = shop.place(*TO_RUN)
    place.die(CYCLE, kill=Spot("before", "complete"), **SPLIT)
    place.die(CYCLE, kill=Spot("after", "resolve_evidence"))
    settled = place.view()
    assert settled.statuses["apr-2"] == "succeeded"
    refused = place.live(settle(2, settled.actions["apr-2"].execution_version or 0))
    assert refused.errors == ["already_terminal"]
    assert place.view() == settled


@pytest.mark.scenario(176)
@pytest.mark.adr("0033", "7.1")
@pytest.mark.parametrize("decision", ["confirm_succeeded", "confirm_failed", "abandon_unknown"])
def test_a_person_settles_what_a_killed_process_left_once(shop: Workshop, decision: str) -> None:
    place = shop.place(*UNANSWERED, {"calls": [CYCLE]})
    word = settle(1, 3, decision)
    before = place.view()
    place.die(word, kill=Spot("before", "resolve_person"))
    assert place.view() == before
    place.die(word, kill=Spot("after", "resolve_person"))
    stored = place.view()
    check_moved(before, stored)
    assert (stored.actions["apr-1"].beside.source, stored.sizes["resolutions"]) == ("human", 1)
    again = place.live(word, settle(1, 4, decision), VERIFY)
    assert again.exits == [0, 3, 0]
    assert again.answers[0]["body"] == {"replayed": True}
    assert again.errors[1] == "already_terminal"
    assert place.view() == stored

"""The one lease rule: taking, holding on, and the end; what builds on it has its own tests."""

import pytest

from qinglong_edge.domain.lease import Lease, covers, is_of, prolong, runs, take
from tests.support.builders import at, tick

HELD = Lease("owner-1", "token-1", tick(1_000), tick(3_000))


def test_a_lease_runs_from_now_for_its_length() -> None:
    assert take("owner-1", "token-1", 2_000, at(1_000)) == HELD


@pytest.mark.parametrize(("ms", "held"), [(0, True), (2_999, True), (3_000, False), (9_000, False)])
def test_at_exactly_its_end_a_lease_has_run_out(ms: int, held: bool) -> None:
    assert runs(HELD, at(ms)) is held


def test_a_later_boot_ends_it_whatever_its_clock_shows() -> None:
    assert not runs(HELD, at(0, epoch=2))
    assert prolong(HELD, 1, at(0, epoch=2)).expires_tick == tick(1, epoch=2)


@pytest.mark.parametrize(
    ("ms", "lease_ms", "expires_ms"), [(2_000, 2_000, 4_000), (2_000, 1, 3_000), (9_000, 1, 9_001)]
)
def test_its_end_never_moves_closer(ms: int, lease_ms: int, expires_ms: int) -> None:
    after = prolong(HELD, lease_ms, at(ms))
    assert after == Lease("owner-1", "token-1", tick(ms), tick(expires_ms))
    assert covers(after, lease_ms)


@pytest.mark.parametrize(("lease_ms", "covered"), [(1, True), (2_000, True), (2_001, False)])
def test_a_lease_covers_what_was_asked_for_and_no_more(lease_ms: int, covered: bool) -> None:
    assert covers(HELD, lease_ms) is covered


def test_a_holder_is_its_owner_and_its_token() -> None:
    assert is_of(HELD, "owner-1", "token-1")
    assert not is_of(HELD, "owner-2", "token-1")
    assert not is_of(HELD, "owner-1", "token-2")

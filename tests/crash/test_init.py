"""Kill `init` and `migrate` at every point, between their files too: no half state ever works."""

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from qinglong_edge.storage.sqlite import database
from tests.support.crash import CYCLE, STATUS, VERIFY, Place, Workshop, init, login, propose
from tests.support.crash_driver import ANY, FILES, Call, Spot

FULL = os.environ.get("CRASH_FULL") == "1"
MIGRATE = Call("migrate", {})
SPARSE = 4  # every fourth change of a file, where CRASH_FULL does not ask for all
NEVER = Spot(FILES, ANY, 1_000_000)  # listens to files and kills nothing
MUST_CHANGE = {"os.mkdir", "open", "os.link", "os.remove", "os.rename", "sqlite3.connect"}


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with closing(Workshop(tmp_path_factory.mktemp("init"))) as made:
        yield made


def kills(points: list[tuple[str, str]]) -> Iterator[Spot]:
    """Return a spot for each point that an undisturbed init passes; always for its last five."""
    files = sum(moment == FILES for moment, _ in points)
    for nth in range(1, files + 1):
        if FULL or nth % SPARSE == 1 or nth > files - 5:
            yield Spot(FILES, ANY, nth)
    passed = len(points) - files
    for nth in range(1, passed + 1):
        if FULL or nth in {1, 2, passed - 3, passed - 2, passed - 1, passed}:
            yield Spot(ANY, ANY, nth)


def check_half(place: Place) -> None:
    """Prove that no command takes a state whose init has not finished."""
    ended = place.live(STATUS, VERIFY, CYCLE, login(1), propose())
    assert (ended.exits, set(ended.errors)) == ([3] * 5, {"not_initialised"}), ended


def finished(place: Place) -> bool:
    return (place.state / "state.db").exists()


def check_whole(place: Place, owner: str) -> None:
    """Prove that the state is whole, private, and made for this owner only."""
    other = "bob" if owner == "ana" else "ana"
    calls = (init(owner), init(other), init(owner, profile="standalone"), VERIFY, STATUS)
    entry = Call("login", {**login().args, "name": owner})
    ended = place.live(*calls, entry)
    assert ended.exits == [0, 3, 3, 0, 0, 0], ended
    assert ended.errors[1:3] == ["already_initialised"] * 2
    assert ended.answers[0]["body"]["created"] is False
    sizes = place.view().sizes
    assert (sizes["meta"], sizes["identities"], sizes["role_bindings"]) == (1, 1, 1)
    assert {path.stat().st_mode & 0o777 for path in place.state.iterdir()} == {0o600}


def created(place: Place, owner: str = "ana") -> None:
    """Let init run to its end, from whatever was left."""
    ended = place.live(init(owner))
    assert (ended.exits, ended.errors) == ([0], [None]), ended
    assert ended.answers[0]["body"]["created"] is True


@pytest.mark.scenario(225)
def test_a_killed_init_is_finished_by_the_same_call(shop: Workshop) -> None:
    first = shop.empty().live(init(), kill=NEVER)
    assert {step for moment, step in first.points if moment == FILES} >= MUST_CHANGE
    spots = list(kills(first.points))
    assert len(spots) > 15
    whole = 0
    for spot in spots:
        place = shop.empty()
        place.die(init(), kill=spot)
        if finished(place):
            whole += 1
        else:
            check_half(place)
            created(place)
        check_whole(place, "ana")
    assert whole >= 1, "no kill came after the end of init"


def test_a_finished_init_leaves_nothing_of_an_interrupted_one(shop: Workshop) -> None:
    whole = shop.empty()
    files = [each for each in whole.live(init(), kill=NEVER).points if each[0] == FILES]
    names = set(os.listdir(whole.state))
    left: dict[str, set[str]] = {}
    for nth in range(1, len(files) + 1, 1 if FULL else SPARSE):
        place = shop.empty()
        place.die(init(), kill=Spot(FILES, ANY, nth))
        place.live(init())
        more = set(os.listdir(place.state)) - names
        if more:
            left[f"{nth} {files[nth - 1][1]}"] = more
    assert left == {}


def test_the_last_moments_of_init_leave_no_second_name_of_the_database(shop: Workshop) -> None:
    files = sum(each[0] == FILES for each in shop.empty().live(init(), kill=NEVER).points)
    for nth in range(files - 3, files + 1):
        place = shop.empty()
        place.die(init(), kill=Spot(FILES, ANY, nth))
        place.live(init())
        assert (place.state / "state.db").stat().st_nlink == 1, sorted(os.listdir(place.state))


def test_another_init_is_refused_only_after_completion(shop: Workshop) -> None:
    spots = [Spot(FILES, ANY, 9), Spot("before", "migrate"), Spot("after", "migrate")]
    for spot in [*spots, Spot("before", "init"), Spot("after", "init")]:
        place = shop.empty()
        place.die(init(), kill=spot)
        assert not finished(place)
        created(place, "bob")
        check_whole(place, "bob")
    place = shop.empty()
    created(place)
    refused = place.live(init("bob"))
    assert (refused.exits, refused.errors) == ([3], ["already_initialised"])
    check_whole(place, "ana")


def test_an_init_that_is_killed_again_and_again_ends(shop: Workshop) -> None:
    passed = len(shop.empty().live(init()).points)
    place = shop.empty()
    for nth in range(1, passed + 1, 6 if FULL else 13):
        place.die(init(), kill=Spot(ANY, ANY, nth))
        check_half(place)
    place.die(init(), kill=Spot("after", "init"))
    check_half(place)
    created(place)
    check_whole(place, "ana")


@pytest.mark.parametrize(
    "spot", [Spot("inside", "migrate", 7), Spot("before", "migrate"), Spot("after", "migrate")]
)
def test_a_killed_migrate_is_finished_by_the_next_one(shop: Workshop, spot: Spot) -> None:
    place = shop.empty()
    place.state.mkdir(mode=0o700)
    database.create(str(place.state / "state.db"), "wal").close()
    before = place.live(STATUS, CYCLE)
    assert set(before.errors) == {"migration_required"}
    place.die(MIGRATE, kill=spot)
    done = spot.moment == "after"
    again = place.live(STATUS, MIGRATE, MIGRATE)
    assert (again.errors[0] == "migration_required") == (not done)
    applied = [answer["body"]["applied"] for answer in again.answers[1:]]
    assert applied == [int(not done), 0]
    assert place.view().sizes["migrations"] == 1

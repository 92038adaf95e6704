import enum

import pytest

from qinglong_edge.domain.decisions import Changed, Replayed


class Word(enum.Enum):
    SAME = "same"


def test_equal_values_of_one_type_are_equal_and_hash_alike() -> None:
    for kind in (Changed, Replayed):
        assert kind((1, "a")) == kind((1, "a"))
        assert hash(kind((1, "a"))) == hash(kind((1, "a")))
        assert kind((1, "a")) != kind((1, "b"))


@pytest.mark.parametrize("other", [Replayed(1), 1, (1,), None, Word.SAME])
def test_a_change_equals_nothing_of_another_type(other: object) -> None:
    assert Changed(1) != other
    assert other != Changed(1)


def test_changed_and_replayed_are_two_members_of_a_set() -> None:
    assert len({Changed(1), Replayed(1), Changed(1)}) == 2


def test_a_decision_shows_itself_as_it_would_be_built() -> None:
    assert repr(Changed("a")) == "Changed('a')"
    assert repr(Replayed(1)) == "Replayed(1)"


def test_a_decision_holds_its_value_and_nothing_else() -> None:
    value = ("row", 1)
    assert Changed(value).after is value
    assert not hasattr(Replayed(value), "__dict__")


def test_a_replay_is_no_kind_of_change() -> None:
    assert not isinstance(Replayed(1), Changed)
    assert not isinstance(Changed(1), Replayed)

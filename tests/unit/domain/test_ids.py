import contextlib
from collections.abc import Callable

import pytest

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.errors import QinglongError, UsageError
from tests.support.entropy import CounterEntropy

Check = Callable[[object], object]


def ident(value: object) -> str:
    return ids.check_ident(value, "field")


def ident_255(value: object) -> str:
    return ids.check_ident(value, "field", most=255)


def mutation(value: object) -> str:
    return ids.check_mutation_id(value, "field")


def digest(value: object) -> str:
    return ids.check_digest(value, "field")


def slug(value: object) -> str:
    return ids.check_slug(value, "field")


def text_4(value: object) -> str:
    return ids.check_text(value, "field", most=4)


def permission(value: object) -> str:
    return ids.check_permission(value, "field")


def ms(value: object) -> int:
    return ids.check_int(value, "field", least=0, most=limits.SAFE_INTEGER_MAX)


def version(value: object) -> int:
    return ids.check_int(value, "field", least=0, most=limits.VERSION_MAX)


def version_from_1(value: object) -> int:
    return ids.check_int(value, "field", least=1, most=limits.VERSION_MAX)


def one_to_64(value: object) -> int:
    return ids.check_int(value, "field", least=1, most=64)


TEXT_CHECKS: tuple[Check, ...] = (ident, mutation, digest, slug, text_4, permission)
NUMBER_CHECKS: tuple[Check, ...] = (ms, version, one_to_64)

GOOD: list[tuple[Check, object]] = [
    *((ident, value) for value in ("a", "Z", "0", "a.b_c:d-e", "9---", "x" * 64)),
    (ident_255, "x" * 255),
    *((mutation, value) for value in ("a", "-", ".", "_:.-", "x" * 64)),
    *((digest, value) for value in ("0" * 64, "0123456789abcdef" * 4)),
    *((slug, value) for value in ("a", "0", "a-b", "a--b", "x" * 128, "0-9")),
    *(
        (text_4, value)
        for value in ("a", " ab ", "夜间备份", "\u0080", "𝄞𝄞", "a𝄞b", "\u2028", "\ufeff")
    ),
    *((permission, value) for value in sorted(ids.STATIC_PERMISSIONS)),
    (permission, "tool.call:github.issue.read"),
    (permission, "tool.call:0"),
    (permission, "tool.call:a._:-"),
    (permission, "tool.call:" + "x" * 128),
    *((ms, value) for value in (0, 1, 2**53 - 1)),
    *((version, value) for value in (0, 2**31 - 1)),
    *((version_from_1, value) for value in (1, 2**31 - 1)),
    *((one_to_64, value) for value in (1, 64)),
]

BAD: list[tuple[Check, object]] = [
    *((ident, value) for value in ("", "-a", ".a", "_a", ":a", "a b", "a\n", "\na", "ä", "a/b")),
    *((ident, value) for value in ("x" * 65, "a\x00", "１", "a\u0301", "a\ud800")),
    (ident_255, "x" * 256),
    *((mutation, value) for value in ("", "a b", "a\n", "ä", "/", "x" * 65)),
    *((digest, value) for value in ("", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 63 + "\n")),
    *((digest, value) for value in ("0" * 64 + "\n", " " + "0" * 63, "٠" * 64)),
    *((slug, value) for value in ("", "-a", "a-", "-", "A", "a_b", "a.b", "ä", "a\n", "x" * 129)),
    *((text_4, value) for value in ("", "abcde", "𝄞𝄞a", "a𝄞bc", "a\x00", "a\x1f", "a\x7f", "a\n")),
    *((text_4, value) for value in ("\ud800", "\udfff", "a\udc80", "\t")),
    (permission, "logs"),
    (permission, "artifact.write"),
    (permission, "tool.call:*"),
    (permission, "tool.call:"),
    (permission, "tool.call:bad value"),
    (permission, "tool.call:.a"),
    (permission, "tool.call:" + "x" * 129),
    (permission, "tool.call:a\n"),
    (permission, "tool.call"),
    (permission, "Tool.call:a"),
    (permission, "run.start\n"),
    (permission, " run.start"),
    (permission, ""),
    *((ms, value) for value in (-1, 2**53, 10**30)),
    *((version, value) for value in (-1, 2**31)),
    *((version_from_1, value) for value in (0, 2**31)),
    *((one_to_64, value) for value in (0, 65)),
    *((check, value) for check in TEXT_CHECKS for value in (None, 1, True, b"a", ["a"], {"a": 1})),
    *(
        (check, value)
        for check in NUMBER_CHECKS
        for value in (None, True, False, 1.0, 1.5, "1", b"1", [1], float("nan"), float("inf"))
    ),
]


@pytest.mark.scenario(3, 5, 35)
@pytest.mark.parametrize(("check", "value"), GOOD)
def test_a_value_of_its_kind_is_returned_as_it_is(check: Check, value: object) -> None:
    assert check(value) is value


@pytest.mark.scenario(3, 5, 34, 35, 84)
@pytest.mark.parametrize(("check", "value"), BAD)
def test_any_other_value_is_refused(check: Check, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        check(value)
    assert caught.value.code == "invalid_value"
    assert caught.value.details == {"field": "field"}
    assert not caught.value.retryable


def test_there_are_seventeen_static_permissions() -> None:
    assert len(ids.STATIC_PERMISSIONS) == 17


@pytest.mark.parametrize("check", TEXT_CHECKS)
def test_a_refusal_never_repeats_the_value(check: Check) -> None:
    with pytest.raises(UsageError) as caught:
        check("hunter2 ä\n")
    assert "hunter2" not in caught.value.message


def test_an_endless_text_is_refused_by_its_length() -> None:
    for check in (slug, permission):
        with pytest.raises(UsageError):
            check("tool.call:" + "a-" * 1_000_000)


@pytest.mark.parametrize(
    ("value", "units"), [("", 0), ("a", 1), ("é", 1), ("夜", 1), ("\uffff", 1), ("𝄞", 2), ("a𝄞", 3)]
)
def test_text_is_counted_in_utf_16_units(value: str, units: int) -> None:
    assert ids.utf16_units(value) == units == len(value.encode("utf-16-le")) // 2


def test_a_new_id_is_a_uuid_of_version_seven() -> None:
    assert ids.new_id(0x0123456789AB, lambda size: b"\xff" * size) == (
        "01234567-89ab-7fff-bfff-ffffffffffff"
    )
    assert ids.new_id(0, bytes) == "00000000-0000-7000-8000-000000000000"


def test_a_new_id_asks_for_ten_bytes_and_is_an_identifier() -> None:
    asked: list[int] = []

    def entropy(size: int) -> bytes:
        asked.append(size)
        return b"\xa5" * size

    assert ids.check_ident(ids.new_id(1_700_000_000_000, entropy), "id")
    assert asked == [10]


def test_new_ids_are_ordered_by_time_and_differ_within_a_millisecond() -> None:
    entropy = CounterEntropy()
    drawn = [ids.new_id(wall_ms, entropy) for wall_ms in (0, 1, 255, 256, 256, 2**41, 2**48 - 1)]
    assert drawn == sorted(drawn)
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("wall_ms", [2**48, 2**53 - 1])
def test_a_clock_past_the_ids_fails_with_an_error_of_ours_or_draws_an_id(wall_ms: int) -> None:
    """Expect no OverflowError: every legal `ms` may be shown by a broken clock."""
    with contextlib.suppress(QinglongError):
        assert ids.check_ident(ids.new_id(wall_ms, CounterEntropy()), "id")

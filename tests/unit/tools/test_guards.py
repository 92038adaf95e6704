import ast
import sys
import types
from typing import Any

import pytest

from tools.guards import guards, remove

SOURCE = """
class Door:
    def __init__(self, width):
        super().__init__()
        self.width = width

    @property
    def wide(self):
        return self.width >= 2

    @staticmethod
    def named(name):
        return Door(1 if name == "back" else 2)


def enter(door, age, card):
    check(card)
    if door is None:
        return "closed"
    if not 3 <= age < 100 or card in {"lost", None}:
        return "refused"
    said = (age, card)
    return said == (7, "gold") and [each for each in (1, 2, 3) if each > 1]


def check(card):
    if card == "forged":
        raise ValueError(card)
"""


def named() -> list[str]:
    return [guard.name for guard in guards("doors", ast.parse(SOURCE))]


def without(name: str) -> Any:
    """Return the module with one guard less."""
    module = types.ModuleType("doors")
    module.__file__ = "doors.py"
    tree = ast.parse(SOURCE)
    exec(compile(tree, "doors.py", "exec"), vars(module))
    (guard,) = (guard for guard in guards("doors", tree) if guard.name == name)
    remove(guard, tree, module)
    return module


def test_the_guards_are_listed_in_the_order_of_the_source() -> None:
    assert named() == [
        "doors.Door.__init__: super().__init__()",
        "doors.Door.wide: boundary of self.width >= 2",
        "doors.Door.named: always 1, whatever name == 'back'",
        "doors.Door.named: always 2, whatever name == 'back'",
        "doors.enter: check(card)",
        "doors.enter: if door is None",
        "doors.enter: if not 3 <= age < 100 or card in {'lost', None}",
        "doors.enter: or not 3 <= age < 100",
        "doors.enter: boundary of 3 <= age",
        "doors.enter: link 3 <= age",
        "doors.enter: boundary of age < 100",
        "doors.enter: link age < 100",
        "doors.enter: or card in {'lost', None}",
        "doors.enter: and said == (7, 'gold')",
        "doors.enter: pair age, 7",
        "doors.enter: pair card, 'gold'",
        "doors.enter: and [each for each in (1, 2, 3) if each > 1]",
        "doors.enter: only if each > 1",
        "doors.enter: boundary of each > 1",
        "doors.check: if card == 'forged'",
    ]


@pytest.mark.parametrize(
    ("name", "ask", "before", "after"),
    [
        ("check(card)", ("door", 7, "forged"), ValueError, False),
        ("if door is None", (None, 7, "gold"), "closed", [2, 3]),
        ("or not 3 <= age < 100", ("door", 2, ""), "refused", False),
        ("boundary of 3 <= age", ("door", 3, ""), False, "refused"),
        ("link 3 <= age", ("door", 2, ""), "refused", False),
        ("boundary of age < 100", ("door", 100, ""), "refused", False),
        ("link age < 100", ("door", 100, ""), "refused", False),
        ("or card in {'lost', None}", ("door", 7, "lost"), "refused", False),
        ("and said == (7, 'gold')", ("door", 8, ""), False, [2, 3]),
        ("pair age, 7", ("door", 8, "gold"), False, [2, 3]),
        ("pair card, 'gold'", ("door", 7, ""), False, [2, 3]),
        ("only if each > 1", ("door", 7, "gold"), [2, 3], [1, 2, 3]),
        ("boundary of each > 1", ("door", 7, "gold"), [2, 3], [1, 2, 3]),
    ],
)
def test_a_function_without_its_guard_goes_on(
    name: str, ask: tuple[Any, ...], *, before: object, after: object
) -> None:
    whole = without("doors.Door.wide: boundary of self.width >= 2")
    if isinstance(before, type) and issubclass(before, Exception):
        with pytest.raises(before):
            whole.enter(*ask)
    else:
        assert whole.enter(*ask) == before
    assert without(f"doors.enter: {name}").enter(*ask) == after


def test_methods_of_every_kind_lose_their_guards() -> None:
    assert not without("doors.Door.wide: boundary of self.width >= 2").Door(2).wide
    always = without("doors.Door.named: always 1, whatever name == 'back'")
    assert always.Door.named("front").width == 1
    assert without("doors.Door.__init__: super().__init__()").Door(3).width == 3


def test_a_guard_that_stands_twice_in_a_function_has_two_names() -> None:
    text = "def f(a):\n    if a:\n        a += 1\n    if a:\n        a += 1\n    return a"
    names = [guard.name for guard in guards("m", ast.parse(text))]
    assert names == ["m.f: if a", "m.f: if a (2)"]


def test_what_runs_at_import_is_no_guard() -> None:
    assert list(guards("m", ast.parse("if sys.platform:\n    check(1)"))) == []


def test_what_is_no_function_is_not_changed() -> None:
    tree = ast.parse("def f(a):\n    return a and 1")
    guard = next(guards("m", tree))
    module = types.ModuleType("m")
    module.__file__ = "m.py"
    vars(module)["f"] = sys
    with pytest.raises(TypeError):
        remove(guard, tree, module)

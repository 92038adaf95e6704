"""What a transition answers besides its machine's refusals; equality is strict about type."""

from typing import Generic, TypeVar

Value = TypeVar("Value")


class _After(Generic[Value]):
    __slots__ = ("after",)

    def __init__(self, after: Value) -> None:
        self.after = after

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.after == self.after

    def __hash__(self) -> int:
        return hash((type(self), self.after))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.after!r})"


class Changed(_After[Value]):
    """Say that the event applies: store `after`."""

    __slots__ = ()


class Replayed(_After[Value]):
    """Say that the event was applied before: store nothing, `after` is the row as it is now."""

    __slots__ = ()

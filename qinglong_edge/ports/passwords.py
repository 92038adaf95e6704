"""What stretching a password may cost the process that asks for it."""

from typing import Protocol

from qinglong_edge.domain.identity import PasswordHash


class Passwords(Protocol):
    """Set and check passwords; both take long on purpose."""

    def hash(self, password: str) -> PasswordHash:
        """Return a salted, stretched password; raises `UsageError` for one that may not be set."""
        ...

    def verify(self, password: str, known: PasswordHash) -> bool:
        """Tell whether this is the password."""
        ...

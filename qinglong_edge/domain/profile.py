"""The resource policies of the local profiles, as fresh values (ADR-0036, 3).

`cluster-control` and `worker` are names this program knows and refuses: they must never run on the
local lifecycle, so they are refused before anything is read or created.
"""

import enum
from typing import NamedTuple

from qinglong_edge.domain import ids
from qinglong_edge.domain.errors import RefusedError
from qinglong_edge.domain.paging import PageBudget


class Profile(enum.StrEnum):
    """Name the deployment profiles."""

    EDGE = "edge"
    STANDALONE = "standalone"
    CLUSTER_CONTROL = "cluster-control"
    WORKER = "worker"


class ResourcePolicy(NamedTuple):
    """Bound what one local lifecycle may use; lengths in milliseconds."""

    profile: Profile
    interval_ms: int
    initial_delay_ms: int
    stop_ms: int
    recovery: PageBudget
    dispatch: PageBudget

    @property
    def early_gap_ms(self) -> int:
        """Return how soon after a cycle settled an early one may begin."""
        return 1_000 if self.profile is Profile.EDGE else 250


def parse_profile(value: str | None) -> Profile:
    """Return the named profile; absent means edge, an empty or unknown name is a usage error."""
    if value is None:
        return Profile.EDGE
    try:
        return Profile(value)
    except ValueError:
        raise ids.invalid("profile", "must be edge or standalone") from None


def local_policy(profile: Profile) -> ResourcePolicy:
    """Return a fresh copy of a local profile's budgets.

    Raises `RefusedError` (`profile_not_local`) for the profiles of the cluster.
    """
    if profile is Profile.EDGE:
        return ResourcePolicy(profile, 30_000, 0, 5_000, PageBudget(8, 1), PageBudget(8, 1))
    if profile is Profile.STANDALONE:
        return ResourcePolicy(profile, 2_000, 0, 5_000, PageBudget(16, 2), PageBudget(32, 4))
    raise RefusedError("profile_not_local", f"{profile.value} does not run on a local store")

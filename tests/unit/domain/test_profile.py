import pytest

from qinglong_edge.domain.errors import RefusedError, UsageError
from qinglong_edge.domain.paging import PageBudget, check_budget
from qinglong_edge.domain.profile import Profile, ResourcePolicy, local_policy, parse_profile


@pytest.mark.scenario(219)
@pytest.mark.adr("0036", "3.1")
@pytest.mark.parametrize(
    ("profile", "policy", "items"),
    [
        (
            Profile.EDGE,
            ResourcePolicy(Profile.EDGE, 30_000, 0, 5_000, PageBudget(8, 1), PageBudget(8, 1)),
            16,
        ),
        (
            Profile.STANDALONE,
            ResourcePolicy(
                Profile.STANDALONE, 2_000, 0, 5_000, PageBudget(16, 2), PageBudget(32, 4)
            ),
            160,
        ),
    ],
)
def test_a_local_profile_has_its_documented_budget(
    profile: Profile, policy: ResourcePolicy, items: int
) -> None:
    found = local_policy(profile)
    assert found == policy
    assert items == sum(
        budget.page_size * budget.max_pages for budget in (found.recovery, found.dispatch)
    )
    for budget in (found.recovery, found.dispatch):
        assert check_budget(*budget) == budget


@pytest.mark.scenario(219)
@pytest.mark.adr("0036", "3.1")
def test_edge_is_slower_and_smaller_than_standalone() -> None:
    edge, standalone = local_policy(Profile.EDGE), local_policy(Profile.STANDALONE)
    assert edge.interval_ms > standalone.interval_ms
    assert edge.recovery < standalone.recovery
    assert edge.dispatch < standalone.dispatch


@pytest.mark.scenario(219)
@pytest.mark.adr("0036", "3.1")
@pytest.mark.parametrize("profile", [Profile.EDGE, Profile.STANDALONE])
def test_nobody_can_change_the_next_policy(profile: Profile) -> None:
    first = local_policy(profile)
    changed = first._replace(interval_ms=1, dispatch=first.dispatch._replace(page_size=64))
    assert changed != local_policy(profile) == first
    with pytest.raises(AttributeError):
        first.interval_ms = 1  # type: ignore[misc]


@pytest.mark.scenario(220)
@pytest.mark.adr("0036", "5.1")
@pytest.mark.parametrize("profile", [Profile.CLUSTER_CONTROL, Profile.WORKER])
def test_a_profile_of_the_cluster_is_refused_locally(profile: Profile) -> None:
    with pytest.raises(RefusedError) as caught:
        local_policy(profile)
    assert caught.value.code == "profile_not_local"
    assert profile.value in caught.value.message


@pytest.mark.scenario(218)
@pytest.mark.parametrize("name", ["edge", "standalone", "cluster-control", "worker"])
def test_the_four_names_are_known(name: str) -> None:
    assert parse_profile(name).value == name


@pytest.mark.scenario(218)
def test_no_name_means_edge() -> None:
    """Ours differs from upstream, where an absent or empty name means standalone."""
    assert parse_profile(None) is Profile.EDGE


@pytest.mark.scenario(218)
@pytest.mark.parametrize(
    "name", ["", "EDGE", " edge", "edge ", "edge\n", "router", "cluster", "cluster_control"]
)
def test_any_other_name_is_a_usage_error(name: str) -> None:
    """An empty name is refused here; upstream reads it as standalone."""
    with pytest.raises(UsageError) as caught:
        parse_profile(name)
    assert caught.value.details == {"field": "profile"}

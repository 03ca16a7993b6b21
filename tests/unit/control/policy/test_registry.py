"""Policies by name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest

from penstock.control.measure.estimate import Estimate
from penstock.control.policy import registry
from penstock.control.policy.advise import Advise
from penstock.control.policy.protocol import Limits, Proposal
from penstock.control.sla import SLA
from penstock.errors import DeclarationError


class Idle:
    """All that a new policy needs."""

    name = "idle"

    def __init__(self, patience: int = 3) -> None:
        self.patience = patience

    def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        return Proposal(None, "", f"no change: patient {self.patience}")

    def note_failure(self, reason: str) -> None: ...


@pytest.fixture(autouse=True)
def idle() -> Iterator[None]:
    registry.register("idle", Idle)
    yield
    registry.unregister("idle")


def test_a_policy_is_made_by_name_with_its_options() -> None:
    made = registry.make_policy("idle", patience=5)
    assert isinstance(made, Idle) and made.patience == 5
    assert "idle" in registry.names()


def test_any_policy_can_advise() -> None:
    made = registry.make_policy("advise:idle")
    assert isinstance(made, Advise) and made.name == "advise:idle"
    assert registry.make_policy("advise:streamswitch").model == "mm1", "its predictions are its model's"  # type: ignore[attr-defined]


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(DeclarationError, match="there is no policy 'idel'; did you mean 'idle'"):
        registry.make_policy("idel")
    with pytest.raises(DeclarationError, match=r"there are advise.*idle"):
        registry.make_policy("qqqqqqqq")


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("drs", True),
        ("drs:k_max=8", True),
        ("advise", True),
        ("advise:drs:k_max=8", True),
        ("nobody", False),
        ("advise:nobody", False),
        ("nobody:k_max=8", False),
    ],
)
def test_whether_a_policy_is_registered_is_seen_without_making_it(text: str, there: bool) -> None:
    assert registry.is_registered(text) is there


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"policy 'idle'.*speed"):
        registry.make_policy("idle", speed=5)


@pytest.mark.parametrize("name", ["idle", "", "a:b", "advise"])
def test_a_name_that_is_taken_or_none_is_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match="choose another"):
        registry.register(name, Idle)


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
def test_every_registration_leads_to_a_policy_of_that_name(name: str) -> None:
    module, _, attribute = registry.BUILT_IN[name].partition(":")
    assert callable(getattr(import_module(module), attribute))
    assert registry.make_policy(name).name == name


@pytest.mark.parametrize(
    ("text", "options", "stated"),
    [
        ("drs", {}, "drs"),
        ("drs", {"k_max": 8}, "drs:k_max=8"),
        ("drs:k_max=8", {}, "drs:k_max=8"),
        ("drs:k_max=8", {"k_max": 9}, "drs:k_max=8,k_max=9"),
        ("advise", {"margin": 0.1}, "advise:penstock:margin=0.1"),
        ("advise:drs", {"k_max": 8}, "advise:drs:k_max=8"),
        ("static", {"tasks": None}, "static:tasks=none"),
        ("penstock", {"split": object()}, ""),
        ("idle", {"patience": "1,2"}, ""),
    ],
)
def test_a_policy_is_stated_as_it_is_made(text: str, options: dict[str, object], stated: str) -> None:
    found = registry.state_policy(text, **options)
    assert found == stated
    if stated:
        assert vars(registry.make_policy(found)).keys() == vars(registry.make_policy(text, **options)).keys()


def test_options_that_are_stated_are_read_as_they_were() -> None:
    made = registry.make_policy(registry.state_policy("drs:k_max=8", k_max=9))
    assert getattr(made, "k_max", None) == 9


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
def test_a_policy_goes_by_the_name_that_makes_it(name: str) -> None:
    assert registry.make_policy(name).name == name

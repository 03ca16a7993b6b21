"""Options of every policy: of the kind it declares, within what it names; texts of the command line are read as such."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.control.policy.registry import BUILT_IN, make_policy
from penstock.control.sla import SLA
from penstock.errors import DeclarationError

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("policy", "option", "value", "says"),
    [
        ("drs", "t_max_s", NAN, "above 0"),
        ("drs", "t_max_s", INF, "above 0"),
        ("drs", "t_max_s", 0, "above 0"),
        ("drs", "k_max", 1.5, "a whole number, at least 1"),
        ("drs", "k_max", 0, "at least 1"),
        ("drs", "k_max", True, "a whole number"),
        ("drs", "margin", "abc", "a number, at least 0 and below 1"),
        ("drs", "reallocation_s", -1, "zero or more"),
        ("drs", "balances", 1, "true or false"),
        ("drs-lb", "min_gain", NAN, "at least 0 and below 1"),
        ("penstock", "keep_s", -1, "zero or more"),
        ("penstock", "horizon_s", NAN, "zero or more"),
        ("penstock", "actions_per_minute", 2.5, "a whole number"),
        ("penstock", "split", "abc", "a BoundSplit"),
        ("penstock", "spare", 1, "below 1"),
        ("esstream", "trigger", -1, "zero or more"),
        ("esstream", "trigger", NAN, "a number"),
        ("esstream", "eta", NAN, "a number"),
        ("esstream", "placement", 3, "text"),
        ("elasticutor", "theta", 1.0, "above 1"),
        ("elasticutor", "patience", 1.5, "a whole number"),
        ("elasticutor", "give_back_ratio", 0, "above 0 and at most 1"),
        ("naive-ec", "margin", 1.0, "below 1"),
        ("streamswitch", "alert_s", NAN, "above 0"),
        ("streamswitch", "margin", "abc", "a number"),
        ("static", "tasks", 2.5, "a whole number"),
        ("static", "tasks", 0, "at least 1"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_its_name_and_what_is_allowed(
    policy: str, option: str, value: Any, says: str
) -> None:
    with pytest.raises(DeclarationError, match=rf"^{policy}: {option} must be .*{says}"):
        make_policy(policy, **{option: value})
    with pytest.raises(DeclarationError, match=rf"^{policy}: {option} must be .*{says}"):
        make_policy(f"{policy}:{option}={str(value).lower()}")


def test_whole_numbers_of_any_kind_and_options_that_may_be_left_open_are_taken() -> None:
    np = pytest.importorskip("numpy")
    assert make_policy("drs", k_max=np.int64(3), t_max_s=np.float32(1)).k_max == 3  # type: ignore[attr-defined]
    assert make_policy("drs:k_max=none").k_max is None  # type: ignore[attr-defined]
    assert make_policy("elasticutor:give_back_s=none").give_back_s is None  # type: ignore[attr-defined]
    assert make_policy("streamswitch:margin=0").margin == 0  # type: ignore[attr-defined]


def test_text_is_read_as_name_and_options_and_arguments_win() -> None:
    made: Any = make_policy("advise:streamswitch:margin=0.4,alert_s=2", alert_s=3)
    assert made.name == "advise:streamswitch" and (made.policy.margin, made.policy.alert_s) == (0.4, 3)
    for wrong in ("drs:", "drs:=1", "drs:k_max", "drs:k_max=1,,", "advise:drs:"):
        with pytest.raises(DeclarationError, match="name=value"):
            make_policy(wrong)
    with pytest.raises(DeclarationError, match="named by text"):
        make_policy(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_an_option_that_there_is_not_is_refused_with_those_there_are(policy: str) -> None:
    with pytest.raises(DeclarationError, match=rf"policy '{policy}' has no option 'qqqq'; it has \w+"):
        make_policy(policy, qqqq=1)


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_the_name_of_a_policy_is_no_option(policy: str) -> None:
    with pytest.raises(DeclarationError, match=rf"policy '{policy}' has no option 'name'"):
        make_policy(f"{policy}:name=other")
    with pytest.raises(DeclarationError, match=rf"policy '{policy}' has no option 'name'"):
        make_policy(policy, name="other")


@pytest.mark.parametrize("text", ["advise:advise", "advise:advise:drs", "advise:"])
def test_advice_is_given_on_one_policy(text: str) -> None:
    with pytest.raises(DeclarationError, match=rf"policy '{text}': write advise, or advise:NAME"):
        make_policy(text)


def test_an_option_that_is_nearly_right_is_refused_with_the_right_one() -> None:
    with pytest.raises(DeclarationError, match="has no option 'margn'; did you mean 'margin'"):
        make_policy("drs-lb:margn=0.1")


@pytest.mark.parametrize("wrong", [0, -1, NAN, INF, "1", None, True, [1]])
def test_a_bound_is_a_positive_number_of_seconds(wrong: Any) -> None:
    with pytest.raises(DeclarationError, match="SLA: latency must be a positive number of seconds"):
        SLA(wrong)
    with pytest.raises(DeclarationError, match="SLA: window must be a positive number of seconds"):
        SLA(1.0, wrong)

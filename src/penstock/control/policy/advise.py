"""`advise`: any policy, heard and not followed. What it would do is journalled; nothing is touched."""

from __future__ import annotations

from dataclasses import replace

from penstock.control.measure.estimate import Estimate
from penstock.control.policy.protocol import Limits, Policy, Proposal
from penstock.control.sla import SLA


class Advise:
    """Wraps a policy so that its plans are only described."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name = f"advise:{policy.name}"
        self.model: str = getattr(policy, "model", policy.name)
        """What predicts the latencies that it names."""

    def propose(self, now: Estimate, sla: SLA, limits: Limits) -> Proposal:
        """Return what the policy proposes, without its plan."""
        proposal = self.policy.propose(now, sla, limits)
        if proposal.plan is None:
            return proposal
        # Its next turn must not build on a plan that was not carried out.
        self.policy.note_failure("its plans are advice and are not carried out")
        return replace(proposal, plan=None, action=f"advice, not done: {proposal.action}", predicted_s=None)

    def check_sla(self, sla: SLA) -> None:
        """Refuse what the policy would."""
        check = getattr(self.policy, "check_sla", None)
        if check is not None:
            check(sla)

    def note_failure(self, reason: str) -> None:
        self.policy.note_failure(reason)

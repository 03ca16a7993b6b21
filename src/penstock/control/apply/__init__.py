"""What stands between a plan and those who carry it out: the `Actuator` protocol, outcomes, the journal."""

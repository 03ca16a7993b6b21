"""Plans: what the control plane wants next, built and checked whole before anything happens."""

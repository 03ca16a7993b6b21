"""Policies: an `Estimate` in, a `Proposal` with its reason out. One file each; `registry` knows them by name."""

"""From what a data plane counted (`Sample`) to what the models and policies reason about (`Estimate`)."""

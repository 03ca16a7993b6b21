"""Queueing models: how long rows take for given rates and cores. Formulas only; nothing is decided here."""

"""The one place that names this release; the build and the package both read it."""

from __future__ import annotations

__version__ = "0.1.0.dev0"

"""splitmix64, in numpy: what makes a row of its number alone. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

GOLDEN: Final = 0x9E3779B97F4A7C15
"""The step between two words of the sequence."""


def mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply the splitmix64 finaliser in place, and return the words."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words

"""What names this boot of the machine, so that nobody trusts what was never synced, or a process of another boot."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Return what names this boot of the machine: a copy written before a reboot was never synced."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # macOS
        command = ["sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

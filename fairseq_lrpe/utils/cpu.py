"""The name of the machine's CPU."""

import platform
import re
from pathlib import Path


def cpu_name() -> str:
    """Returns the name of the CPU, such as "AMD EPYC", or that of its architecture where it is unknown."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    match = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return match[1] if match else platform.machine()

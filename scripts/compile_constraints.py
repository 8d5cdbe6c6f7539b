"""Writes constraints.txt: the lines of constraints.in, then the versions of what the packages there require.

It needs uv (`pip install uv`), and a network. Versions in constraints.txt are kept where they fit;
`--upgrade-package NAME`, like other options of `uv pip compile`, changes them.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).absolute().parents[1]
EXTRAS = ("train", "test", "data", "report")
OF_TORCH = ("cuda-", "nvidia-", "triton")
"""Beginnings of the names of packages of which each build of torch requires one version, or none."""


def compiled(options: list[str]) -> list[str]:
    """Returns the lines NAME==VERSION of all packages that Python 3.11 and later need."""
    command = ["uv", "pip", "compile", "pyproject.toml", "--universal", "--python-version", "3.11"]
    command += ["--constraints", "constraints.in", "--no-annotate", "--no-header", "--quiet"]
    for extra in EXTRAS:
        command += ["--extra", extra]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "constraints.txt")  # its versions are preferred
        path.write_text((ROOT / "constraints.txt").read_text())
        subprocess.run(
            [*command, "--output-file", path, *options], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )
        return path.read_text().splitlines()


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    text = (ROOT / "constraints.in").read_text()
    direct = {normalized(name) for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    required = {}
    for line in compiled(sys.argv[1:]):
        name, version = re.match(r"([\w.-]+)==([^\s;]+)", line).groups()
        if name in direct or name.startswith(OF_TORCH):
            continue
        if required.setdefault(name, version) != version:
            sys.exit(f"{name} has two versions: add it to constraints.in with a condition for each")
    lines = [f"{name}=={version}\n" for name, version in sorted(required.items())]
    text += "\n# What the packages above require; scripts/compile_constraints.py writes this part.\n"
    (ROOT / "constraints.txt").write_text(text + "".join(lines))


if __name__ == "__main__":
    main()

"""Changes of the recorded results of the quickstart, of which one run, ``RUN``, is changed."""

import json
import re

from support.tiny import REPOSITORY

RECORDS = REPOSITORY / "docs/results"
RUN = "lm/quickstart/linear_rope/seed-1"
ROW = "lm/quickstart,linear,rope,,1,"
SETTINGS = "settings/lm-quickstart.jsonl"
MEASUREMENTS = "measurements/lm-quickstart-linear.csv"
CURVES = "curves/lm-quickstart.csv"


def read_line(folder):
    """Returns the settings of ``RUN``."""
    lines = map(json.loads, (folder / SETTINGS).read_text().splitlines())
    return next(line for line in lines if line["method"] == "rope")


def write_line(folder, text):
    """Replaces the line of ``RUN`` in the file of settings."""
    path = folder / SETTINGS
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(text if json.loads(line)["method"] == "rope" else line for line in lines))


def change_line(folder, **changed):
    """Replaces values in the settings of ``RUN``; None removes a key."""
    line = read_line(folder) | changed
    write_line(folder, json.dumps({key: value for key, value in line.items() if value is not None}) + "\n")


def change_rows(folder, name, pattern, replacement):
    """Replaces what matches ``pattern`` in the rows of ``RUN`` in a CSV file."""
    path = folder / name
    rows = path.read_text().splitlines(keepends=True)
    changed = [re.sub(pattern, replacement, row) if row.startswith(ROW) else row for row in rows]
    assert changed != rows
    path.write_text("".join(changed))


def copy_seed(folder, seed):
    """Records a copy of the run of seed 1 as another seed."""
    path = folder / SETTINGS
    path.write_text(path.read_text() + json.dumps(read_line(folder) | {"seed": seed}) + "\n")
    for name in (MEASUREMENTS, CURVES):
        rows = (folder / name).read_text().splitlines(keepends=True)
        copies = [row.replace(ROW, ROW.replace(",1,", f",{seed},")) for row in rows if row.startswith(ROW)]
        (folder / name).write_text("".join(rows + copies))

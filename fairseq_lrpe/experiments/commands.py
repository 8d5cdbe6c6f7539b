"""fairseq's commands as subprocesses, with their whole output in a log and the telling lines shown."""

import os
import re
import subprocess
import sys
from pathlib import Path

PLUGIN = Path(__file__).resolve().parents[1]


class CommandFailed(Exception):
    """A command did not end with exit code 0; the message names it, its log and the log's last lines."""


def run(name, arguments, log, show=None):
    """Run ``fairseq-<name>`` of this environment; append all it prints to the file ``log``.

    Lines that match the regular expression ``show`` are printed too, from the match on.
    """
    command = [str(Path(sys.executable).parent / f"fairseq-{name}"), *map(str, arguments)]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write(f"$ {' '.join(command)}\n")
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"},
        )
        try:
            for line in process.stdout:
                file.write(line)
                file.flush()
                match = re.search(show, line) if show else None
                if match:
                    print("    " + line[match.start() :].rstrip(), flush=True)
        except BaseException:
            process.terminate()
            raise
    if process.wait():
        tail = "\n".join(log.read_text().splitlines()[-8:])
        raise CommandFailed(
            f"fairseq-{name} ended with exit code {process.returncode}; {log} ends so:\n{tail}"
        )


def validation_curve(log):
    """[(updates, perplexity)] of the validations in a training log, each update once."""
    found = re.findall(r"valid on 'valid' subset .*? ppl ([\d.e+]+) .*? num_updates (\d+)", log.read_text())
    return sorted({int(updates): float(ppl) for ppl, updates in found}.items())


def tokens_per_second(log):
    """The median of the training speeds that a training log shows."""
    speeds = sorted(float(x) for x in re.findall(r"train_inner .* wps=([\d.]+),", log.read_text()))
    return speeds[len(speeds) // 2] if speeds else float("nan")


def evaluated_perplexity(log):
    """The last perplexity in a log of fairseq-eval-lm."""
    return float(re.findall(r"Perplexity: ([\d.]+)", log.read_text())[-1])

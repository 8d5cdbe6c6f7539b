"""Evaluation of language models on the synthetic problem of their training."""

import json
import math

from fairseq_lrpe.experiments.execution.evaluators.base import Evaluator


class SyntheticEvaluator(Evaluator):
    def evaluate_all(self, names):
        job = self.job
        settings = {name: self.settings(name) for name in names}
        command = ["python", "-m", "fairseq_lrpe", "evaluate-synthetic"]
        command += [job.checkpoint, job.folder, json.dumps(settings)]
        if job.cpu:
            command.append("--cpu")
        self.run(command, "problems")
        for name in names:
            content = json.loads((job.folder / f"problems-{name}.json").read_text("utf-8"))
            measured = content["measured"]
            if "nats" not in measured:
                loss = float(self.validate(name)["loss"])
                measured["nats"] = math.log(2) * loss
            yield name, measured


EVALUATOR = SyntheticEvaluator

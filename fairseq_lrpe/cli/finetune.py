"""Fine-tune a pretrained RoBERTa on GLUE tasks with each learning rate of the experiment.

The result is that of the learning rate with the best score on the development set, at its best epoch.
KEY=VALUE overrides a setting of the experiment. For example:

  lrpe finetune checkpoint_best.pt RTE MRPC choose.train.lr=[1e-4]
"""

from argparse import ArgumentParser

from fairseq_lrpe.cli.train import execute_jobs, parse
from fairseq_lrpe.data.glue_tasks import TASKS, get_task
from fairseq_lrpe.experiments.definition.config_files import experiments
from fairseq_lrpe.experiments.definition.experiment import Experiment
from fairseq_lrpe.experiments.definition.kinds import glue
from fairseq_lrpe.experiments.execution.job import Job
from fairseq_lrpe.experiments.execution.launch import add_machine_flags
from fairseq_lrpe.utils.cli import abs_path, exit_on_error, min_int, new_parser
from fairseq_lrpe.utils.errors import UserError


def main(arguments: list[str] | None = None) -> None:
    with exit_on_error("finetune"):
        args, overrides = parse(make_parser(), arguments)
        for task in args.tasks:
            get_task(task)
        experiment = Experiment.load(args.experiment, overrides)
        if experiment.kind is not glue.KIND:
            names = [name for name in experiments() if Experiment.load(name).kind is glue.KIND]
            raise UserError(f"{args.experiment} does not fine-tune on GLUE: choose from {', '.join(names)}")
        experiment.cfg.starts_from = str(args.checkpoint)
        experiment.cfg.grid["task"] = args.tasks
        attention, method = glue.method_of(args.checkpoint)
        runs = experiment.runs(attention, method, args.seeds or experiment.cfg.seeds)
        execute_jobs([Job(experiment, run, args.results) for run in runs], args)


def make_parser() -> ArgumentParser:
    usage = "CHECKPOINT TASK [TASK ...] [options] [KEY=VALUE ...]"
    parser = new_parser("lrpe finetune", __doc__, usage)
    text = "checkpoint of a pretrained RoBERTa, such as checkpoint_best.pt"
    parser.add_argument("checkpoint", type=abs_path, metavar="CHECKPOINT", help=text)
    parser.add_argument("tasks", nargs="+", metavar="TASK", help=f"GLUE tasks: {', '.join(TASKS)}")
    text = "experiment that fine-tunes on GLUE (default: %(default)s)"
    parser.add_argument("--experiment", default="glue/wikibook", help=text)
    text = "random seeds; each task has one run per seed (default: those of the experiment)"
    parser.add_argument("--seeds", nargs="+", type=min_int(1), help=text)
    add_machine_flags(parser)
    parser.set_defaults(nodes=1)
    return parser

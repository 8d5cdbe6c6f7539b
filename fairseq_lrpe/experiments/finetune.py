"""Fine-tunes a pretrained RoBERTa on tasks of GLUE, with every learning rate of the experiment.

It is scripts/train.sh from a checkpoint: the learning rate counts that is best on the development set, at the
best of its epochs. KEY=VALUE changes a value of the experiment, such as choose.train.lr=[1e-4].
"""

from argparse import ArgumentParser

from fairseq_lrpe.experiments.experiment import Experiment, experiments
from fairseq_lrpe.experiments.kinds import glue
from fairseq_lrpe.experiments.launch import add_machine_flags, choose_launch
from fairseq_lrpe.experiments.runner import Job
from fairseq_lrpe.experiments.train import do_all, new_parser, parse
from fairseq_lrpe.glue_tasks import TASKS, task_named
from fairseq_lrpe.programs import absolute, at_least, one_sentence


def main(arguments=None):
    args, overrides = parse(parser(), arguments)
    with one_sentence("finetune"):
        for task in args.tasks:
            task_named(task)
        experiment = Experiment.load(args.experiment, overrides)
        if experiment.kind is not glue.KIND:
            known = (name for name in experiments() if Experiment.load(name).kind is glue.KIND)
            raise ValueError(f"{args.experiment} is no fine-tuning on GLUE: choose from {', '.join(known)}")
        experiment.cfg.starts_from, experiment.cfg.grid["task"] = str(args.checkpoint), args.tasks
        runs = experiment.runs(*glue.method_of(args.checkpoint), args.seeds or experiment.cfg.seeds)
        do_all([Job(experiment, run, args.results, choose_launch(args)) for run in runs], args.dry_run)


def parser() -> ArgumentParser:
    usage = "CHECKPOINT TASK [TASK ...] [options] [KEY=VALUE ...]"
    parser = new_parser("finetune_glue.sh", __doc__, usage)
    parser.add_argument("checkpoint", type=absolute, help="of a RoBERTa, such as checkpoint_best.pt")
    parser.add_argument("tasks", nargs="+", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--experiment", default="glue/wikibook", help="default: %(default)s")
    parser.add_argument("--seeds", nargs="+", type=at_least(1), help="default: the experiment's")
    add_machine_flags(parser)
    return parser


if __name__ == "__main__":
    main()

"""Table of commands, and the click group that imports a command only when it runs."""

import importlib
from collections.abc import Mapping
from typing import ClassVar, NoReturn

import click

# name: (module, attribute that holds the click command, help in one line)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "train": ("paceline.cli.train", "train", "Train a task with many workers."),
    "compare": (
        "paceline.cli.compare",
        "compare",
        "Train one task under several modes, and report which was worth it.",
    ),
    "benchmark": (
        "paceline.cli.benchmark",
        "benchmark",
        "Train one model alone and distributed, by us and by others, and compare.",
    ),
    "tune": ("paceline.cli.tune", "tune", "Search hyper-parameters with Ray Tune, and save the best."),
    "report": ("paceline.cli.compare", "report", "Make one page of finished runs, or of a comparison."),
    "demo": ("paceline.cli.compare", "demo", "Compare every mode on XOR with one slow worker."),
    "learn": (
        "paceline.cli.learn",
        "learn",
        "Learn distributed training by breaking it: 8 parts, 75 minutes.",
    ),
    "laws": ("paceline.cli.laws", "laws", "Prove that a mode, or your own, does what it says."),
    "replay": ("paceline.cli.verify", "replay", "Execute a recorded run again, bit by bit."),
    "verify": ("paceline.cli.verify", "verify", "Prove that a run lost nothing and did nothing twice."),
    "checkpoint": (
        "paceline.cli.checkpoint",
        "checkpoint",
        "Look at a run's checkpoints, check them, and take the weights out.",
    ),
    "export": (
        "paceline.cli.export",
        "export",
        "Write a finished run's record for TensorBoard, MLflow or W&B.",
    ),
    "plan": ("paceline.cli.train", "plan", "Say what train would do, and start nothing."),
    "config": ("paceline.cli.config", "config", "See which settings there are, and who set yours."),
    "simulate": ("paceline.cli.simulate", "simulate", "Predict every mode on equal work, and start nothing."),
    "advise": ("paceline.cli.simulate", "advise", "Rank the modes for a recorded run, and say why."),
    "data": (
        "paceline.cli.data",
        "data",
        "Get the data of built-in tasks, make it ready, bring it to a cluster.",
    ),
    "status": ("paceline.cli.status", "status", "Say how a run is: state, pace, workers, alerts, health."),
    "events": ("paceline.cli.events", "events", "Tell what happened in a run, and what happens."),
    "top": ("paceline.cli.status", "top", "Watch a run's workers on the whole terminal."),
    "alerts": ("paceline.cli.alerts", "alerts", "See a run's alerts, have them sent, silence them."),
    "metrics": ("paceline.cli.metrics", "metrics", "Give a run's metrics to Prometheus and Grafana."),
    "workers": ("paceline.cli.workers", "workers", "Add workers to a run that is at work, or remove some."),
    "ray": ("paceline.cli.ray", "ray", "Make a small Ray cluster here, and hand runs to a cluster."),
    "job": ("paceline.cli.job", "job", "Write manifests of a job on Kubernetes, check them, explain a job."),
    "cluster": (
        "paceline.cli.cluster",
        "cluster",
        "See which Kubernetes clusters there are, what one is good for, and mend it.",
    ),
    "deploy": ("paceline.cli.deploy", "deploy", "Run the coordinator, or a dashboard, on Kubernetes."),
    "image": ("paceline.cli.image", "image", "Check, build, test and push container images."),
    "dashboard": (
        "paceline.cli.dashboard",
        "dashboard",
        "Watch runs in a browser, live or recorded, and break them there.",
    ),
    "stop": ("paceline.cli.workers", "stop", "Ask a run to stop in good order, with a checkpoint."),
    "lab": ("paceline.cli.lab", "lab", "Break a run on purpose, and see what was promised hold."),
    "coordinator": (
        "paceline.cli.coordinator",
        "coordinator",
        "Run and look after the replicated coordinator.",
    ),
    "lighthouse": (
        "paceline.cli.lighthouse",
        "lighthouse",
        "Give torchft jobs a lighthouse that survives the loss of a node.",
    ),
    "doctor": ("paceline.cli.doctor", "doctor", "See whether this machine is ready, and what to mend."),
    "explain": ("paceline.cli.explain", "explain", "Say what an error, an exit code or an alert means."),
    "completion": (
        "paceline.cli.main",
        "completion",
        "Make the Tab key know commands, runs and values.",
    ),
}


# `paceline --help` must answer at once, so names and help lines come from the
# table, and a command's module is imported when the command is called.


class LazyGroup(click.Group):
    table: ClassVar[Mapping[str, tuple[str, str, str]]] = COMMANDS  # as in commands.py
    path: ClassVar[str] = ""  # what is typed before its commands, behind `paceline`

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, attribute, _ = self.table[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}.{attribute} is not a click command"
        _show_examples(f"{self.path} {cmd_name}".strip(), command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.table and not args[0].startswith("-"):
            _unknown_command(args[0], list(self.table), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, _, help_line) in self.table.items()])


def _show_examples(path: str, command: click.Command) -> None:
    """In the help of a command and of all below it."""
    from paceline.cli.examples import format_examples  # not for the list of commands

    command.epilog = format_examples(path)
    if isinstance(command, click.Group):
        for name, member in command.commands.items():
            _show_examples(f"{path} {name}", member)


def _unknown_command(name: str, known: list[str], ctx: click.Context) -> NoReturn:
    raise click.NoSuchCommand(name, possibilities=known, ctx=ctx)

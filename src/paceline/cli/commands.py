"""Table of commands, and the click group that imports a command only when it runs."""

import importlib
from collections.abc import Mapping
from typing import ClassVar, NoReturn

import click

# group: name: (module, attribute that holds the click command, help in one line)
GROUPS: dict[str, dict[str, tuple[str, str, str]]] = {
    "Train and compare": {
        "train": ("paceline.cli.train", "train", "Train a task with many workers."),
        "run": ("paceline.cli.run", "run_script", "Run your own training script with many workers."),
        "check": ("paceline.cli.check", "check", "Show the strategies that suit your training script."),
        "compare": ("paceline.cli.compare", "compare", "Train under several strategies and compare them."),
        "benchmark": (
            "paceline.cli.benchmark",
            "benchmark",
            "Compare with plain PyTorch, Keras and Ray Train.",
        ),
        "tune": ("paceline.cli.tune", "tune", "Search hyperparameters with Ray Tune."),
        "simulate": ("paceline.cli.simulate", "simulate", "Predict every strategy without training."),
        "advise": ("paceline.cli.simulate", "advise", "Recommend a strategy for a recorded run."),
        "data": ("paceline.cli.data", "data", "Download, prepare, shard and upload datasets."),
        "config": ("paceline.cli.config", "config", "List settings and where each value comes from."),
    },
    "Understand a run": {
        "status": ("paceline.cli.status", "status", "Show state, throughput, workers and alerts."),
        "events": ("paceline.cli.events", "events", "Show the event log, or follow it."),
        "dashboard": ("paceline.cli.dashboard", "dashboard", "Serve the web dashboard."),
        "report": ("paceline.cli.compare", "report", "Write an HTML report of finished runs."),
        "alerts": ("paceline.cli.alerts", "alerts", "List, send and silence alerts."),
        "metrics": ("paceline.cli.metrics", "metrics", "Serve metrics to Prometheus and Grafana."),
        "export": ("paceline.cli.export", "export", "Export a run to TensorBoard, MLflow or W&B."),
        "checkpoint": ("paceline.cli.checkpoint", "checkpoint", "List, verify and export checkpoints."),
    },
    "Survive and test faults": {
        "workers": ("paceline.cli.workers", "workers", "Add, remove, pause or kill workers of a live run."),
        "stop": ("paceline.cli.workers", "stop", "Stop a run gracefully, with a checkpoint."),
        "lab": ("paceline.cli.lab", "lab", "Inject faults and check what the run promises."),
        "verify": ("paceline.cli.verify", "verify", "Check that no step or sample was lost or repeated."),
        "replay": ("paceline.cli.verify", "replay", "Re-execute a recorded run bit for bit."),
        "laws": ("paceline.cli.laws", "laws", "Check a strategy against its mathematical laws."),
        "agent": ("paceline.cli.agent", "agent", "Start workers on this host, for runs of a coordinator."),
        "standby": ("paceline.cli.standby", "standby", "Continue a run whose command's machine is lost."),
        "coordinator": ("paceline.cli.coordinator", "coordinator", "Run the Raft-replicated coordinator."),
    },
    "Kubernetes, Ray and images": {
        "job": ("paceline.cli.job", "job", "Render, submit, follow and explain jobs."),
        "cluster": ("paceline.cli.cluster", "cluster", "Check and fix a Kubernetes cluster."),
        "ray": ("paceline.cli.ray", "ray", "Start a local Ray cluster; submit runs to one."),
        "image": ("paceline.cli.image", "image", "Check, build, test and push container images."),
        "skills": ("paceline.cli.skills", "skills", "Install skills for coding agents."),
    },
    "Learn and check": {
        "demo": ("paceline.cli.compare", "demo", "Compare every strategy on XOR with a straggler."),
        "learn": ("paceline.cli.learn", "learn", "Learn distributed training in 8 exercises."),
        "doctor": ("paceline.cli.doctor", "doctor", "Check that this machine is ready."),
        "explain": ("paceline.cli.explain", "explain", "Explain an error code, exit code or alert."),
    },
}

# Not in the list of `paceline --help`: completion, and former names, which print a note with the new one.
_UNLISTED: dict[str, tuple[str, str, str]] = {
    "completion": ("paceline.cli.main", "completion", "Print a shell completion script."),
    "plan": ("paceline.cli.train", "plan", "Show what train would do."),
    "top": ("paceline.cli.status", "top", "Watch a run's workers in the terminal."),
    "lighthouse": ("paceline.cli.lighthouse", "lighthouse", "Serve a fault-tolerant torchft lighthouse."),
    "deploy": ("paceline.cli.deploy", "deploy", "Deploy the coordinator or a dashboard."),
}
RENAMED = {
    "plan": "train --dry-run",
    "top": "status --watch",
    "lighthouse": "coordinator lighthouse",
    "deploy": "cluster deploy",
}

COMMANDS = {name: row for group in GROUPS.values() for name, row in group.items()} | _UNLISTED

# Commands that share a line of `paceline --help`, so that all fit on one screen.
_SHARED_LINES = {
    ("run", "check"): "Run your own training script; show what suits it.",
    ("simulate", "advise"): "Predict every strategy; recommend one for a run.",
    ("workers", "stop"): "Add, remove, pause or kill workers; stop a run.",
    ("agent", "standby"): "Start workers on this host; continue a run whose machine is lost.",
    ("verify", "replay"): "Check the record of a run; re-execute it bit for bit.",
}


# `paceline --help` must answer at once, so names and help lines come from the
# table, and a command's module is imported when the command is called.


HELP_ALL = "paceline.help_all"  # in a context's meta: --help-all was given
_QUIETING = frozenset({"--json", "--plain", "-q", "--quiet"})


class LazyGroup(click.Group):
    table: ClassVar[Mapping[str, tuple[str, str, str]]] = COMMANDS  # name: (module, attribute, help)
    path: ClassVar[str] = ""  # what is typed before its commands, behind `paceline`

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, attribute, _ = self.table[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}.{attribute} is not a click command"
        path = f"{self.path} {cmd_name}".strip()
        _show_examples(RENAMED.get(path, path), command)
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


class RootGroup(LazyGroup):
    """`paceline` itself: commands by group on one screen; former names of commands still work."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        is_quiet = any(ctx.params.get(flag) for flag in ("json", "plain", "quiet"))
        if name in RENAMED and not is_quiet and not _QUIETING & {*args}:
            click.echo(f"note: `paceline {name}` is now `paceline {RENAMED[name]}`", err=True)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shows_all = bool(ctx.meta.get(HELP_ALL))
        formatter.write(f"Usage: {ctx.command_path} [OPTIONS] COMMAND [ARGS]...\n{self.help}\n\n")
        groups = {group: _help_lines(commands) for group, commands in GROUPS.items()}
        width = max(len(names) for lines in groups.values() for names in lines) + 2
        for group, lines in groups.items():
            formatter.write(f"{group}\n")
            for names, help_line in lines.items():
                formatter.write(f"  {names:<{width}}{help_line}\n")
        if shows_all:
            click.Command.format_options(self, ctx, formatter)  # a group's also lists the commands
        else:
            formatter.write("Global options: paceline --help-all. Shell completion: paceline completion -h\n")


def _help_lines(commands: Mapping[str, tuple[str, str, str]]) -> dict[str, str]:
    """Text by the names of the commands that it describes."""
    lines = {name: help_line for name, (_, _, help_line) in commands.items()}
    for names, help_line in _SHARED_LINES.items():
        if names[0] in lines:
            lines = {", ".join(names) if name == names[0] else name: text for name, text in lines.items()}
            lines[", ".join(names)] = help_line
            del lines[names[1]]
    return lines


def _show_examples(path: str, command: click.Command) -> None:
    """In the help of a command and of all below it."""
    from paceline.cli.examples import format_examples  # not for the list of commands

    command.epilog = format_examples(path)
    if isinstance(command, click.Group):
        for name, member in command.commands.items():
            _show_examples(f"{path} {name}", member)


def _unknown_command(name: str, known: list[str], ctx: click.Context) -> NoReturn:
    raise click.NoSuchCommand(name, possibilities=known, ctx=ctx)

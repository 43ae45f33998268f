"""Which commands exist? One row each; a command's module is imported only when it runs."""

# name: (module, attribute that holds the click command, help in one line)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "train": ("paceline.cli.train", "train", "Train a task with many workers."),
    "plan": ("paceline.cli.plan", "plan", "Say what train would do, and start nothing."),
}

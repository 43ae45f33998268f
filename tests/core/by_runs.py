"""Provocations of E3: run folders, finished or in use."""

from pathlib import Path

from tests.core.provoked import Codes, Provocation, printed_codes, raised
from tests.monitoring.scripted_log import ScriptedLog, a_plan

from paceline.monitoring.alerts.delivery import AlertNotifier, try_notifier
from paceline.monitoring.alerts.rule_file import read_rules
from paceline.plan.codec import dumps
from paceline.plan.plan import Device, Elastic, EventDetail
from paceline.training.run import load_resumable


def _run(folder: Path, mode: str = "ssgd", **more: object) -> str:
    """A folder with a plan and a log that has just begun."""
    ScriptedLog().write(folder, a_plan(mode=mode, **more))  # type: ignore[arg-type]  # fields of a plan
    return str(folder)


def _elastic(folder: Path) -> str:
    return _run(folder, elastic=Elastic(workers=2, min_workers=1, max_workers=2))


def _damaged_plan(folder: Path) -> Codes:
    (folder / "plan.json").write_text("no plan")
    return printed_codes(folder, "verify", str(folder))


def _silent_run(folder: Path) -> Codes:
    (folder / "plan.json").write_text(dumps(a_plan(events=EventDetail.OFF)))
    (folder / "events.jsonl").touch()
    return printed_codes(folder, "status", str(folder))


def _on_a_gpu(_folder: Path) -> Codes:
    from paceline.events.read import History
    from paceline.worker.replay.schedule import replay

    return raised(lambda: replay(a_plan(device=Device.CUDA), History(), ""))


def _own_mode(folder: Path) -> Codes:
    from paceline.events.read import read_history
    from paceline.simulate.recording import profile_of

    log = ScriptedLog()
    log.steps("worker-0", 0, [0.1, 0.2])
    log.write(folder, a_plan(workers=1))
    return raised(lambda: profile_of(read_history(folder / "events.jsonl"), a_plan(workers=1, mode="gossip")))


def _damaged_checkpoint(folder: Path) -> Codes:
    from paceline.checkpoints.snapshot import read_snapshot

    (folder / "worker-0.json").write_text("{}")
    (folder / "worker-0.safetensors").write_bytes(b"damaged")
    return raised(lambda: read_snapshot(folder, "worker-0"))


def _command_that_fails(folder: Path) -> Codes:
    rules = read_rules("rules: []\nnotifiers: [{kind: command, command: 'false', retries: 0}]", "test")
    return raised(lambda: try_notifier(rules, "command", folder, print))


def _two_heralds(folder: Path) -> Codes:
    _run(folder)
    rules = read_rules("rules: []", "test")

    def second() -> None:
        with AlertNotifier(folder, rules, print):
            pass

    with AlertNotifier(folder, rules, print):
        return raised(second)


def _mixed_types(_folder: Path) -> Codes:
    import torch

    from paceline.transport.arena import Layout

    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1).to(torch.float64))
    return raised(lambda: Layout.of(model))


PROVOCATIONS: dict[str, Provocation] = {
    "E300": lambda folder: printed_codes(folder, "report", _run(folder), str(folder)),
    "E301": lambda folder: printed_codes(folder, "status"),
    "E302": lambda folder: printed_codes(folder, "replay", _run(folder)),
    "E303": _damaged_plan,
    "E304": _silent_run,
    "E305": _on_a_gpu,
    "E306": _own_mode,
    "E307": lambda folder: raised(lambda: load_resumable(Path(_run(folder)))),
    "E308": _damaged_checkpoint,
    "E310": lambda folder: printed_codes(folder, "job", "validate", str(folder / "nothing.yaml")),
    "E311": _mixed_types,
    "E320": _command_that_fails,
    "E321": _two_heralds,
    "E322": lambda folder: printed_codes(folder, "workers", "list", _run(folder)),
    "E323": lambda folder: printed_codes(folder, "workers", "list", _elastic(folder)),
}

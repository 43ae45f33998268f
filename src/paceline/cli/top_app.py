"""`paceline status --watch`: the terminal application and its keys.

The only module that imports textual (extra `tui`).
"""

import getpass
import uuid
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Input, Static

from paceline.cli.status import HEADS, lines_of, row_of
from paceline.faults.actions.queue import ActionQueue, BusyError, QueuedAction
from paceline.faults.actions.request import MAX_HOLD_S, ActionKind, ActionRequest
from paceline.monitoring.view.feed import Feed
from paceline.plan.codec import Json

EVERY_S = 0.5
HELP = (
    "? this help   / filter by name or state   : the same   esc back   s sort by the next column   "
    "p pause or resume   K kill (with confirmation)   q quit"
)
# What the table can be sorted by, and the field of a worker.
SORTS = {"name": "worker", "step": "step", "lag": "lag", "speed": "relative_speed", "memory": "memory_bytes"}


class TopApp(App[None]):
    CSS = (
        "#head { height: auto; padding: 0 1; } #talk { height: auto; padding: 0 1; } Input { display: none; }"
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "help"),
        Binding("slash", "filter", "filter"),
        Binding("colon", "filter", show=False),
        Binding("escape", "leave", "back", show=False),
        Binding("s", "sort", "sort"),
        Binding("p", "pause", "pause"),
        Binding("K", "kill", "kill"),
        Binding("y", "confirm", show=False),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, run_dir: Path, *, is_readonly: bool = False) -> None:
        super().__init__()
        self._run_dir = run_dir
        self._is_readonly = is_readonly
        self._feed = Feed(run_dir)
        self.snapshot: dict[str, Json] = {}
        self.sort_by = "name"
        self.filter_text = ""
        self._doomed: str | None = None  # the worker to kill on confirmation
        self._actions = ActionQueue()
        self._last_action: QueuedAction | None = None
        self._shown_steps = 0  # of the last action

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield DataTable[str](cursor_type="row")
        yield Input(placeholder="part of a name or a state")
        yield Static(id="talk")
        yield Footer()

    def on_unmount(self) -> None:
        self._actions.close()  # paused workers continue

    def on_mount(self) -> None:
        self._table.add_columns(*HEADS)
        self.refresh_run()
        self.set_interval(EVERY_S, self.refresh_run)

    @property
    def _table(self) -> "DataTable[str]":
        table: DataTable[str] = self.query_one(DataTable)
        return table

    def refresh_run(self) -> None:
        self._feed.read()
        if self._feed.view.seq == 0:
            return
        self.snapshot = self._feed.view.snapshot(self._feed.now_ns())
        lines = lines_of(self.snapshot, str(self._run_dir))
        # Everything above the table, which is drawn below.
        head = lines[: lines.index("")]
        alerts = [line for line in lines if line.startswith(("firing", "pending"))]
        self.query_one("#head", Static).update("\n".join([*head, *alerts]))
        self._draw()
        self._show_action_progress()

    def _draw(self) -> None:
        table = self._table
        chosen = self.chosen
        table.clear()
        names = [str(worker["worker"]) for worker in self.shown()]
        for worker in self.shown():
            table.add_row(*row_of(worker), key=str(worker["worker"]))
        if chosen in names:
            table.cursor_coordinate = Coordinate(names.index(chosen), 0)

    def shown(self) -> list[dict[str, Json]]:
        """The workers that match, in order."""
        workers = self.snapshot["workers"]
        assert isinstance(workers, list), "a snapshot lists its workers"
        matching = [
            w for w in workers if isinstance(w, dict) and self.filter_text in f"{w['worker']} {w['state']}"
        ]
        if self.sort_by == "name":
            return matching
        field = SORTS[self.sort_by]
        # Most important first: furthest behind, slowest, largest.
        sign = -1 if self.sort_by in ("lag", "memory") else 1
        return sorted(matching, key=lambda w: sign * float(str(w[field] or 0)))

    @property
    def chosen(self) -> str | None:
        table = self._table
        if not table.row_count or not table.is_valid_coordinate(table.cursor_coordinate):
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    def talk(self, text: str) -> None:
        self.query_one("#talk", Static).update(text)

    def action_help(self) -> None:
        self.talk(HELP)

    def action_filter(self) -> None:
        box = self.query_one(Input)
        box.display = True
        box.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.filter_text = event.value.strip()
        self.action_leave()
        self._draw()

    def action_leave(self) -> None:
        self._doomed = None
        self.query_one(Input).display = False
        self._table.focus()
        self.talk("")

    def action_sort(self) -> None:
        names = list(SORTS)
        self.sort_by = names[(names.index(self.sort_by) + 1) % len(names)]
        self.talk(f"sorted by {self.sort_by}")
        self._draw()

    def action_pause(self) -> None:
        if self._may_act() and self.chosen is not None:
            worker = next((w for w in self.shown() if w["worker"] == self.chosen), None)
            is_paused = worker is not None and worker["state"] == "paused"
            self._submit(ActionKind.RESUME if is_paused else ActionKind.PAUSE, self.chosen)

    def action_kill(self) -> None:
        if self._may_act() and self.chosen is not None:
            self._doomed = self.chosen
            run = self.snapshot["run"]
            ends = isinstance(run, dict) and not run["is_elastic"]
            cost = " This ends the run, which is not elastic." if ends else ""
            self.talk(f"Kill {self._doomed}?{cost} y: kill, esc: cancel")

    def action_confirm(self) -> None:
        if self._doomed is not None:
            doomed = self._doomed
            self._doomed = None
            self._submit(ActionKind.KILL, doomed)  # forced: the prompt named the consequence

    def _may_act(self) -> bool:
        if self._is_readonly:
            self.talk("actions are disabled by --readonly")
        return not self._is_readonly

    def _submit(self, kind: ActionKind, worker: str) -> None:
        """Submit the action as the other commands and the dashboard do; its progress is shown later."""
        request = ActionRequest(
            id=uuid.uuid4().hex,
            kind=kind,
            worker=worker,
            for_s=MAX_HOLD_S,
            is_forced=kind is ActionKind.KILL,
            by=getpass.getuser(),
            source="cli",
        )
        try:
            self._last_action, _ = self._actions.submit(self._run_dir.name, self._run_dir, request)
        except BusyError as error:
            self.talk(f"{error.what}; {error.hint}")
            return
        self._shown_steps = 0
        self.talk(f"{kind.value} {worker} …")

    def _show_action_progress(self) -> None:
        action = self._last_action
        if action is not None and len(action.steps) > self._shown_steps:
            self._shown_steps = len(action.steps)
            step = action.steps[-1]
            request = action.request
            phase = step.phase.value.replace("_", " ")
            self.talk(f"{request.kind.value} {request.worker}: {phase}, {step.note}")

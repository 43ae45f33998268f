"""What does a dashboard hold while it serves? The runs it follows, what was asked, experiments that go on."""

import asyncio
from pathlib import Path

from paceline.app.actions.desk import Desk
from paceline.app.actions.wanted import FAULTS, Deed
from paceline.dashboard.counted import Counted
from paceline.dashboard.found_runs import LOG, FoundRuns, NoRunError
from paceline.dashboard.lab_desk import LabDesk
from paceline.dashboard.replaying import Recorded
from paceline.dashboard.settings import Settings
from paceline.dashboard.watched import Watched
from paceline.plan.codec import Json, read
from paceline.plan.plan import Launcher
from paceline.watch.rule_file import load_rules
from paceline.watch.rules import Rules

MOST_WATCHED = 12  # runs that are followed, unless more are being watched; a comparison takes six
MOST_RECORDED = 8


class Hall:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.runs = FoundRuns.at(settings.place, is_run=settings.stops_with_stdin)
        self.desk, self.lab, self.counted = Desk(), LabDesk(self.runs.root), Counted()
        self._rules: Rules | None = None if settings.rules is None else load_rules(settings.rules)
        self._watched: dict[str, Watched] = {}
        self._recorded: dict[str, tuple[int, Recorded]] = {}
        self.closing = asyncio.Event()  # streams end with it
        self.bells: set[asyncio.Event] = set()  # of those who wait

    def folder(self, run: str | None) -> tuple[str, Path]:
        name = run or self.runs.usual()
        if name is None:
            raise NoRunError(f"{self.runs.root} has no run yet", "start one: paceline train --dashboard")
        if name == self.runs.named and not (self.runs.root / name / LOG).exists():
            raise NoRunError(f"the run {name} has not begun yet", "look again in a moment")
        return name, self.runs.folder(name)

    async def watched(self, run: str | None) -> Watched:
        name, folder = self.folder(run)
        found = self._watched.pop(name, None) or Watched(folder, self._rules, self.counted)
        self._watched[name] = found  # the last one is the one that was asked for last
        found.start()
        await self._forget()
        return found

    async def _forget(self) -> None:
        """Who is not watched was only looked at once: each costs memory, and a look now and then."""
        idle = [name for name, watched in self._watched.items() if watched.viewers == 0]
        for name in idle[: max(0, len(self._watched) - MOST_WATCHED)]:
            if self._watched[name] is not next(reversed(self._watched.values())):
                await self._watched.pop(name).close()

    def recorded(self, run: str | None) -> Recorded:
        name, folder = self.folder(run)
        size = (folder / LOG).stat().st_size  # one that has grown is another recording
        if name not in self._recorded or self._recorded[name][0] != size:
            self._recorded.pop(name, None)
            self._recorded[name] = (size, Recorded(folder, self._rules))
            while len(self._recorded) > MOST_RECORDED:
                del self._recorded[next(iter(self._recorded))]
        return self._recorded[name][1]

    def about(self, run: str | None) -> dict[str, Json]:
        """What the page must know besides the run itself."""
        name, _ = self.folder(run)
        settings = self.settings
        return {
            "run": name,
            "is_replay": settings.is_replay,
            "is_readonly": settings.is_readonly,
            "allows_faults": self.allows_faults(run),
            "viewers": self.counted.viewers,
        }

    def allows_faults(self, run: str | None) -> bool:
        """Unless it was said: only where the workers are processes of this machine."""
        settings = self.settings
        if settings.is_readonly or settings.is_replay:
            return False
        if settings.allows_faults is not None:
            return settings.allows_faults
        return read(self.folder(run)[1] / "plan.json").launcher is Launcher.LOCAL

    def why_not(self, run: str | None, deed: Deed) -> str:
        if self.settings.is_replay:
            return "this is a recording"
        if deed in FAULTS and not self.allows_faults(run):
            return "faults are off here; start the dashboard with --allow-faults"
        return ""

    def end_streams(self) -> None:
        self.closing.set()
        for bell in self.bells:
            bell.set()

    async def close(self) -> None:
        self.end_streams()
        for watched in list(self._watched.values()):
            await watched.close()
        await asyncio.to_thread(self.lab.close)
        await asyncio.to_thread(self.desk.close)

"""What does the dashboard say about itself? Viewers, frames made, frames left out, and how late they are."""

from dataclasses import dataclass, field

from paceline.events.timings import BOUNDS_S, Timings

DELAY = "paceline_dashboard_event_delay_seconds"


@dataclass(slots=True)
class Counted:
    viewers: int = 0
    frames: int = 0  # that were made: none while nobody looks
    dropped: int = 0  # that slow viewers did not get
    delays: Timings = field(default_factory=Timings)  # of frames, behind the newest thing that they tell

    def exposition(self) -> bytes:
        rows = (
            ("paceline_dashboard_viewers", "gauge", "Pages that follow a run here.", self.viewers),
            ("paceline_dashboard_frames_total", "counter", "Messages made for viewers.", self.frames),
            (
                "paceline_dashboard_frames_dropped_total",
                "counter",
                "Frames that slow viewers did not get.",
                self.dropped,
            ),
        )
        lines = []
        for name, kind, text, value in rows:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return ("\n".join([*lines, *self._delays()]) + "\n").encode()

    def _delays(self) -> list[str]:
        text = "From the newest step of a frame until the frame was made."
        lines, so_far = [f"# HELP {DELAY} {text}", f"# TYPE {DELAY} histogram"], 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.delays.counts, strict=True):
            so_far += count
            lines.append(f'{DELAY}_bucket{{le="{bound}"}} {so_far}')
        return [*lines, f"{DELAY}_count {so_far}", f"{DELAY}_sum {self.delays.total_s}"]

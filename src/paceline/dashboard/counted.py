"""What does the dashboard say about itself? Viewers, frames made, frames left out."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counted:
    viewers: int = 0
    frames: int = 0  # that were made: none while nobody looks
    dropped: int = 0  # that slow viewers did not get

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
        return ("\n".join(lines) + "\n").encode()

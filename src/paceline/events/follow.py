"""What does a log say that is still being written? Each look reads only what is new.

All plain events are kept, and of each worker's steps the newest: whoever looks
a hundred times a second at a long run must not read it a hundred times a second.
"""

from pathlib import Path

from paceline.events.read import History, take


class Following:
    def __init__(self, path: Path, *, rows: int) -> None:
        self._path, self._rows = path, rows
        self._offset = 0
        self._history = History()

    def read(self) -> History:
        """The same object each time, brought up to date; empty as long as there is no log."""
        for line in self._new_lines():
            take(self._history, line, is_header=self._offset == 0)
            self._offset += len(line.encode()) + 1
        for rows in self._history.steps.values():
            del rows[: -self._rows]
        return self._history

    def _new_lines(self) -> list[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        # Behind the last newline is a line that somebody is just writing.
        return data[: data.rfind(b"\n") + 1].decode().splitlines()

"""What does a log say that is still being written? Each look reads only what is new.

All plain events are kept, and of each worker's steps the newest: whoever looks
a hundred times a second at a long run must not read it a hundred times a second.
"""

from pathlib import Path

from paceline.events.read import History, take


class NewLines:
    """Each whole line of a growing file once, in the order in which they were written."""

    def __init__(self, path: Path, most_bytes: int = -1) -> None:
        """`most_bytes`: about so many are read at a time, for who reads again until there is nothing."""
        self._path, self._most = path, most_bytes
        self.offset = 0  # bytes read so far

    def read(self) -> list[str]:
        """Nothing as long as there is no file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(self._most)
                if len(data) == self._most and b"\n" not in data:
                    data += file.readline()
        except FileNotFoundError:
            return []
        # Behind the last newline is a line that somebody is just writing.
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return whole.decode().split("\n")[:-1]


class Following:
    def __init__(self, path: Path, *, rows: int) -> None:
        self._lines, self._rows = NewLines(path), rows
        self._history = History()
        self._has_header = False

    def read(self) -> History:
        """The same object each time, brought up to date; empty as long as there is no log."""
        for line in self._lines.read():
            take(self._history, line, is_header=not self._has_header)
            self._has_header = True
        for rows in self._history.steps.values():
            del rows[: -self._rows]
        return self._history

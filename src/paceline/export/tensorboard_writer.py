"""TensorBoard writer: an event file of TensorBoard's own messages and records.

Not by its EventFileWriter, which imports all of TensorFlow where that is installed.
"""

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from paceline.core.clock import unix_now_s
from paceline.core.errors import AlreadyThereError
from paceline.export.writer import Outcome, Point, RunInfo

_STATUS = {
    Outcome.FINISHED: api_pb2.STATUS_SUCCESS,
    Outcome.STOPPED: api_pb2.STATUS_FAILURE,
    Outcome.FAILED: api_pb2.STATUS_FAILURE,
}


class TensorboardWriter:
    """Writes into the run's folder, or into a subfolder of the given one, named as the run."""

    def __init__(self, run_info: RunInfo, where: str | None) -> None:
        self._folder = run_info.folder / "tensorboard" if where is None else Path(where) / run_info.name
        self._now_s = run_info.started_unix_s
        if not run_info.goes_on and any(self._folder.glob("events.out.tfevents.*")):
            raise AlreadyThereError(
                f"{self._folder} already holds event files, so points would appear twice",
                "name another folder, such as tensorboard=FOLDER, or remove the files",
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = RecordWriter(_new_file(self._folder).open("wb"))
        self._put(event_pb2.Event(wall_time=self._now_s, file_version="brain.Event:2"))
        if not run_info.goes_on:
            self._add(
                hparams_pb(dict(run_info.parameters), trial_id=run_info.name, start_time_secs=self._now_s)
            )

    @property
    def place(self) -> str:
        return str(self._folder)

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            self._now_s = point.unix_s
            values = [
                summary_pb2.Summary.Value(tag=name, simple_value=value)
                for name, value in point.values.items()
            ]
            self._add(summary_pb2.Summary(value=values), step=point.step)
        self._file.flush()

    def rewind(self, step: int) -> None:
        """TensorBoard then drops its points of this step and later ones."""
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._put(event_pb2.Event(wall_time=self._now_s, step=step, session_log=start))

    def end(self, outcome: Outcome) -> None:
        self._add(_end_of_session(outcome, self._now_s))
        self._file.close()

    def _add(self, summary: summary_pb2.Summary, step: int = 0) -> None:
        self._put(event_pb2.Event(wall_time=self._now_s, step=step, summary=summary))

    def _put(self, event: event_pb2.Event) -> None:
        self._file.write(event.SerializeToString())


def _new_file(folder: Path) -> Path:
    """The name that TensorBoard expects; later sessions sort later."""
    return folder / f"events.out.tfevents.{int(unix_now_s()):010d}.{socket.gethostname()}.{os.getpid()}.0"


def _end_of_session(outcome: Outcome, at_unix_s: float) -> summary_pb2.Summary:
    """The status of the run on the page of hyper-parameters."""
    ended = plugin_data_pb2.SessionEndInfo(status=_STATUS[outcome], end_time_secs=at_unix_s)
    summary_metadata = metadata.create_summary_metadata(
        plugin_data_pb2.HParamsPluginData(session_end_info=ended)
    )
    tag = metadata.SESSION_END_INFO_TAG
    null_tensor = metadata.NULL_TENSOR
    return summary_pb2.Summary(
        value=[summary_pb2.Summary.Value(tag=tag, metadata=summary_metadata, tensor=null_tensor)]
    )

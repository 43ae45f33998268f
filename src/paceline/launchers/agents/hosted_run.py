"""A run on one host: the connection to its command, and the helper process that forks participants.

The agent passes the command's orders to the helper (worker/entry/zygote.py), and the helper's messages back;
before each message of consequence it sends what the participants have written until then. When the
connection ends, or the command is silent, the helper is closed and ends every participant, so that none
trains on beside its replacement.
"""

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from paceline import __version__
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.core import environ
from paceline.core.clock import SystemClock, boot_id
from paceline.core.errors import PeerLostError, ProtocolError
from paceline.core.processes import kill_each, members_of_session
from paceline.launchers.agents.folder import Scratch, is_checkpoint_file, parts_of
from paceline.launchers.agents.wire import (
    AGENT_SILENCE_S,
    HANDSHAKE_S,
    MAX_JSON_BYTES,
    Message,
    Peer,
)
from paceline.worker.tls import client_tls_context

SOCKET_NAME = "agent.sock"
SEND_S = 0.1  # interval of new lines and of progress
HELPER_S = 60.0  # for the helper to end its participants
_QUIET = frozenset({"ready", "progress", "started", "shared"})  # messages that no written file belongs to


@dataclass(slots=True)
class Slots:
    """The slots of one host, which all of its runs share."""

    total: int
    used: int = 0

    @property
    def free(self) -> int:
        return max(0, self.total - self.used)


class Helper:
    """The process that imports torch once and forks the participants of a run."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "paceline.worker.entry.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environ.for_child(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONPATH=_import_path()),
            )
        ours.setblocking(False)
        self.socket = ours

    async def close(self) -> None:
        """End it; it ends its participants."""
        self.socket.close()
        await asyncio.to_thread(self._wait)

    def _wait(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(HELPER_S)
        kill_each(members_of_session(self._process.pid))
        self._process.wait()


def _import_path() -> str:
    """Participants import the user's task from the folder in which the agent was started, or as the agent."""
    return environ.python_path(Path.cwd())


@dataclass(slots=True, kw_only=True)
class HostedRun:
    offer: pb.OfferRun
    name: str  # of this agent
    folder: Path  # to create, for what participants write
    take_helper: Callable[[], Helper]
    slots: Slots
    coordinator: Message  # how participants reach it from this host
    address: str  # at which participants here listen for those of other hosts
    note: Callable[[str], None]
    is_draining: Callable[[], bool]
    slot: str = ""  # by which the command knows this host, if it started it
    _participants: dict[str, int] = field(default_factory=dict)  # and their pids; 0: not started yet
    _peer: Peer | None = None
    _helper: Helper | None = None
    _scratch: Scratch = field(init=False)
    _answers: dict[int, "asyncio.Future[Message]"] = field(default_factory=dict)
    _numbers: int = 0
    _sending_text: asyncio.Lock = field(default_factory=asyncio.Lock)
    _folder_fd: int = -1
    _is_told_draining: bool = False
    _told_free: int = 0  # slots, as the command knows
    _has_ended: bool = False  # nothing is sent any more
    _is_refused: bool = False  # the plan cannot be run here
    _is_over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def participants(self) -> Sequence[str]:
        return sorted(self._participants)

    async def run(self) -> None:
        """Until the run is over, or the connection ends: ConnectionError."""
        peer, ahead_ns = await self._connect()
        self._peer = peer
        try:
            self._helper = self.take_helper()
            await self._serve(peer, ahead_ns)
        finally:
            peer.close()
            if self._helper is not None:
                await self._helper.close()
            self.slots.used -= len(self._participants)
            self._participants.clear()
            if self._folder_fd >= 0:
                os.close(self._folder_fd)
            shutil.rmtree(self.folder, ignore_errors=True)

    async def _serve(self, peer: Peer, ahead_ns: int) -> None:
        self._scratch = Scratch(self.folder, self.offer.run)
        server = await asyncio.start_unix_server(self._answer_participant, sock=self._listen())
        tasks = [
            asyncio.create_task(self._follow_helper()),
            asyncio.create_task(self._follow_command(peer, ahead_ns)),
            asyncio.create_task(self._send_lines(peer)),
            asyncio.create_task(self._is_over.wait()),
        ]
        peer.keep_alive(self._tick)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await peer.drain()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            server.close()
            self._has_ended = True
            for answer in self._answers.values():  # their participants end with the helper
                answer.set_result({"failure": "the connection to the command has ended", "removed": []})

    def _listen(self) -> socket.socket:
        """A socket in the folder, which only this user can open. A path by way of /proc is never too long."""
        self._folder_fd = os.open(self.folder, os.O_PATH | os.O_DIRECTORY)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"/proc/self/fd/{self._folder_fd}/{SOCKET_NAME}")
        return listener

    async def _connect(self) -> tuple[Peer, int]:
        """The command, and how far its clock is ahead of the one here."""
        host, _, port = self.offer.address.rpartition(":")
        host = host.strip("[]")
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                reader, writer = await asyncio.open_connection(
                    host, int(port), ssl=client_tls_context(self.offer.certificate), server_hostname=host
                )
        except (OSError, ssl.SSLError, TimeoutError) as error:
            raise ConnectionError(f"no connection to {self.offer.address}: {error}") from error
        peer = Peer(reader, writer)
        try:
            return peer, await self._greet(peer)
        except BaseException:
            peer.close()
            raise

    async def _greet(self, peer: Peer) -> int:
        """How far the clock of the command is ahead."""
        peer.send(
            {
                "name": self.name,
                "secret": self.offer.secret.hex(),
                "paceline": __version__,
                "boot": boot_id(),
                "free": self._free(),
                "total": self.slots.total,
                "scratch": str(self.folder),
                "slot": self.slot,
            }
        )
        welcome, _ = await peer.receive(HANDSHAKE_S)
        if welcome["op"] == "refused":
            raise ProtocolError(str(welcome["why"]), "install the same version of paceline on all hosts")
        return await _clock_difference(peer, int(str(welcome["rounds"])))

    def _tick(self) -> Message:
        return {"ev": "tick"}

    def announce_drain(self) -> None:
        """Tell the command that the participants here must leave."""
        if self._peer is not None and not self._is_told_draining:
            self._is_told_draining = True
            self._peer.send({"ev": "draining"})

    def announce_room(self) -> None:
        """Tell the command how many slots are free, unless it knows."""
        if self._peer is not None and self._told_free != self.slots.free:
            self._peer.send({"ev": "slots", "free": self._free()})

    def _free(self) -> int:
        """The free slots, for a message to the command."""
        self._told_free = self.slots.free
        return self._told_free

    # Orders of the command.

    async def _follow_command(self, peer: Peer, ahead_ns: int) -> None:
        if self.is_draining():
            self.announce_drain()
        while True:
            order, blob = await peer.receive(AGENT_SILENCE_S)
            match order["op"]:
                case "tick":  # the helper ends its participants without them
                    await self._order(order)
                case "file":
                    self._write_file(order, blob)
                case "answer":
                    answer = self._answers.pop(int(str(order["number"])), None)
                    if answer is not None and not answer.done():
                        answer.set_result(order)
                case "start":
                    await self._order(self._start_order(order, ahead_ns))
                case "fork" | "fork_server":
                    await self._fork(order)
                case _:
                    await self._order(order)

    def _start_order(self, order: Message, ahead_ns: int) -> Message:
        resume_from = order.get("resume_from")
        folder = self.folder
        return {
            **order,
            "run_dir": str(folder),
            "resume_from": None if resume_from is None else str(folder / str(resume_from)),
            "coordinator": {**self.coordinator, "run": self.offer.run},
            "host": self.address,
            "agent": {
                "name": self.name,
                "ahead_ns": ahead_ns,
                "socket": f"/proc/{os.getpid()}/fd/{self._folder_fd}/{SOCKET_NAME}",
            },
            "participants": [],
        }

    async def _fork(self, order: Message) -> None:
        participant = str(order["who"])
        if not self.slots.free or self._is_refused or self.is_draining():
            assert self._peer is not None, "orders come over the connection"
            self._peer.send({"ev": "full", "who": participant, "free": 0})
            return
        self.slots.used += 1
        self._participants[participant] = 0
        await self._order(order)

    async def _order(self, order: Message) -> None:
        data = json.dumps(order).encode() + b"\n"
        try:
            await asyncio.get_running_loop().sock_sendall(self._open_helper().socket, data)
        except OSError as error:
            raise ConnectionError(f"the process that starts the workers has ended: {error}") from error

    def _open_helper(self) -> Helper:
        assert self._helper is not None, "orders come over the connection, and the helper is there before it"
        return self._helper

    def _write_file(self, order: Message, blob: bytes) -> None:
        """A part of a checkpoint to resume from."""
        name = str(order["path"])
        if not is_checkpoint_file(name):
            raise ProtocolError(f"{name!r} is not a file of a checkpoint", "upgrade paceline on all hosts")
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.part")
        with draft.open("wb" if order["is_first"] else "ab") as file:
            file.write(blob)
        if order["is_last"]:
            draft.rename(path)

    # Messages of the helper.

    async def _follow_helper(self) -> None:
        loop = asyncio.get_running_loop()
        buffer = b""
        while True:
            data = await loop.sock_recv(self._open_helper().socket, 1 << 16)
            if not data:
                raise ConnectionError("the process that starts the workers has ended")
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                await self._pass_on(json.loads(line))

    async def _pass_on(self, message: Message) -> None:
        assert self._peer is not None, "the helper is followed while there is a connection"
        kind = message["ev"]
        if kind not in _QUIET:
            await self._send_text()
        if kind == "report":
            await self._send_results()
        if kind == "started":
            self._participants[str(message["who"])] = int(str(message["pid"]))
        if kind == "exited" and self._participants.pop(str(message["who"]), None) is not None:
            self.slots.used -= 1
            self.note(f"{message['who']} of {self.offer.run} ended with exit code {message['code']}")
        if kind == "refused":  # none of those that were ordered will start, nor any that is ordered later
            self._is_refused = True
            self.slots.used -= len(self._participants)
            self._participants.clear()
        if len(json.dumps(message)) > MAX_JSON_BYTES // 2:
            raise ProtocolError(f"a {kind} message is too long to be sent", "shorten what the task reports")
        self._peer.send({**message, "free": self._free()})
        await self._peer.drain()
        if kind == "over":
            self._is_over.set()

    # Files.

    async def _send_lines(self, peer: Peer) -> None:
        while True:
            await self._send_text()
            await asyncio.sleep(SEND_S)

    async def _send_text(self) -> None:
        """One part after the other: on a slow link the rest waits on the disk, not in memory."""
        assert self._peer is not None, "lines are sent while there is a connection"
        async with self._sending_text:  # the parts of two callers would be mixed
            for message, data in self._scratch.take_text():
                self._peer.send(message, data)
                await self._peer.drain()

    async def _send_results(self) -> None:
        for path in self._scratch.take_results():
            await self._send_file(path, path.name)

    async def _send_file(self, path: Path, name: str) -> None:
        assert self._peer is not None, "files are sent while there is a connection"
        for message, data in parts_of(path, name):
            self._peer.send({"ev": "file", **message}, data)
            await self._peer.drain()

    async def _answer_participant(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What a participant asks of the run folder, by worker/agent_disk.py."""
        try:
            async for line in reader:
                request = json.loads(line)
                try:
                    answer = await self._ask_command(request)
                except (OSError, PeerLostError) as error:
                    answer = {"failure": str(error), "removed": []}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass  # the participant has ended
        finally:
            writer.close()

    async def _ask_command(self, request: Message) -> Message:
        assert self._peer is not None, "participants run while there is a connection"
        await self._send_text()  # first: a checkpoint must never be ahead of the log
        match request["ask"]:
            case "store":
                question = await self._store(request)
            case "newest":
                question = {"ev": "newest"}
            case "return":
                question = {"ev": "return"}
            case "fetch":  # the files come before the answer
                question = {"ev": "fetch", "at": int(str(request["at"]))}
            case "recorded":
                question = {"ev": "recorded"}
            case other:
                raise ProtocolError(f"a participant asks for {other!r}", "upgrade paceline on all hosts")
        if self._has_ended:
            raise ConnectionError("the connection to the command has ended")
        number = self._numbers
        self._numbers += 1
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._peer.send({**question, "number": number})
        return await answer

    async def _store(self, request: Message) -> Message:
        """A participant has written a snapshot: send it, and ask whether it is in the run folder."""
        participant = str(request["who"])
        folder = self.folder / "checkpoints" / str(request["folder"])
        for suffix in ("safetensors", "json"):
            name = f"{participant}.{suffix}"
            await self._send_file(folder / name, f"checkpoints/{folder.name}/{name}")
        at = int(folder.name.removeprefix("at-"))
        return {"ev": "stored", "at": at, "who": participant, "participants": request["participants"]}


async def _clock_difference(peer: Peer, rounds: int) -> int:
    """How far the command's clock is ahead; of several answers the fastest is the most exact."""
    clock = SystemClock()
    best: tuple[int, int] | None = None
    for _ in range(rounds):
        asked_ns = clock.now_ns()
        peer.send({"ev": "clock"})
        answer, _ = await peer.receive(HANDSHAKE_S)
        answered_ns = clock.now_ns()
        ahead = int(str(answer["now_ns"])) - (asked_ns + answered_ns) // 2
        best = min(best or (answered_ns - asked_ns, ahead), (answered_ns - asked_ns, ahead))
    return 0 if best is None else best[1]

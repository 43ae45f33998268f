"""Test hosts share nothing but a switch, their faults are real, and nothing of them is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.hosts import hosts
from tests.fixtures.processes.command import ROOT
from tests.fixtures.waiting import is_running, until_gone

from paceline.faults.hosts.network import PREFIX, HostNetwork, Impairment, remove_stale
from paceline.faults.hosts.requirements import (
    NoHostsError,
    can_make_hosts,
    cannot_delay,
    cannot_limit_rate,
    cannot_lose_packets,
    require,
)

PORT = 4000
# Accepts connections, reads a request and answers with as many bytes as it asks for.
SERVER = """
import socket, threading
def serve(connection):
    while request := connection.recv(20):
        connection.sendall(b"x" * int(request))
listening = socket.create_server(("", 4000))
print("listening", flush=True)
while True:
    threading.Thread(target=serve, args=[listening.accept()[0]], daemon=True).start()
"""
# Connects, asks for so many bytes so many times, and prints how long an answer took at the least.
CLIENT = """
import socket, sys, time
host, size, times, timeout_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
with socket.create_connection((host, 4000), timeout=timeout_s) as connection:
    least_s = float("inf")
    for _ in range(times):
        begun_s = time.monotonic()
        connection.sendall(b"%20d" % size)
        left = size
        while left:
            left -= len(connection.recv(1 << 20))
        least_s = min(least_s, time.monotonic() - begun_s)
    print(least_s)
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostNetwork]:
    with hosts(3, tmp_path_factory.mktemp("hosts")) as network:
        for host in network:
            _serve(network, host.number)
        yield network


@pytest.fixture(autouse=True)
def _whole_network(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "network" in request.fixturenames:
        network: HostNetwork = request.getfixturevalue("network")
        network.heal()
        for host in network:
            network.impair(host.number, Impairment())


def _serve(network: HostNetwork, number: int) -> None:
    server = network.host(number).start([sys.executable, "-c", SERVER])
    assert server.process.stdout is not None
    assert server.process.stdout.readline() == "listening\n"


def _answers(
    network: HostNetwork, source: int, target: int, *, size: int = 1, times: int = 1, timeout_s: float = 0.5
) -> float | None:
    """The shortest time of an answer; None if none came."""
    arguments = [f"host-{target}", str(size), str(times), str(timeout_s)]
    done = network.host(source).run([sys.executable, "-c", CLIENT, *arguments])
    return float(done.stdout) if done.returncode == 0 else None


def _shell(network: HostNetwork, number: int, command: str) -> str:
    done = network.host(number).run(["sh", "-c", command])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_hosts_reach_each_other_by_name_and_share_no_file_no_memory_and_no_process(
    network: HostNetwork,
) -> None:
    assert _answers(network, 1, 2) is not None
    for folder in ("/tmp", "/dev/shm", "$HOME", "."):
        _shell(network, 1, f"echo mine > {folder}/note")
        assert _shell(network, 2, f"ls {folder}") == ""
    assert (network.host(1).folder / "note").read_text() == "mine\n"
    for shared in ("/var/note", str(ROOT / "note"), "/etc/hosts"):
        done = network.host(1).run(["sh", "-c", f"echo x >> {shared}"])
        assert done.returncode != 0, shared
    assert [_shell(network, number, "hostname") for number in (1, 2, 3)] == ["host-1", "host-2", "host-3"]
    others = network.host(2).start(["sleep", "1000"])
    assert "sleep 1000" not in _shell(network, 1, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert others.kill() == -signal.SIGKILL


def test_monotonic_clocks_of_hosts_differ_and_a_wall_clock_can_be_stepped(tmp_path: Path) -> None:
    with hosts(2, tmp_path, has_wall_clocks=True) as network:
        one = _clocks(network, 1)
        other = _clocks(network, 2)
        assert abs(one[0] - other[0]) > 1000
        assert _boot(network, 1) != _boot(network, 2), "what says whether two clocks are the same"
        assert _boot(network, 1) == _boot(network, 1)
        assert abs(one[1] - other[1]) < 1000
        network.host(2).step_wall_clock(3600.0)
        stepped = _clocks(network, 2)
        assert 3000 < stepped[1] - other[1] < 4200
        assert abs(stepped[0] - other[0]) < 1000


def _boot(network: HostNetwork, number: int) -> str:
    program = "from paceline.core.clock import boot_id; print(boot_id())"
    return network.host(number).run([sys.executable, "-c", program]).stdout


def _clocks(network: HostNetwork, number: int) -> tuple[float, float]:
    read = "import time; print(time.monotonic(), time.time())"
    monotonic_s, wall_s = network.host(number).run([sys.executable, "-c", read]).stdout.split()
    return float(monotonic_s), float(wall_s)


def test_a_cut_is_silent_and_a_one_way_cut_lets_the_other_direction_pass(network: HostNetwork) -> None:
    network.cut(1, 2)
    assert _answers(network, 1, 2) is None
    assert _answers(network, 2, 1) is None
    assert _answers(network, 1, 3) is not None
    network.heal()
    assert _answers(network, 1, 2) is not None
    network.cut_one_way(1, 2)
    heard = (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 4001)); print('x', flush=True)"
    )
    listening = network.host(1).start([sys.executable, "-c", f"{heard}; print(s.recv(9))"])
    assert listening.process.stdout is not None
    assert listening.process.stdout.readline() == "x\n"
    _shell(network, 2, f'{sys.executable} -c "{_send("host-1")}"')
    assert listening.process.stdout.readline() == "b'hello'\n"
    listening.wait()
    assert _answers(network, 2, 1) is None  # the answers are lost: they come from host 1


def _send(host: str) -> str:
    return f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'hello', ('{host}', 4001))"


def test_a_host_without_link_reaches_no_host_and_a_flap_ends(network: HostNetwork) -> None:
    for _ in range(2):
        network.link_down(3)
        assert _answers(network, 3, 1) is None
        network.link_up(3)
        assert _answers(network, 3, 1, timeout_s=20) is not None
    network.isolate(3)
    assert _answers(network, 3, 1) is None
    assert _answers(network, 1, 2) is not None


def test_packets_are_delayed_lost_and_limited_where_the_machine_can(network: HostNetwork) -> None:
    if cannot_delay() is None:
        network.impair(2, Impairment(delay_s=0.1))
        delayed_s = _answers(network, 1, 2, times=3, timeout_s=20)
        assert delayed_s is not None
        assert delayed_s >= 0.1
    if cannot_lose_packets() is None:
        network.impair(2, Impairment(loss_share=1.0))
        assert _answers(network, 1, 2) is None
    if cannot_limit_rate() is None:
        network.impair(2, Impairment(rate_mbit_s=8.0))
        limited_s = _answers(network, 2, 1, size=1_000_000, timeout_s=20)
        assert limited_s is not None
        assert limited_s > 0.5
    network.impair(2, Impairment())
    assert _answers(network, 2, 1, size=1_000_000, timeout_s=20) is not None


def test_a_lost_host_leaves_connections_open_and_comes_back_with_its_disk(network: HostNetwork) -> None:
    host = network.host(3)
    _shell(network, 3, "echo kept > /tmp/disk; echo lost > /dev/shm/memory")
    child = host.start(["sh", "-c", "sleep 1000 & wait"])
    pid = child.pid
    client = network.host(1).start(["sh", "-c", f"{sys.executable} -c '{_patient('host-3')}'"])
    assert client.process.stdout is not None
    assert client.process.stdout.readline() == "connected\n"
    network.lose(3)
    assert child.wait() == -signal.SIGKILL
    assert not is_running(pid)
    assert client.process.stdout.readline() == "silent\n"
    client.wait()
    network.restart(3)
    assert _shell(network, 3, "cat /tmp/disk; ls /dev/shm") == "kept"
    _serve(network, 3)
    assert _answers(network, 1, 3, timeout_s=20) is not None


def _patient(host: str) -> str:
    """Connects, and says whether the connection was closed or stays silent for a second."""
    return f"""
import socket
s = socket.create_connection(("{host}", {PORT}), timeout=1)
print("connected", flush=True)
try:
    print(s.recv(1))
except TimeoutError:
    print("silent")
"""


def test_a_process_is_killed_by_its_pid_on_the_host(network: HostNetwork) -> None:
    host = network.host(1)
    child = host.start(["sh", "-c", "echo $$; exec sleep 1000"])
    assert child.process.stdout is not None
    host.signal(int(child.process.stdout.readline()), signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        host.signal(4_000_000, signal.SIGKILL)


OWNER = """
import sys, time
from pathlib import Path
from paceline.faults.hosts.network import host_network
with host_network(2) as network:
    process = network.host(1).start(["sleep", "1000"])
    print(network.name, process.pid, network.host(1).folder, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_of_an_owner_is_left_after_it_was_killed(number: signal.Signals) -> None:
    reason = can_make_hosts()
    if reason is not None:
        pytest.skip(f"NO HOSTS CAN BE MADE HERE, so this is NOT tested: {reason}")
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        name, pid, folder = owner.stdout.readline().split()
        assert name.startswith(PREFIX)
        owner.send_signal(number)
    until_gone([int(pid)])
    stale = remove_stale()
    assert any(entry.startswith(name) for entry in stale) == (number is signal.SIGKILL)
    assert name not in _left()
    assert not Path(folder).exists()


def _left() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def test_another_user_than_root_is_told_the_reason() -> None:
    pid = os.fork()
    if pid == 0:
        if os.geteuid() == 0:
            os.seteuid(65534)
        reason = can_make_hosts() or ""
        os._exit(0 if "root" in reason else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with pytest.raises(NoHostsError) as caught:
        require(lambda: "it is Tuesday", "no hosts")
    assert caught.value.problems[0].code == "E211"

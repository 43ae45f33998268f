"""Scenarios drop-packets and delay-packets: the network to and among the coordinators is bad. Nobody waits.

Doors in front of the nodes (lines.py) break connections, let them stall, or make
everything late, by a seed. A worker that loses its line comes back over a new
one; training asks nobody in between.
"""

from pathlib import Path

from paceline.app.lab.delays import not_delayed
from paceline.app.lab.expect import Expectation, at_least
from paceline.app.lab.nodes import nodes
from paceline.app.lab.proof import proofs
from paceline.app.lab.ticking import Telling
from paceline.app.lab.training import training, usual_plan
from paceline.app.lab.weather import CLEAR, Weather
from paceline.events.read import History

WORKERS, NODES = 3, 3
USUAL_TIMES = 8  # seconds of bad weather
SEED = 7


def drop_packets(run_dir: Path, times: int, say: Telling) -> list[Expectation]:
    return _through(Weather(lost_share=0.01, stall_share=0.03, stall_s=0.2, seed=SEED), run_dir, times, say)


def delay_packets(run_dir: Path, times: int, say: Telling) -> list[Expectation]:
    return _through(Weather(late_s=(0.02, 0.06), seed=SEED), run_dir, times, say)


def _through(weather: Weather, run_dir: Path, seconds: int, say: Telling) -> list[Expectation]:
    plan = usual_plan(workers=WORKERS, steps=1_000_000)
    with (
        nodes(run_dir / "coordinators", NODES, with_doors=True) as cluster,
        training(plan, run_dir, cluster.place) as run,
    ):
        assert cluster.lines is not None, "there are doors"
        run.until_in(WORKERS, 0)
        began_ns = run.now_ns()
        cluster.lines.set_weather(weather)
        for second in range(seconds):
            run.wait(1.0)
            say(f"second {second + 1} of {seconds}: {_in_words(weather)}")
            say.so_far(_judge(run.history(), weather, began_ns, run.now_ns()))
        ended_ns = run.now_ns()
        cluster.lines.set_weather(CLEAR)
        run.until_in(WORKERS, 0)  # all are in the newest generation, or come back to it now
        history = run.finish(30, early=True)
    return [*say.settled(_judge(history, weather, began_ns, ended_ns)), *proofs(run_dir, history, say)]


def _judge(history: History, weather: Weather, began_ns: int, ended_ns: int) -> list[Expectation]:
    return [
        at_least("pieces of data that were lost, stalled or late", _hit(weather), 10),
        not_delayed(history, began_ns, ended_ns, "in bad weather"),
    ]


def _hit(weather: Weather) -> int:
    return weather.lost + weather.stalled + (weather.passed if weather.late_s[1] > 0 else 0)


def _in_words(weather: Weather) -> str:
    if weather.late_s[1] > 0:
        low, high = (1000 * bound for bound in weather.late_s)
        return f"{weather.passed} pieces late by {low:g} to {high:g} ms"
    return f"{weather.passed} pieces passed, {weather.stalled} stalled, {weather.lost} lost"

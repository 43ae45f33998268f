"""Runs called from scripts and notebooks, each in a process of its own."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fixtures.waiting import descendants, is_running, kill, until

QUICK = "task_options={'hidden': 4}, steps=5, progress=False"
ANYWHERE = f"""
import asyncio, json, sys
import paceline
assert "torch" not in sys.modules and "numpy" not in sys.modules, "importing is quick"
found = {{}}
found["plain"] = paceline.train("xor", {QUICK})

async def cell():
    # As in a notebook, where a loop is running while a cell is.
    found["loop"] = paceline.train("xor", elastic=True, {QUICK})
    found["thread"] = await asyncio.to_thread(paceline.train, "xor", mode="asgd", {QUICK})

asyncio.run(cell())
assert "torch" not in sys.modules
print(json.dumps({{name: [str(r.run_dir), r.mode, r.steps] for name, r in found.items()}}))
"""


def python(text: str, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """`python - <<'END'`: no file, no `if __name__ == "__main__"`."""
    command = [sys.executable, "-", *args]
    return subprocess.run(
        command, input=text, cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )


def answer(completed: subprocess.CompletedProcess[str]) -> Any:  # Any: JSON
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def test_it_works_twice_in_a_row_in_a_thread_and_beside_a_running_loop(tmp_path: Path) -> None:
    response = answer(python(ANYWHERE, tmp_path))
    steps = {name: (mode, steps) for name, (_, mode, steps) in response.items()}
    # Under asgd one worker may have made all the steps before the other came.
    assert steps.pop("thread") in [("asgd", 5), ("asgd", 10)]
    assert steps == {"plain": ("ssgd", 5), "loop": ("ssgd", 5)}
    folders = [Path(folder) for folder, _, _ in response.values()]
    assert len(set(folders)) == 3
    assert all(folder.parent == tmp_path / "runs" for folder in folders)


def test_a_class_is_found_where_the_program_finds_it_and_progress_goes_to_stderr(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "own_task.py").write_text(
        "from paceline.tasks.xor import XorTask\n\nclass Own(XorTask):\n    pass\n"
    )
    (tmp_path / "work").mkdir()
    text = (
        "import sys; sys.path.append('../lib')\n"
        "import paceline\nfrom own_task import Own\n"
        "print('[\"', paceline.train(Own, workers=1, steps=4).task, '\"]', sep='')\n"
    )
    completed = python(text, tmp_path / "work")
    assert answer(completed) == ["own_task:Own"]
    assert "step 4/4 100%" in completed.stderr


LONG = """
import paceline
try:
    paceline.train("xor", steps=100_000, pace="5ms", run_dir="run", progress=False)
except KeyboardInterrupt as stopped:
    print(type(stopped).__name__, stopped.result.stopped_early, stopped, flush=True)
"""


def test_after_ctrl_c_the_workers_are_gone_and_a_checkpoint_is_left(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LONG)
    process = subprocess.Popen(
        [sys.executable, str(script)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    log = tmp_path / "run" / "events.jsonl"
    seen: list[int] = []
    try:
        until(lambda: log.exists() and log.read_text().count('"kind":"steps"') > 1, "they train")
        seen = list(descendants(process.pid))
        assert len(seen) >= 3, "the helper and two workers"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert out.startswith("TrainStoppedError True ")
        assert "paceline.resume(" in out
        until(lambda: not any(map(is_running, seen)), "no process is left")
    finally:
        for pid in [process.pid, *seen]:
            if is_running(pid):
                kill(pid)
        process.communicate()
    assert list((tmp_path / "run" / "checkpoints").glob("at-*"))


def test_a_stopped_run_is_resumed_to_its_end(tmp_path: Path) -> None:
    text = """
import os, signal, threading, paceline
from pathlib import Path
log = Path("run/events.jsonl")

def stop():
    while not log.exists() or '"kind":"worker_started"' not in log.read_text():
        threading.Event().wait(0.02)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=stop, daemon=True).start()
try:
    paceline.train("xor", steps=400, pace="10ms", run_dir="run", progress=False)
except paceline.TrainStoppedError as stopped:
    result = paceline.resume(stopped.result.run_dir, progress=False)
    print([stopped.result.steps < 400, result.steps])
"""
    completed = python(text, tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.strip() == "[True, 400]"


def test_sigterm_still_ends_the_program(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LONG], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    log = tmp_path / "run" / "events.jsonl"
    try:
        until(lambda: log.exists() and '"kind":"steps"' in log.read_text(), "they train")
        process.terminate()
        process.communicate(timeout=120)
    finally:
        if is_running(process.pid):
            kill(process.pid)
        process.communicate()
    assert process.returncode == -signal.SIGTERM
    assert json.loads((tmp_path / "run" / "result.json").read_text())["stopped_by"] == "SIGTERM"


def test_a_notebook_s_class_is_refused_with_what_to_do(tmp_path: Path) -> None:
    text = "import paceline\nclass Mine: pass\npaceline.train(Mine)\n"
    completed = python(text, tmp_path)
    assert completed.returncode == 1
    assert "my_task.py" in completed.stderr.partition("fix: ")[2]
    assert not (tmp_path / "runs").exists()

"""Attacks a model, its engines, its files and its server, one scene after the other.

    python tools/attack.py [--minutes 3] [--seed 1] [--scene NAME ...] [--model FILE] [--out FILE.md]
    python tools/attack.py --list                    the scenes
    python tools/attack.py --scene mixes --trials 9  a number of trials, however long they take
    python tools/attack.py --scene connections --connections 10000
    python tools/attack.py --scene engines --minutes 30 --longest 1800  a soak, with memory over time

Each scene runs in its own process, with an equal share of the time, a limit on memory and a limit on time.
The checks do not depend on the speed of the machine: texts are equal, or an error is a proper one.  Times are
only reported.  If time is left after all scenes, they run again with the next seed.  A failed scene is printed
with the command that repeats it; then the exit status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path

from attacks import SCENES
from run_report import command as command_line
from run_report import machine

ROOT = Path(__file__).resolve().parent.parent
SHORTEST = 5.0
"""Seconds that must be left for a turn after the first."""
LEVELS = 18
"""Levels of memory from which on they are reported."""
HANG = 300.0
"""Seconds after which a trial counts as hung: its process reports where, and ends."""
GIB = 2**30


@dataclass
class Found:
    """The result of a turn of a scene.

    Attributes:
        scene: The scene's name.
        seed: The turn's seed.
        trials: Number of trials.
        seconds: Duration.
        counts: How often each thing was checked or done.
        figures: Measurements.
        wrong: Violations.
        levels: A table of what was allocated over time, of a turn of some minutes.
    """

    scene: str
    seed: int
    trials: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    figures: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    levels: list[str] = field(default_factory=list)


def play(options: argparse.Namespace, scene: str, seed: int, seconds: float) -> Found:
    """Play a scene in this process, for a number of seconds or trials."""
    from attacks.memory import level_table, levels
    from attacks.world import World

    world = World(seed, Path(options.folder), options.model, options.connections)
    module = import_module(f"attacks.{scene}")
    began, trials = time.monotonic(), 0
    playing: Generator[None, None, None] = module.scene(world)
    try:
        faulthandler.dump_traceback_later(HANG, exit=True)
        for _ in playing:
            faulthandler.dump_traceback_later(HANG, exit=True)
            trials += 1
            over = trials >= options.trials if options.trials else False
            if world.wrong or over or (not options.trials and time.monotonic() - began > seconds):
                break
    finally:
        playing.close()
        faulthandler.cancel_dump_traceback_later()
    noted = levels(world.levels)
    return Found(
        scene, seed, trials, time.monotonic() - began, dict(world.counts), world.figures, world.wrong,
        level_table(noted) if len(noted) >= LEVELS else [],
    )  # fmt: skip


def child(options: argparse.Namespace) -> int:
    """Play one scene within limits, and write the result."""
    limit = int(options.memory * GIB)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path.insert(0, str(ROOT))
    found = play(options, options.scene[0], options.seed, options.seconds)
    Path(options.child).write_text(json.dumps(asdict(found)))
    return 0


def command(options: argparse.Namespace, scene: str, seed: int, seconds: float) -> list[str]:
    """The command for a scene's own process, without its folder and its result file."""
    return [
        sys.executable, str(Path(__file__).resolve()), "--scene", scene, "--seed", str(seed),
        "--seconds", str(seconds), "--trials", str(options.trials), "--memory", str(options.memory),
        "--connections", str(options.connections),
        *(["--model", str(options.model)] if options.model else []),
    ]  # fmt: skip


def turn(options: argparse.Namespace, scene: str, seed: int, seconds: float) -> Found:
    """Play a scene in its own process, and end all processes that it started."""
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        words = [
            *command(options, scene, seed, seconds),
            "--child",
            str(result),
            "--folder",
            folder,
        ]
        around = {
            **os.environ,
            "TMPDIR": folder,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "RUST_BACKTRACE": "0",  # llguidance's errors would load all debugging symbols, once
        }
        with log.open("wb") as out:
            process = subprocess.Popen(
                words, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=around,
                start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(None if options.trials else seconds + 2 * HANG)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end_all(process)
        if code == 0:
            return Found(**json.loads(result.read_text()))
        said = log.read_text(errors="replace")[-6000:]
        how = "hung" if code is None else f"ended with {code}"
        return Found(scene, seed, wrong=[f"its process {how}:\n{said}"])


def end_all(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def turns(options: argparse.Namespace) -> Iterator[Found]:
    """Play the scenes by turns until the time is over; each at least once."""
    end = time.monotonic() + 60 * options.minutes
    scenes = options.scene or list(SCENES)
    for number in itertools.count():
        for place, scene in enumerate(scenes):
            seconds = max(0.0, end - time.monotonic()) / (len(scenes) - place)
            if number and (seconds < SHORTEST or options.trials):
                return
            yield turn(options, scene, options.seed + number, min(options.longest, seconds))


def again(options: argparse.Namespace, found: Found) -> str:
    """The command that repeats a turn."""
    model = f" --model {options.model}" if options.model else ""
    trials = f" --trials {found.trials}" if found.trials else " --minutes 1"
    return f"python tools/attack.py --scene {found.scene} --seed {found.seed}{trials}{model}"


def report(options: argparse.Namespace, found: Sequence[Found]) -> str:
    """The results, as Markdown."""
    name = options.model.name if options.model else "the bundled model"
    lines = [
        f"# Attack, {time.strftime('%Y-%m-%d', time.gmtime())}", "",
        f"`{command_line(__file__, options.given)}` on {name}; {machine()}.", "",
        "| scene | turns | trials | checks and events | seconds | wrong |",
        "|---|---:|---:|---|---:|---:|",
    ]  # fmt: skip
    for scene in dict.fromkeys(each.scene for each in found):
        mine = [each for each in found if each.scene == scene]
        counts: dict[str, int] = {}
        for each in mine:
            for what, n in each.counts.items():
                counts[what] = counts.get(what, 0) + n
        told = ", ".join(f"{n:,} {what}" for what, n in counts.items())
        lines.append(
            f"| {scene} | {len(mine)} | {sum(each.trials for each in mine):,} | {told} | "
            f"{sum(each.seconds for each in mine):.0f} | {sum(len(each.wrong) for each in mine)} |"
        )
    lines += ["", *(f"- {each.scene}: {k}: {v}" for each in found for k, v in each.figures.items())]
    for each in found:
        if each.levels:
            lines += ["", f"Memory in {each.scene}:", "", *each.levels]
        if each.wrong:
            lines += ["", f"WRONG in {each.scene}; again: `{again(options, each)}`", ""]
            lines += [f"    {line}" for one in each.wrong[:20] for line in one.splitlines()]
    wrong = any(each.wrong for each in found)
    lines += ["", "Verdict: " + ("something is wrong" if wrong else "nothing is wrong")]
    return "\n".join(lines) + "\n"


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=3.0, help="for all scenes together")
    parser.add_argument("--longest", type=float, default=60.0, help="seconds of a scene's turn")
    parser.add_argument("--trials", type=int, default=0, help="trials of a scene, in place of time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scene", nargs="+", metavar="NAME", choices=SCENES, help=f"of {SCENES}")
    parser.add_argument(
        "--model", type=lambda p: Path(p).resolve(), help="default: the bundled one"
    )
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--memory", type=float, default=4.0, help="GiB for each process")
    parser.add_argument("--out", type=Path, help="write the report there, too")
    parser.add_argument("--list", action="store_true", help="name the scenes")
    for hidden in ("--child", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    found = parser.parse_args(arguments)
    found.given = arguments
    return found


def main() -> int:
    """Play what the command line asks for; return 1 if something was wrong."""
    options = parsed()
    if options.child:
        return child(options)
    if options.list:
        for scene in SCENES:
            doc = import_module(f"attacks.{scene}").__doc__ or ""
            print(f"{scene:<12} {doc.splitlines()[0]}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found, ended = list[Found](), False
    print(f"seed {options.seed}", flush=True)
    try:
        for each in turns(options):
            found.append(each)
            how = "WRONG" if each.wrong else "right"
            print(f"{each.scene}: {how}, {each.trials} trials, {each.seconds:.0f} s", flush=True)
    except KeyboardInterrupt:
        ended = True
    text = report(options, found) + ("Ended by hand.\n" if ended else "")
    print(text, end="")
    if options.out is not None:
        options.out.write_text(text)
    return 130 if ended else int(any(each.wrong for each in found))


if __name__ == "__main__":
    sys.exit(main())

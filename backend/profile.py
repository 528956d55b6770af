"""A profile: the real engine driven through a designed grid of steps, recorded as step traces to calibrate from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scheduler.errors import ConfigError, UserError, unknown_name
from traces.probes import steadiness

from .probe import probe_for
from .profile_grid import Design, Limits, batches, shuffled
from .rounds import Driver, Round

if TYPE_CHECKING:
    from .engine import Engine
    from .weights import Weights

LAYOUTS = ("ragged", "padded")
TURN = 40
"""Rounds that an engine runs before the next one has its turn."""
WARM_UP = 8
"""Rounds on an engine that is thrown away: what a process does for the first time takes long."""
READING_SHARE = 1 / 3
"""Of the time at most goes into reading documents; a history that was not read is computed when it is asked for."""
SAME = ("model", "hardware", "dtype", "software")
"""What all traces of a profile have in common."""
RANGES = (
    "computed_tokens", "num_reqs", "logits_rows", "prefill_rows", "prefill_pairs", "decode_rows", "decode_context",
)  # fmt: skip
"""Columns of the steps whose ranges are told."""


@dataclass(frozen=True)
class Part:
    """One engine and the trace it makes.

    Attributes:
        name: of the trace.
        settings: of the scheduler.
        batches: whether rounds are closed batches.
    """

    name: str
    settings: Mapping[str, Any]
    batches: bool = False


PARTS = {
    "ragged": (Part("ragged", {"policy": "chunked", "layout": "ragged"}),),
    "padded": (
        Part("padded", {"policy": "chunked", "layout": "padded"}),
        Part("static", {"policy": "static", "layout": "padded", "batch_timeout_s": 0.0}, batches=True),
    ),
}
"""By layout. Under `static` no prefix is ever found in the cache, so long contexts there are few."""


def profile(
    model: str | Path | Weights = "embedded", *, out: str | Path, layouts: Sequence[str] = LAYOUTS, repeats: int = 2,
    minutes: float = 5.0, seed: int = 0, on_round: Callable[[float], None] | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Record step traces that cover what an engine with these options can be asked for.

    On a CPU all engines are open at once and take turns, so that all meet the same machine, and their steps are
    interleaved with a probe; on a GPU, whose memory one engine fills, they run one after the other.

    Args:
        model: see `Engine`.
        out: folder for the traces; it is made. Traces of these names in it are replaced.
        layouts: ``ragged`` makes ``ragged.trace``; ``padded`` makes ``padded.trace`` and ``static.trace``.
        repeats: how often each round is run.
        minutes: when to stop at the latest, after the round then running; the layouts share the time.
        seed: of the spread rounds, their order and all tokens.
        on_round: told after each round which share of it all is done.
        options: of the engine.

    Returns:
        what was covered, as JSON can hold it.

    Raises:
        UserError: an option is wrong, the model cannot be had, or `out` cannot be written.
    """
    parts = _parts(layouts, repeats, minutes)
    groups = [parts] if _on_cpu(options) else [[part] for part in parts]
    start_s = time.perf_counter()
    records: list[dict[str, Any]] = []
    with _folder(Path(out)) as folder:
        for at, group in enumerate(groups):
            until_s = start_s + 60 * minutes * (at + 1) / len(groups)
            tell = _scaled(on_round, at, len(groups))
            records += _record_group(model, folder, group, {"seed": seed, **options}, repeats, until_s, tell)
    return {
        "folder": str(out), **{name: records[0][name] for name in SAME}, "seed": seed, "repeats": repeats,
        "missing": sum(record["missing"] for record in records), "wall_s": time.perf_counter() - start_s,
        "traces": [{name: value for name, value in record.items() if name not in SAME} for record in records],
    }  # fmt: skip


def design_of(part: Part, config: Any, seed: int) -> tuple[list[Round], list[Round], tuple[int, ...]]:
    """The rounds that read documents, those of the grid, and the documents' lengths."""
    limits = Limits.of(config, str(part.settings["layout"]))
    if part.batches:
        return [], batches(limits, seed), ()
    design = Design(limits, seed)
    return design.reading(), design.rounds(), design.documents


def _parts(layouts: Sequence[str], repeats: int, minutes: float) -> list[Part]:
    for name in layouts:
        if name not in PARTS:
            raise unknown_name("layout", name, LAYOUTS)
    if not layouts:
        raise ConfigError(f"no layout is given; expected some of {', '.join(LAYOUTS)}")
    if repeats < 1:
        raise ConfigError(f"repeats is {repeats}; expected a whole number >= 1")
    if not 0 < minutes < 1e6:
        raise ConfigError(f"minutes is {minutes}; expected minutes > 0")
    return [part for name in dict.fromkeys(layouts) for part in PARTS[name]]


@contextmanager
def _folder(path: Path) -> Iterator[Path]:
    """A folder, made if need be; it goes again where nothing came to be in it."""
    is_new = not path.exists()
    try:
        path.mkdir(exist_ok=True)
    except FileExistsError as error:
        raise UserError(f"cannot record traces in {path}: a file of that name exists") from error
    except FileNotFoundError as error:
        raise UserError(f"cannot record traces in {path}: there is no folder {path.parent}") from error
    except OSError as error:
        raise UserError(f"cannot record traces in {path}: {error.strerror}") from error
    try:
        yield path
    finally:
        if is_new and not any(path.iterdir()):
            path.rmdir()


def _scaled(on_round: Callable[[float], None] | None, at: int, count: int) -> Callable[[float], None]:
    return lambda share: on_round((at + share) / count) if on_round is not None else None


def _record_group(
    model: str | Path | Weights, folder: Path, parts: Sequence[Part], options: Mapping[str, Any], repeats: int,
    until_s: float, tell: Callable[[float], None],
) -> list[dict[str, Any]]:  # fmt: skip
    from .engine import Engine

    for part in parts:
        _warm_up(model, part, options)
    with ExitStack() as stack:
        runs = [
            _Run(
                stack.enter_context(Engine(model, trace=folder / f"{part.name}.trace", **{**options, **part.settings})),
                part, int(options["seed"]), repeats,
            )
            for part in parts
        ]  # fmt: skip
        _probe(stack, model, runs, options)
        _take_turns(runs, until_s, tell)
    return [_record(run) for run in runs]


def _probe(
    stack: ExitStack, model: str | Path | Weights, runs: Sequence[_Run], options: Mapping[str, Any]
) -> None:  # fmt: skip
    """Interleave the steps with a probe, where that is possible: not on a GPU, whose memory the engine fills and which
    nobody shares, nor with steps planned ahead.
    """
    engines = [run.engine for run in runs]
    if any(engine.config.async_scheduling for engine in engines) or not _on_cpu(options):
        return
    probe = stack.enter_context(probe_for(model, options))
    for engine in engines:
        probe.beside(engine)


def _on_cpu(options: Mapping[str, Any]) -> bool:
    from .build import find_device

    return find_device(str(options.get("device", "auto"))).type == "cpu"


def _warm_up(model: str | Path | Weights, part: Part, options: Mapping[str, Any]) -> None:
    from .engine import Engine

    with Engine(model, **{**options, **part.settings}) as engine:
        driver = Driver(engine)
        for number, asked in enumerate(shuffled(design_of(part, engine.config, 0)[1], 1, 0)[:WARM_UP]):
            driver.run(_without_histories(asked), f"warm-up-{number}")


def _without_histories(asked: Round) -> Round:
    first, then = (tuple(replace(ask, history=0) for ask in wave) for wave in (asked.first, asked.then))
    return Round(asked.kind, first, then)


def _take_turns(runs: list[_Run], until_s: float, tell: Callable[[float], None]) -> None:
    """Whoever has the smallest share of its rounds behind it goes next; each has one turn at least."""
    start_s = time.perf_counter()
    for run in runs:
        run.read(start_s + READING_SHARE * (until_s - start_s))
    in_time, waiting = True, list(runs)
    while waiting and (in_time or any(not run.done for run in waiting)):
        run = min(waiting, key=lambda run: run.share)
        in_time = run.turn(until_s) and in_time
        waiting = [run for run in waiting if run.share < 1]
        tell(sum(run.share for run in runs) / len(runs))


class _Run:
    """The rounds of one engine."""

    def __init__(self, engine: Engine, part: Part, seed: int, repeats: int) -> None:
        self.engine = engine
        self._part, self._seed, self._repeats = part, seed, repeats
        self._reading, rounds, documents = design_of(part, engine.config, seed)
        self._rounds = shuffled(rounds, repeats, seed)
        self._distinct = len(rounds)
        self._driver = Driver(engine, documents, seed)
        self._read = 0
        self.done = 0

    def facts(self) -> dict[str, Any]:
        """For the trace's meta and the record."""
        return {
            "part": self._part.name, "seed": self._seed, "repeats": self._repeats, "rounds": self._distinct,
            "run": self.done, "missing": len(self._rounds) - self.done, "documents": len(self._reading),
            "documents_read": self._read,
        }  # fmt: skip

    @property
    def share(self) -> float:
        """Of its rounds that have been run."""
        return self.done / len(self._rounds)

    def read(self, stop_s: float) -> None:
        """Read the documents, the longest first, as far as the time goes."""
        for number, asked in enumerate(self._reading):
            if time.perf_counter() > stop_s:
                break
            self._driver.run(asked, f"read-{number}")
            self._read += 1
        self.engine.annotate(profile=self.facts())

    def turn(self, until_s: float) -> bool:
        """The next few rounds, at least one; False when the time is up."""
        in_time = True
        for number in range(self.done, min(self.done + TURN, len(self._rounds))):
            asked = self._rounds[number]
            self._driver.run(asked, f"{asked.kind}-{number}")
            self.done = number + 1
            in_time = time.perf_counter() < until_s
            if not in_time:
                break
        self.engine.annotate(profile=self.facts())
        return in_time


def _record(run: _Run) -> dict[str, Any]:
    """What a trace covers."""
    trace = run.engine.trace
    assert trace is not None
    steps = trace.columns("steps", [*RANGES, "t_start_s", "t_end_s"])
    only_prefill, only_decode = steps["decode_rows"] == 0, steps["prefill_rows"] == 0
    kinds = {
        "prefill": int(only_prefill.sum()),
        "mixed": int((~only_prefill & ~only_decode).sum()),
        "decode": int(only_decode.sum()),
    }
    context = steps["decode_context"] / np.maximum(steps["decode_rows"], 1)
    return {
        "trace": trace.path.name,
        **{name: trace.meta[name] for name in (*SAME, "policy", "layout")},
        **{name: value for name, value in run.facts().items() if name in ("rounds", "run", "missing")},
        "steps": len(context),
        "kinds": kinds,
        "seconds": float((steps["t_end_s"] - steps["t_start_s"]).sum()),
        "ranges": {
            **{name: [int(steps[name].min()), int(steps[name].max())] for name in RANGES},
            "mean_decode_context": [0.0, float(context.max())],
        },
        "probe": steadiness(trace),
    }

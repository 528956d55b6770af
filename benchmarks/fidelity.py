"""How well the simulator foretells the real engine on the CPU: profile, calibrate, predict, run, compare. Prints JSON.

    python benchmarks/fidelity.py [--rounds 5] [--out FOLDER] [--only NAME] [--table]

1. The engine is driven through a designed grid of steps (`batchscope profile`), and a few runs are recorded.
2. `batchscope calibrate` makes a cost model of these traces.
3. Every case of `fidelity_cases.unseen` is predicted and run, `--rounds` times, one case after the other, so that what
   changes with time hits all of them. A probe (the same small piece of work each time) tells how slow the machine is:
   in the second before a run, which `foretold` is for, and between the steps of the run, which `predicted` is for. The
   cost file is there before any run; of a run `predicted` uses that speed alone, and it is what errors are of.

`error` is the median over the rounds of predicted / measured - 1, `spread` how far one of the identical runs strays
from their median. A bound (3%; p99 TTFT 8%) below 1.5 times the spread is replaced by that. `order` counts pairs of
policies (on the same requests) whose measured medians differ by more than both spreads, and those of them that are
predicted in that order.

With `--out` the cost file and a line for each run lie in that folder; what is there already is not done again, so a
stopped benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fidelity_calibrated import calibrated
from fidelity_cases import calibration, unseen
from fidelity_runs import FIGURES, Case, Machine, measured, median, predicted, probe, spread

from backend.probe import Probe

BOUNDS = {"tpot_s": 0.03, "e2e_s": 0.03, "makespan_s": 0.03, "ttft_p99_s": 0.08}
SPREADS = 1.5
"""A bound is at least so many times what identical runs differ by."""
NAMES = {"tpot_s": "mean TPOT", "e2e_s": "mean E2E", "makespan_s": "makespan", "ttft_p99_s": "p99 TTFT"}
RANKED = ("e2e_s", "makespan_s", "ttft_p99_s")


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="keep the cost file and the runs here, and go on from there")
    parser.add_argument("--only", help="only cases with this in their name or group")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print the tables of docs/validation.md instead of JSON")
    arguments = parser.parse_args()
    cases = [case for case in unseen() if (arguments.only or "") in f"{case.group}: {case.name}"]
    with ExitStack() as stack:
        folder = arguments.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        machine = Machine(threads=arguments.threads)
        meter = stack.enter_context(probe(machine))
        cost, base_s = calibrated(folder, machine, meter, calibration())
        rows = list(rounds(cases, machine, meter, cost, base_s, arguments.rounds, folder / "runs.jsonl"))
    found = report(cases, rows, json.loads(cost.read_text(encoding="utf-8")))
    print("\n".join(tables(found)) if arguments.table else json.dumps(found, indent=2))


def rounds(
    cases: list[Case], machine: Machine, meter: Probe, cost: Path, base_s: float, count: int, log: Path
) -> Iterator[dict[str, Any]]:
    """Each case predicted and run, `count` times; a row for each, kept in `log`."""
    done = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    have = {(row["case"], row["round"]): row for row in done}
    for number, case in itertools.product(range(count), cases):
        row = have.get((case.name, number))
        if row is None:
            row = {"case": case.name, "round": number, **once(case, machine, meter, cost, base_s)}
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(progress(row), file=sys.stderr, flush=True)
        yield row


def once(case: Case, machine: Machine, meter: Probe, cost: Path, base_s: float) -> dict[str, Any]:
    """The probe, the prediction for that moment, the run, and what the same cost says of the speed meanwhile."""
    before = meter.seconds() / base_s
    foretold = predicted(case, cost, before)
    real, probe_s = measured(case, machine, meter)
    during = probe_s / base_s
    return {
        "foretold": foretold, "measured": real, "predicted": predicted(case, cost, during),
        "slowdown_before": before, "slowdown": during,
    }  # fmt: skip


def progress(row: dict[str, Any]) -> str:
    errors = (f"{name} {error(row, name):+.1%}" for name in FIGURES if row["measured"][name] is not None)
    return f"round {row['round']}, {row['case']}: slowdown {row['slowdown']:.2f}, {', '.join(errors)}"


def error(row: dict[str, Any], figure: str) -> float:
    found: float = row["predicted"][figure] / row["measured"][figure] - 1
    return found


def report(cases: list[Case], rows: list[dict[str, Any]], cost: dict[str, Any]) -> dict[str, Any]:
    """Everything, the summary first."""
    by_case = [(case, [row for row in rows if row["case"] == case.name]) for case in cases]
    compared = {case.name: compare(found) for case, found in by_case}
    return {
        "summary": {figure: summary(figure, compared.values()) for figure in FIGURES},
        "order": {figure: order(figure, by_case) for figure in RANKED},
        "slowdown": {
            "least": min(row["slowdown_before"] for row in rows),
            "most": max(row["slowdown_before"] for row in rows),
        },
        "cases": [{**case.facts(), **compared[case.name]} for case in cases],
        "cost": cost,
    }


def compare(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A case's figures: measured and predicted medians, error, spread and bound."""
    steps = median([row["predicted"]["extrapolated_steps"] for row in rows])
    return {
        "extrapolated_steps": steps,
        **{figure: one(figure, rows) for figure in FIGURES if rows[0]["measured"][figure] is not None},
    }


def one(figure: str, rows: list[dict[str, Any]]) -> dict[str, float | bool]:
    real, said = ([row[side][figure] for row in rows] for side in ("measured", "predicted"))
    off = median([error(row, figure) for row in rows])
    strays = spread(real)
    bound = max(BOUNDS[figure], SPREADS * strays)
    return {
        "measured": median(real), "predicted": median(said), "error": off, "spread": strays, "bound": bound,
        "within": abs(off) <= bound, "spread_of_errors": spread([1 + error(row, figure) for row in rows]),
    }  # fmt: skip


def summary(figure: str, compared: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Over the cases: the median size of the error, the worst, and how many keep within their bounds."""
    found = [case[figure] for case in compared if figure in case]
    sizes = [abs(case["error"]) for case in found]
    return {
        "cases": len(found), "median_error": median(sizes), "worst_error": max(sizes), "target": BOUNDS[figure],
        "median_spread": median([case["spread"] for case in found]), "within": sum(case["within"] for case in found),
    }  # fmt: skip


def order(figure: str, by_case: list[tuple[Case, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Pairs of cases of a group that differ by more than both spreads, and how many are predicted in that order."""
    pairs = right = 0
    wrong = []
    for (a, of_a), (b, of_b) in itertools.combinations(by_case, 2):
        if a.group != b.group:
            continue
        real = [[row["measured"][figure] for row in rows] for rows in (of_a, of_b)]
        first, second = map(median, real)
        if abs(first - second) <= max(spread(real[0]) * first, spread(real[1]) * second):
            continue
        said = [median([row["predicted"][figure] for row in rows]) for rows in (of_a, of_b)]
        pairs += 1
        if (first < second) == (said[0] < said[1]):
            right += 1
        else:
            wrong.append([a.name, b.name])
    return {"pairs": pairs, "right": right, "wrong": wrong}


def tables(found: dict[str, Any]) -> list[str]:
    """Markdown: the summary, then a line a case."""
    head = ["| | cases | median error | worst | median spread | within the bound |", "|" + "---|" * 6]
    lines = [
        f"| {NAMES[figure]} | {one['cases']} | {one['median_error']:.1%} | {one['worst_error']:.1%} | "
        f"{one['median_spread']:.1%} | {one['within']} |"
        for figure, one in found["summary"].items()
    ]
    names = " | ".join(NAMES[figure] for figure in FIGURES)
    each = [f"| case | {names} |", "|" + "---|" * (1 + len(FIGURES))]
    return [*head, *lines, "", *each, *(line(case) for case in found["cases"])]


def line(case: dict[str, Any]) -> str:
    """A case: error (spread) of each figure, those beyond their bound in bold."""
    cells = []
    for figure in FIGURES:
        one = case.get(figure)
        text = "–" if one is None else f"{one['error']:+.1%} ({one['spread']:.0%})"
        cells.append(text if one is None or one["within"] else f"**{text}**")
    return f"| {case['case']} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()

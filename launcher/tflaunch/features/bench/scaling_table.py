"""The table and the plot of `tflaunch bench`, as text."""

from __future__ import annotations

from collections.abc import Sequence

from tflaunch.explain.figures import significant
from tflaunch.features.bench.scaling import Efficiency, Finding, Measured
from tflaunch_worker.readable import duration_words

_WIDTH = 40  # columns of the longest bar
_EIGHTHS = " ▏▎▍▌▋▊▉"


def table_of(runs: Sequence[Measured], efficiencies: Sequence[Efficiency], findings: Sequence[Finding]) -> list[str]:
    """Return the lines of a table, a run per line."""
    has_examples = all(run.examples_per_second is not None for run in runs)
    is_known = all(each.value is not None for each in efficiencies)
    head = ["WORKERS", "STEPS/S", *["EXAMPLES/S"] * has_examples]
    head += ["EFFICIENCY"] if is_known else ["WEAK", "STRONG"]
    head += ["CORES", "START-UP", "LIMITED BY"]
    rows = [head]
    for run, each, finding in zip(runs, efficiencies, findings, strict=True):
        row = [str(run.workers), significant(run.steps_per_second)]
        row += [significant(run.examples_per_second or 0.0)] * has_examples
        row += [f"{each.value:.0%}"] if is_known else [f"{each.weak:.0%}", f"{each.strong:.0%}"]
        row += [_cores(run), duration_words(run.start_up), finding.limit.value]
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return [
        "  ".join(
            text.ljust(w) if text is row[-1] else text.rjust(w) for text, w in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _cores(run: Measured) -> str:
    """Return how many cores of all were used, "" if unknown."""
    if not run.hosts:
        return ""
    return f"{sum(host.used for host in run.hosts):.1f}/{sum(host.cores for host in run.hosts):g}"


def plot_of(runs: Sequence[Measured], ideals: Sequence[float], values: Sequence[float], unit: str) -> list[str]:
    """Return the lines of a bar chart: what was measured, and up to ``ideals``, what is missing."""
    longest = max([*ideals, *values])
    lines = [f"{unit}: measured █, missing to the ideal ░"]
    width = max(len(str(run.workers)) for run in runs)
    for run, ideal, value in zip(runs, ideals, values, strict=True):
        full, missing = _bar(value / longest), _bar(ideal / longest)
        lines.append(
            f"{run.workers:>{width}}  {full + '░' * (len(missing) - len(full)):<{_WIDTH}}  {significant(value)}"
        )
    return lines


def _bar(share: float) -> str:
    eighths = round(share * _WIDTH * 8)
    rest = _EIGHTHS[eighths % 8] if eighths % 8 else ""
    return "█" * (eighths // 8) + rest

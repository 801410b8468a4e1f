"""`ponder plan eval`: how many problems an evaluation needs, what it costs, and how to share samples over problems."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

from ponder.cli.compare import Column
from ponder.cli.progress import print_json
from ponder.errors import UsageError
from ponder.settings import GreaterThan, When

if TYPE_CHECKING:
    from ponder.measure import AllocationReplay
    from ponder.measure.readers import Attempts


@dataclass(frozen=True)
class EvaluationNeeds:
    """What problems tell, at an accuracy near this one."""

    accuracy: float
    problems_for_width: int | None = None  # so that the 95 % interval is as narrow as asked for
    problems_for_difference: int | None = None  # of each system
    width: float | None = None  # of the interval with --problems
    detectable_difference: float | None = None  # the least gain that --problems show; None: none
    flops: float | None = None  # of the whole evaluation
    gpu_seconds: float | None = None


@dataclass(frozen=True)
class SampleShares:
    """A budget of samples over the problems of a run, by how often their samples were right."""

    budget: int
    samples: dict[str, int]  # by problem
    coverage: float  # expected share of problems solved by any of their new samples
    uniform_coverage: float  # the same with equal shares
    replay: AllocationReplay | None  # decided on one half of the stored samples, tried on the other


def plan_evaluation(
    run: Annotated[
        str | None, "a run directory or log: its accuracy, FLOPs and samples are then the ones to go by"
    ] = None,
    /,
    *,
    accuracy: Annotated[float | None, "the accuracy to expect (the run's, else 0.5, which needs most problems)"] = None,
    width: Annotated[float | None, "how wide the 95 % interval may be: 0.05 is 5 points", GreaterThan(0)] = None,
    difference: Annotated[
        float | None, "the difference of two systems to see: 0.03 is 3 points", GreaterThan(0)
    ] = None,
    disagreement: Annotated[
        float | None,
        "the share of problems that exactly one of two systems solves: both are asked the same problems",
        When(("difference", "problems")),
    ] = None,
    power: Annotated[
        float, "how often a difference that is there should be seen", When(("difference", "problems"))
    ] = 0.8,
    problems: Annotated[int | None, "problems there are: what they can show, and their cost", GreaterThan(0)] = None,
    samples: Annotated[int, "samples per problem, for the cost", GreaterThan(0), When("gpu_tflops")] = 1,
    parameters: Annotated[
        float | None, "the model's parameters (7e9), where no run tells the FLOPs", GreaterThan(0), When("gpu_tflops")
    ] = None,
    tokens: Annotated[int | None, "tokens per sample, prompt included", GreaterThan(0), When("gpu_tflops")] = None,
    gpu_tflops: Annotated[
        float | None, "a GPU's peak, in TFLOP/s (989 for an H100 in bfloat16)", GreaterThan(0)
    ] = None,
    utilization: Annotated[float, "the share of the peak that is reached", When("gpu_tflops")] = 0.4,
    gpus: Annotated[int, "GPUs that share the work", GreaterThan(0), When("gpu_tflops")] = 1,
    budget: Annotated[
        int | None, "samples to share over the run's problems so that most are solved", GreaterThan(0), When("run")
    ] = None,
    column: Annotated[Column, When("run")] = [],  # noqa: B006 (never changed)
    json: Annotated[bool, "one JSON object"] = False,
) -> int:
    """Plan an evaluation: how many problems show a difference or make an interval narrow, what they cost in GPU time,
    and how a budget of samples is best shared over the problems of a run.

    ponder plan eval --accuracy 0.7 --width 0.05
    ponder plan eval --accuracy 0.7 --difference 0.03 --disagreement 0.2
    ponder plan eval RUN --budget 800
    """
    if not any((width, difference, problems, budget)):
        raise UsageError("say what to plan: --width, --difference, --problems, or a run with --budget")
    system = _read_system(run, column)
    expected = accuracy if accuracy is not None else _accuracy(system) if system else 0.5
    if not 0 < expected < 1:
        raise UsageError(
            f"an expected accuracy of {expected:g} leaves nothing to tell: give --accuracy between 0 and 1"
        )
    needs = _needs(expected, width, difference, disagreement, power, problems)
    if gpu_tflops is not None:
        needs = _with_cost(needs, system, problems, samples, parameters, tokens, (gpu_tflops, utilization, gpus))
    shares = share_samples(system, budget) if system is not None and budget is not None else None
    if json:
        print_json({"event": "plan", "needs": asdict(needs), "shares": asdict(shares) if shares else None})
    else:
        lines = _need_lines(needs, width, difference, disagreement, power, problems)
        print("\n".join([*lines, *(_share_lines(shares) if shares else [])]))
    return 0


def _read_system(run: str | None, column: list[str]) -> Attempts | None:
    if run is None:
        return None
    from ponder.measure.readers import ColumnMap, read_logs

    systems = read_logs([run], ColumnMap.from_flags(column))
    if len(systems) > 1:
        listed = ", ".join(s.name.rpartition(": ")[2] for s in systems)
        raise UsageError(f"{run} holds several systems ({listed}): plan with one of them, as {run}::NAME")
    return systems[0]


def _accuracy(system: Attempts) -> float:
    known = [m for m in system.means if m is not None]
    return sum(known) / len(known) if known else 0.5


def _needs(
    accuracy: float, width: float | None, difference: float | None, disagreement: float | None, power: float,
    problems: int | None,
) -> EvaluationNeeds:  # fmt: skip
    from ponder.measure import minimum_detectable_difference, problems_for_accuracies, problems_for_width, wilson

    for_width = problems_for_width(width, accuracy) if width else None
    for_difference = problems_for_accuracies(difference, accuracy, disagreement, power) if difference else None
    if problems is None:
        return EvaluationNeeds(accuracy, for_width, for_difference)
    low, high = wilson(round(accuracy * problems), problems)
    least = minimum_detectable_difference(problems, accuracy, disagreement, power)
    return EvaluationNeeds(accuracy, for_width, for_difference, high - low, least if least == least else None)


def _with_cost(
    needs: EvaluationNeeds, system: Attempts | None, problems: int | None, samples: int, parameters: float | None,
    tokens: int | None, gpu: tuple[float, float, int],
) -> EvaluationNeeds:  # fmt: skip
    """FLOPs by a run's own, or by 2 FLOPs per parameter and token."""
    from ponder.measure import ModelShape, gpu_seconds

    count = max(filter(None, (problems, needs.problems_for_width, needs.problems_for_difference)), default=None)
    if count is None:
        raise UsageError("GPU time is of a number of problems: give --problems, --width or --difference")
    if parameters is not None:
        if tokens is None:
            raise UsageError("--parameters needs --tokens: how many a sample has, prompt included")
        each = ModelShape(parameters, 0, 0).flops(tokens)
    elif tokens is not None:
        raise UsageError("--tokens needs --parameters: the run's own FLOPs count its tokens already")
    else:
        cost = system.cost if system is not None else None
        attempts = sum(g.size for g in system.groups) if system is not None else 0
        if cost is None or not cost.flops or not attempts:
            raise UsageError("no run tells the FLOPs of a sample: give --parameters and --tokens")
        each = cost.flops / attempts
    total = each * samples * count
    peak, utilization, gpus = gpu
    return replace(needs, flops=total, gpu_seconds=gpu_seconds(total, peak * 1e12, utilization, gpus))


def share_samples(system: Attempts, budget: int) -> SampleShares:
    """The shares that solve most problems in expectation, each problem's chance being Beta(right + 1, wrong + 1)."""
    import numpy as np

    from ponder.measure import allocate_samples, coverage_from_beta

    graded = system.on_problems([g.problem for g in system.groups if g.mean is not None])
    n, c = graded.counts
    rows = coverage_from_beta(c + 1, n - c + 1, budget)
    given = allocate_samples(rows, budget)
    places = np.arange(len(given))
    equal, more = divmod(budget, len(given))
    uniform = rows[:, equal].mean() + more / len(given) * (rows[:, min(equal + 1, budget)] - rows[:, equal]).mean()
    samples = dict(zip(graded.problems, given.tolist(), strict=True))
    return SampleShares(budget, samples, float(rows[places, given].mean()), float(uniform), _replayed(graded, budget))


def _replayed(system: Attempts, budget: int) -> AllocationReplay | None:
    """Decide on the first half of each problem's samples and try it on the second, scaled to what is stored; None
    where the log has too few, or counts only."""
    import numpy as np

    from ponder.measure import allocate_samples, coverage_from_beta, replay_allocation

    if any(g.sample_counts or len(g.verdicts) < 4 for g in system.groups):
        return None
    halves = [(g.verdicts[: len(g.verdicts) // 2], g.verdicts[len(g.verdicts) // 2 :]) for g in system.groups]
    if any(v not in (0, 1) for half in halves for part in half for v in part):
        return None
    seen, rest = (np.array([[len(h[i]), sum(h[i])] for h in halves], dtype=int) for i in (0, 1))
    most = int(rest[:, 0].min())
    rows = coverage_from_beta(seen[:, 1] + 1, seen[:, 0] - seen[:, 1] + 1, most)
    given = allocate_samples(rows, min(budget, len(halves) * most // 2))
    return replay_allocation(given, rest[:, 0], rest[:, 1])


def _need_lines(
    needs: EvaluationNeeds, width: float | None, difference: float | None, disagreement: float | None, power: float,
    problems: int | None,
) -> list[str]:  # fmt: skip
    near = f"at an accuracy of {100 * needs.accuracy:.1f} %"
    how = "of each system" if disagreement is None else f"for both, who disagree on {100 * disagreement:g} % of them"
    out = []
    if needs.problems_for_width is not None and width is not None:
        out.append(
            f"width       {needs.problems_for_width:,} problems for an interval {100 * width:g} points wide {near}"
        )
    if needs.problems_for_difference is not None and difference is not None:
        out.append(
            f"difference  {needs.problems_for_difference:,} problems {how} to see {100 * difference:g} points {near}"
            f" ({100 * power:g} % power)"
        )
    if problems is not None and needs.width is not None:
        least = needs.detectable_difference
        shown = "no gain" if least is None else f"a gain of {100 * least:.1f} points"
        out.append(
            f"problems    {problems:,} give an interval {100 * needs.width:.1f} points wide {near}, and show {shown}"
            f" ({100 * power:g} % power)"
        )
    if needs.flops is not None and needs.gpu_seconds is not None:
        from ponder.pipelines.job.base_job import format_duration

        out.append(f"cost        {needs.flops:.3g} FLOPs, about {format_duration(needs.gpu_seconds)} of GPU time")
    return out


def _share_lines(shares: SampleShares) -> list[str]:
    counts = sorted(Counter(shares.samples.values()).items())
    listed = ", ".join(f"{problems} get {samples}" for samples, problems in counts[:12])
    more = f" ... up to {counts[-1][0]}" if len(counts) > 12 else ""
    out = [
        f"samples     {shares.budget:,} over {len(shares.samples):,} problems: {listed}{more} (--json lists them)",
        f"coverage    {100 * shares.coverage:.1f} % expected by any new sample; with equal shares"
        f" {100 * shares.uniform_coverage:.1f} %",
    ]
    if r := shares.replay:
        out.append(
            f"replay      decided on half of the stored samples, tried on the others with {r.budget:,}:"
            f" {100 * r.allocated_coverage:.1f} %, equal shares {100 * r.uniform_coverage:.1f} %, best in hindsight"
            f" {100 * r.best_coverage:.1f} %"
        )
    return out

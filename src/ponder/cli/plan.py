"""`ponder plan`: what a run will cost, what it will be trained on and whether it is right, before it is begun."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ponder import event_loop
from ponder.cli import flags, recipes, work
from ponder.cli.progress import Progress, emit, watching
from ponder.cli.start import Launch
from ponder.cli.stopping import Stop
from ponder.errors import PonderError, UsageError

if TYPE_CHECKING:
    from ponder.measure import Finding, Mean
    from ponder.models.native import Native
    from ponder.pipelines.checks import Check
    from ponder.pipelines.forecast import Groups, Time
    from ponder.pipelines.rehearse import Probe
    from ponder.pipelines.witness import Evidence
    from ponder.train.learner import Learner
    from ponder.types import Trace

USAGE = """\
usage: ponder plan RECIPE [--scan N] [--probe N] [--json] [the recipe's flags]
       ponder plan train|sft [--scan N] [--probe N] [the flags of that command]

What a run will be like, before it is begun: the whole job, the time and memory it takes by its first steps, a prompt
with what is trained after it, how often the model is right, and the checks that the run begins with.
RECIPE is what `ponder run` takes: a .py file, a shipped recipe or a run directory. Nothing is kept.
The exit code is 1 where a check fails."""


def looks(
    *,
    scan: Annotated[int, "problems to sample at least, for the pass rate; 0: none"] = 32,
    probe: Annotated[int, "training steps to try, for time and memory; 0: none"] = 2,
) -> tuple[int, int]:
    """The flags of `plan` itself."""
    if scan < 0 or probe < 0:
        raise UsageError(f"--scan is {scan} and --probe {probe}; each is 0 (not at all) or more")
    return scan, probe


@dataclass
class Scan:
    """What the model does with the first problems."""

    problems: int
    samples: int
    reward: Mean | None
    groups: Groups | None
    dead: float  # share of the scan's groups without a gradient
    truncated: float
    undecided: float
    findings: list[Finding] = field(default_factory=list)


@dataclass
class Run:
    """One run of tokens of the same kind: prompt, trained or untrained."""

    kind: str
    text: str
    tokens: int


@dataclass
class Plan:
    job: Any
    stage: str = ""  # where the job is one of several
    device: str = ""
    dtype: str = ""
    parameters: int = 0
    trained: int = 0
    checkpoint: int = 0  # bytes
    ends: list[str] = field(default_factory=list)  # names of EOS tokens
    probe: Probe | None = None
    fault: str = ""  # why the first steps failed
    futile: list[str] = field(default_factory=list)  # settings that cannot do what they say
    time: Time | None = None
    shown: list[Run] = field(default_factory=list)
    cut: bool = False  # an end was put to what is shown
    scan: Scan | None = None
    checks: list[Check] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        return not self.fault and all(c.passed is not False for c in self.checks)


def plan(argv: Sequence[str]) -> int:
    """ponder plan RECIPE [--scan N] [--probe N] [--json] [the recipe's flags]"""
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if argv else 2
    job, json, scan, probe = read(argv)
    from ponder.reason.futile import futile

    found = Plan(*chosen(job))
    found.job.fits()
    found.futile = futile(found.job.strategy) if hasattr(found.job, "strategy") else []
    with Stop(saves=False) as stop:
        with Progress("", stop) if json else watching("plan", stop, unit="plan") as seen:
            make(found, scan, probe, seen)
    from ponder.cli import plan_view

    if json:
        emit(plan_view.plain(found))
    else:
        plan_view.show(found)
    return 0 if found.ready else 1


def read(argv: Sequence[str]) -> tuple[Any, bool, int, int]:
    """The job that a command line means, and how to look at it."""
    name, *rest = argv
    prog = f"ponder plan {name}"
    if name.startswith("-"):
        raise UsageError("give the recipe first: ponder plan RECIPE --flag value ...")
    if name in ("train", "sft"):
        command: Callable[..., Launch] = work.train if name == "train" else work.sft
        given = flags.Parser(prog, command.__doc__ or "").add(command).add(looks).parse(rest)
        _keeps_nothing(given)
        return flags.apply(command, given).job, given.get("json", False), *flags.apply(looks, given)
    if (Path(name) / "job.json").is_file():
        given = flags.Parser(prog, "Plan the job of this run directory.").add(work.again).add(looks).parse(rest)
        return work.kept_job(Path(name)), given.get("json", False), *flags.apply(looks, given)
    recipe = recipes.load(recipes.find(name))
    given = flags.Parser(prog, recipes.about(recipe)).add(recipe).add(work.common).add(looks).parse(rest)
    _keeps_nothing(given)
    own = {k: v for k, v in given.items() if k not in ("run", "fresh", "json", "scan", "probe")}
    flags.check(recipe, own)
    return recipes.job(recipe, own), given.get("json", False), *flags.apply(looks, given)


def _keeps_nothing(given: dict[str, Any]) -> None:
    for name in ("run", "fresh"):
        if name in given:
            raise UsageError(f"a plan keeps nothing and goes on with nothing: leave out --{name}")


def chosen(job: Any) -> tuple[Any, str]:
    """The first job that trains, and what to say of it where there are several."""
    from ponder.pipelines.rl import RL
    from ponder.pipelines.sft import FineTune
    from ponder.pipelines.stages import Stages

    stages = list(job.stages) if isinstance(job, Stages) else []
    for i, stage in enumerate(stages):
        if isinstance(stage.job, RL | FineTune):
            return stage.job, f"stage {stage.name!r}, {i + 1} of {len(stages)}; later ones begin from what it learns"
    if not isinstance(job, RL | FineTune):
        raise UsageError(f"only training can be planned, and {type(job).__name__} does not train: `ponder run` it")
    return job, ""


def make(found: Plan, scan: int, probe: int, seen: Progress) -> None:
    """Try the job out. The probe comes first: the memory it takes is then the run's own."""
    from ponder.models.load import load_policy
    from ponder.pipelines.conversations import read_conversations
    from ponder.pipelines.preflight import examine, examine_given
    from ponder.pipelines.rehearse import fine_tuner
    from ponder.pipelines.rl import RL, build
    from ponder.train.imitation import DPO

    job = found.job
    if probe:
        _rehearse(found, probe, seen)
        gc.collect()
    seen.phase("load")
    policy = load_policy(job.model, template=job.template, device=job.device, dtype=job.dtype)
    policy.watch = seen.tokens
    learner, critic = build(job, policy) if isinstance(job, RL) else (fine_tuner(job, policy), None)
    _facts(found, policy, learner)
    seen.phase("check")
    if isinstance(job, RL):
        found.checks, evidence = event_loop.run(examine(job, policy, learner, critic))
    else:
        pairs = isinstance(job.objective, DPO)
        problems = read_conversations(job.data, pairs) if isinstance(job.data, str) else job.data.train
        found.checks, evidence = examine_given(job, problems, policy, learner)
    if evidence is not None:
        _, step = evidence.credited()[0]
        found.shown, found.cut = runs(evidence), evidence.real.get(id(step), len(step.token_ids)) < len(step.token_ids)
    if found.probe is not None and evidence is not None:
        _timed(found, found.probe, learner)
    if scan and isinstance(job, RL) and evidence is not None:
        seen.phase("sample")
        found.scan = _scanned(job, policy, scan, found.probe.first if found.probe else [])


def _rehearse(found: Plan, steps: int, seen: Progress) -> None:
    from ponder.errors import Interrupted
    from ponder.pipelines import rehearse

    try:
        found.probe = rehearse.probe(found.job, steps, seen)
    except Interrupted:
        raise
    except PonderError as why:
        found.fault = str(why)


def _timed(found: Plan, p: Probe, learner: Learner) -> None:
    from ponder.pipelines.forecast import run_time
    from ponder.pipelines.rehearse import full_pass

    sampling = getattr(getattr(found.job, "strategy", None), "sampling", None)
    length = p.metrics[-1].get("completions/mean_length", 0.0)
    growth = sampling.max_tokens / length if sampling is not None and length else 1.0
    live = [1 - m.get("frac_reward_zero_std", 0.0) * (not found.job.objective.dense) for m in p.metrics]
    full = full_pass(learner, p.first) if min(live) < 1 else 0.0
    found.time = run_time(found.job.steps, p.sample, p.learn, live, full, growth)


def _facts(found: Plan, policy: Native, learner: Learner) -> None:
    net = policy.net
    found.device, found.dtype = str(net.device), str(net.dtype).removeprefix("torch.")
    found.parameters = sum(p.numel() for p in net.parameters())
    found.trained = sum(p.numel() for p in learner.masters.params.values())
    found.ends = [name for e in policy.tokenizer.eos if (name := policy.tokenizer.token(e))]
    kept = [*net.parameters(), *learner.tensors().values()]
    found.checkpoint = sum(t.numel() * t.element_size() for t in kept)


def _scanned(job: Any, policy: Native, count: int, have: list[Trace]) -> Scan:
    from ponder.measure import diagnose, mean_of
    from ponder.measure.diagnose import WINDOW
    from ponder.pipelines import forecast
    from ponder.pipelines.rehearse import scan
    from ponder.pipelines.summary import rewards, summary

    traces = event_loop.run(scan(job, policy, count, have))
    name = job.task.verifier.name
    told = summary(traces, name)
    earned = [rewards(t, name) for t in traces]
    means = [sum(g) / len(g) for g in earned if g]
    return Scan(
        len(traces), sum(len(t.answers()) for t in traces), mean_of(means) if means else None,
        forecast.groups(earned), told["frac_reward_zero_std"], told["completions/clipped_ratio"],
        told["frac_undecided"], diagnose([told] * WINDOW),  # as a run would stand in which every step is like this
    )  # fmt: skip


def runs(e: Evidence) -> list[Run]:
    """The first completion that is trained, after its prompt, as it is trained."""
    trace, step = e.credited()[0]
    weights = iter(zip(e.whole.trained[0].targets_S, e.whole.trained[0].weights_S, strict=True))
    ahead = next(weights, None)
    kinds = ["prompt"] * len(trace.steps[0].token_ids)
    for token in step.token_ids:
        same = ahead is not None and ahead[0] == token
        kinds.append("trained" if same and ahead is not None and ahead[1] > 0 else "untrained")
        ahead = next(weights, None) if same else ahead
    tokens = [*trace.steps[0].token_ids.tolist(), *step.token_ids.tolist()]
    out: list[Run] = []
    before = ""
    for i, kind in enumerate(kinds):
        text = e.policy.tokenizer.decode(tokens[: i + 1], keep_special=True)
        if not out or out[-1].kind != kind:
            out.append(Run(kind, "", 0))
        out[-1].text += text[len(before) :] if text.startswith(before) else ""
        out[-1].tokens += 1
        before = text if text.startswith(before) else before
    return out

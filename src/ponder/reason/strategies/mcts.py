"""Monte Carlo tree search over reasoning steps or game moves: select, expand, evaluate, back up."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Literal

from ponder.errors import BudgetExhausted, Interrupted, PonderError, UnknownName, UsageError
from ponder.protocols import Policy, Scorer
from ponder.reason.operators.auto_cut import AUTO_CUT, CutOrAuto, resolve_cut, warn_if_no_steps
from ponder.reason.operators.backpropagate import Backup, MeanBackup, backpropagate
from ponder.reason.operators.cut import WHOLE_ANSWER, Cut
from ponder.reason.operators.diverse_beams import DiverseBeamSearch
from ponder.reason.operators.evaluate import StepValue, rollout_answers
from ponder.reason.operators.generate import add_completion, generate, prune
from ponder.reason.operators.select import best_step
from ponder.reason.operators.tree_policy import (
    PUCT,
    DirichletNoise,
    ProgressiveWidening,
    SelectionRule,
    open_children,
    select_child,
    set_priors,
)
from ponder.reason.prompts import PLAIN, Prompt
from ponder.reason.strategies.mcts_parallel import DetachedBranch, Simulation, SimulationsInFlight
from ponder.types import Sampling, Trace


@dataclass(frozen=True, slots=True)
class MCTS:
    """Each simulation descends from the prompt by `selection`, expands a step that was visited before (`width`
    continuations with the policy's priors), evaluates one of them, and backs up its value.

    A step's value is the guide's score of it; with `rollouts`, the guide's mean score of whole answers sampled from it;
    or (1 - w) of the first plus w = `rollout_weight` of the second, as in AlphaGo (Silver et al. 2016). An answer's
    value is the guide's score. Everything is stored on the steps, so more simulations later resume the search; the
    root's `visits` counts them.
    """

    simulations: int = 64
    width: int = 4
    sampling: Sampling = Sampling(max_tokens=512)
    cut: CutOrAuto = AUTO_CUT  # where a step ends; AUTO_CUT: chosen by how the model writes
    selection: SelectionRule = PUCT()
    backup: Backup = MeanBackup()
    rollouts: int = 0  # answers sampled from each evaluated step
    rollout_weight: float = 1.0  # weight of the rollouts, if any, against the guide's score of the step itself
    evaluate_on: Literal["visit", "expansion"] = "visit"  # a step is evaluated on its first visit, or with its siblings
    prior_temperature: float = 1.0
    root_noise: DirichletNoise | None = None  # added to the priors of the first steps
    widening: ProgressiveWidening | None = None  # up to `width`
    diverse_beams: DiverseBeamSearch | None = None  # finds the continuations; None: they are sampled
    resample_rounds: int = 0  # rounds in which duplicates among the continuations are sampled again, until none is left
    parallel_simulations: int = 1  # simulations in flight at a time
    virtual_loss: float | None = 0.0  # value that a simulation in flight counts as; None: only as a visit
    two_player: bool = False  # a game: scores are for the player who made the step, and 0 is a draw
    # How the path to the answer is chosen; "score": the answer with the best score anywhere.
    final_choice: Literal["visits", "value", "selection", "score"] = "visits"
    stop_at_known_answer: bool = False  # stop when selection reaches an answer a second time (x1)
    complete_answer: bool = True  # sample an answer at the end of the best path if it has none
    prompt: Prompt = PLAIN

    def __post_init__(self) -> None:
        for name, least in (("simulations", 1), ("width", 1), ("parallel_simulations", 1), ("rollouts", 0),
                            ("resample_rounds", 0)):  # fmt: skip
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        for name, known in (
            ("evaluate_on", ("visit", "expansion")),
            ("final_choice", ("visits", "value", "selection", "score")),
        ):
            if getattr(self, name) not in known:
                raise UnknownName(f"{name} of a tree search", str(getattr(self, name)), known)
        if not 0 < self.rollout_weight <= 1:
            raise UsageError(
                f"rollout_weight is {self.rollout_weight}; it lies in (0, 1], and rollouts=0 leaves rollouts out"
            )
        if not self.prior_temperature > 0:
            raise UsageError(f"prior_temperature is {self.prior_temperature}; it must be positive")
        if self.diverse_beams is not None:
            self.diverse_beams.check(self.width, self.sampling)
            if self.widening is not None:
                raise UsageError("diverse_beams finds all continuations of a step at once: leave out widening")

    def unused(self) -> dict[str, str]:
        out = {} if self.rollouts else {"rollout_weight": "there are no rollouts: give rollouts"}
        if self.diverse_beams is not None:
            out["resample_rounds"] = "diverse_beams would find the same again: leave one of them out"
        elif self.sampling.temperature == 0:
            out["resample_rounds"] = "sampling is greedy, and would give the same again: give a temperature"
        if self.parallel_simulations == 1:
            out["virtual_loss"] = "one simulation runs at a time: give parallel_simulations"
        if not isinstance(self.selection, PUCT):
            out["prior_temperature"] = f"the selection rule {type(self.selection).__name__} has no priors"
        if self.final_choice == "score":
            out["complete_answer"] = "the answer with the best score is taken: give another final_choice"
        return out

    def missing_guide(self) -> str:
        return (
            "a tree search needs a guide: a value or process reward model that scores steps, or, with rollouts, an "
            "outcome reward model, an LLM judge or a verifier"
        )

    async def __call__(self, trace: Trace, policy: Policy, scorer: Scorer | None = None) -> None:
        if self.two_player and not getattr(scorer, "two_player", False):
            raise UsageError(
                "a two-player search needs a game and a guide that scores its positions (ponder.reason.games: "
                "GamePolicy with RandomPlayoutScorer or LearnedValueScorer); for a question in words use mcts"
            )
        if scorer is None:
            raise UsageError(self.missing_guide())
        root = self.prompt.root_step(trace, policy)
        try:
            cut = await resolve_cut(self.cut, trace, root, policy, self.sampling)
        except BudgetExhausted:
            trace.budget_exhausted = True
            return
        await replace(self, cut=cut)._search(trace, root, policy, scorer)
        if not self.two_player:  # near the end of a game every move may be the last
            warn_if_no_steps(trace)

    async def _search(self, trace: Trace, root: int, policy: Policy, scorer: Scorer) -> None:
        in_flight = SimulationsInFlight()
        stopped: PonderError | None = None
        try:
            while True:
                while (
                    stopped is None
                    and len(in_flight.window) < self.parallel_simulations
                    and self._has_simulations_left(trace, root, in_flight)
                ):
                    leaf = self._select(trace, root, in_flight)
                    if leaf is None or leaf in in_flight.busy:
                        break
                    if self.stop_at_known_answer and trace.steps[leaf].done and trace.steps[leaf].visits:
                        break
                    self._start_simulation(trace, leaf, policy, scorer, in_flight)
                if not in_flight.window:
                    break
                stopped = await self._finish_oldest(trace, root, scorer.name, in_flight) or stopped
        finally:
            for simulation in in_flight.window:
                if isinstance(simulation.work, asyncio.Task):
                    simulation.work.cancel()
        await self._choose_answer(trace, root, policy, scorer.name)
        if stopped is None and not open_children(trace, root):
            stopped = PonderError(f"the search failed: {_first_pruned_reason(trace, root)}")
        trace.budget_exhausted = isinstance(stopped, BudgetExhausted)
        if stopped is not None and not trace.budget_exhausted:
            if trace.chosen is None:
                raise stopped
            trace.failed = str(stopped)

    @property
    def _step_value(self) -> StepValue:
        return StepValue(self.rollouts, self.rollout_weight, self.two_player)

    def _has_simulations_left(self, trace: Trace, root: int, in_flight: SimulationsInFlight) -> bool:
        return trace.steps[root].visits + len(in_flight.window) < self.simulations

    # Down the tree.

    def _select(self, trace: Trace, root: int, in_flight: SimulationsInFlight) -> int | None:
        """The step to evaluate or expand next; None if every path is closed."""
        at = root
        while True:
            step = trace.steps[at]
            if step.done or not (step.visits or at == root):
                return at
            onward = open_children(trace, at)
            if self._unevaluated_children(trace, at):
                return at
            if (self.widening or not onward) and self._continuations_allowed(trace, at):
                return at
            if not onward and at == root:
                return None
            if not onward:
                prune(trace, [at], f"no continuation is open: {_first_pruned_reason(trace, at)}")
                at = root
                continue
            at = select_child(trace, at, onward, self.selection, in_flight.visits, self.virtual_loss, self.two_player)

    def _unevaluated_children(self, trace: Trace, at: int) -> list[int]:
        """Children that a budget left unevaluated right after their expansion: they are evaluated together."""
        if self.evaluate_on != "expansion":
            return []
        return [k for k in open_children(trace, at) if not trace.steps[k].visits]

    def _continuations_allowed(self, trace: Trace, at: int) -> int:
        """How many more continuations a step may get: pruned ones count, rollouts do not."""
        existing = sum(not trace.steps[k].last for k in trace.children(at))
        if self.widening is None:
            return 0 if existing else self.width
        return max(0, min(self.width, self.widening.max_children(trace.steps[at].visits)) - existing)

    # One simulation: it leaves, others may leave after it, and it is the first to come back.

    def _start_simulation(
        self, trace: Trace, leaf: int, policy: Policy, guide: Scorer, in_flight: SimulationsInFlight
    ) -> None:
        if self.parallel_simulations == 1:  # no other simulation is in flight: it may change the trace itself
            in_flight.window.append(Simulation([leaf], None, self._simulate(trace, leaf, policy, guide)))
            return
        if self._unevaluated_children(trace, leaf):  # their rollouts are in the trace and in no copy of a branch
            in_flight.window.append(Simulation([leaf], None, self._simulate(trace, leaf, policy, guide)))
            in_flight.busy.add(leaf)
            return
        branch = DetachedBranch.at(trace, leaf)
        work = asyncio.ensure_future(self._simulate(branch.trace, branch.tip, policy, guide))
        path = trace.conversation(leaf)
        in_flight.window.append(Simulation(path, branch, work))
        in_flight.visits.update(path)
        if not (trace.steps[leaf].done and trace.steps[leaf].visits):
            in_flight.busy.add(leaf)

    async def _finish_oldest(
        self, trace: Trace, root: int, guide: str, in_flight: SimulationsInFlight
    ) -> PonderError | None:
        """Wait for the oldest simulation, merge its steps and back up its values. Returns the error that stops the
        search."""
        simulation = in_flight.window.popleft()
        failed: PonderError | None = None
        leaves: list[int] = []
        try:
            leaves = await simulation.work
        except Interrupted:
            raise
        except PonderError as error:
            failed = error
        if simulation.branch is not None:
            places = simulation.branch.merge_into(trace)
            leaves = [places[i] for i in leaves]
            in_flight.visits.subtract(simulation.path)
        in_flight.busy.discard(simulation.path[-1])
        if failed is not None:
            if isinstance(failed, BudgetExhausted) or simulation.path[-1] == root:
                return failed
            prune(trace, [simulation.path[-1]], str(failed))
        values = [(i, v) for i in leaves if (v := self._step_value.value(trace, i, guide)) is not None]
        backpropagate(trace, values, self.backup, two_player=self.two_player)
        return None

    async def _simulate(self, trace: Trace, at: int, policy: Policy, guide: Scorer) -> list[int]:
        """Expand the step if it was visited before, then evaluate. Returns the steps that now have a value."""
        step = trace.steps[at]
        new = [at]
        if not step.done and (step.visits or step.parent is None):
            new = self._unevaluated_children(trace, at) or await self._expand_step(trace, at, policy)
            if self.evaluate_on == "visit" and new:
                new = [select_child(trace, at, new, self.selection, two_player=self.two_player)]
        unknown = [i for i in new if self._step_value.value(trace, i, guide.name) is None]
        if unknown:
            await self._step_value.evaluate(trace, unknown, policy, guide, self.sampling)
        return [i for i in new if not trace.steps[i].pruned]

    async def _expand_step(self, trace: Trace, at: int, policy: Policy) -> list[int]:
        """Find continuations; prune duplicates, and sample in their place for `resample_rounds` rounds."""
        allowed = self._continuations_allowed(trace, at)
        new = await self._distinct_continuations(trace, at, policy, allowed)
        for _ in range(self.resample_rounds if self.diverse_beams is None else 0):
            if not 0 < len(new) < allowed:
                break
            try:
                new += await self._distinct_continuations(trace, at, policy, allowed - len(new))
            except Interrupted:
                raise
            except PonderError:  # no budget or no room left: go on with those that are there
                break
        noise = self.root_noise if trace.steps[at].parent is None else None
        set_priors(trace, open_children(trace, at), self.prior_temperature, noise)
        return new

    async def _distinct_continuations(self, trace: Trace, at: int, policy: Policy, n: int) -> list[int]:
        """Find n continuations; returns those that are like no other child, and prunes the rest."""
        assert isinstance(self.cut, Cut)  # resolved before the first simulation
        before = {trace.steps[k].token_ids.tobytes(): k for k in open_children(trace, at)}
        if self.diverse_beams is None:
            new = await generate(trace, at, policy, self.sampling, n, cut=self.cut)
        else:
            found = await self.diverse_beams.search(trace, at, policy, self.sampling, n, self.cut)
            new = [add_completion(trace, at, c, self.cut) for c in found]
        if not new:
            raise PonderError("the policy gave no continuation; a text that is complete must end with a stop")
        for k in new:
            if (same := before.setdefault(trace.steps[k].token_ids.tobytes(), k)) != k:
                prune(trace, [k], f"the same as step {trace.children(at).index(same) + 1} of these")
        return [k for k in new if not trace.steps[k].pruned]

    # At the end.

    async def _choose_answer(self, trace: Trace, root: int, policy: Policy, guide: str) -> None:
        """Choose the answer at the end of the best path; sample it now if the search has not reached one."""
        if self.final_choice == "score":
            trace.chosen = best_step(trace, trace.answers(), guide)
            if trace.chosen is not None:
                return
        at = root
        while (onward := self.best_child(trace, at)) is not None:
            at = onward
        if trace.steps[at].done:
            trace.chosen = at
            return
        if self.complete_answer and at != root and not rollout_answers(trace, at):
            try:
                await generate(trace, at, policy, self.sampling, last=True, cut=WHOLE_ANSWER)
            except Interrupted:
                raise
            except PonderError:  # no budget or no room left: use the best answer so far
                pass
        answers = rollout_answers(trace, at)
        trace.chosen = best_step(trace, answers, guide) or next(iter(answers), None)
        if trace.chosen is None:
            trace.chosen = best_step(trace, trace.answers(), guide)

    def best_child(self, trace: Trace, at: int) -> int | None:
        """The best visited child by `final_choice`: most visits, highest value, or the selection rule."""
        seen = [k for k in open_children(trace, at) if trace.steps[k].visits]
        if not seen:
            return None
        if self.final_choice == "selection":
            return select_child(trace, at, seen, self.selection, two_player=self.two_player)
        steps = trace.steps
        if self.final_choice == "value":
            return max(seen, key=lambda k: (steps[k].value, steps[k].visits))
        return max(seen, key=lambda k: (steps[k].visits, steps[k].value))


def _first_pruned_reason(trace: Trace, at: int) -> str:
    return next((s for k in trace.children(at) if (s := trace.steps[k].pruned)), "nothing was written")

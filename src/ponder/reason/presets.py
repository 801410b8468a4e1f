"""Presets: published systems by name, each a strategy with that system's settings, and its source.

The models of a system are not part of its preset: if `guide` is empty and the strategy needs one, give a value or
reward model. A preset that differs from its system is called "-style", and its source says how it differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ponder.protocols import Strategy
from ponder.reason.operators.backpropagate import DiscountedBackup
from ponder.reason.operators.cut import CUTS, Cut
from ponder.reason.operators.tree_policy import PUCT, UCT, X1, DirichletNoise, ProgressiveWidening
from ponder.reason.prompts import DIRECT, STEP_BY_STEP
from ponder.reason.strategies.beam_search import BeamSearch
from ponder.reason.strategies.chain import Chain
from ponder.reason.strategies.graph_of_thoughts import SORTING_GRAPH
from ponder.reason.strategies.majority_vote import MajorityVote
from ponder.reason.strategies.mcts import MCTS
from ponder.reason.strategies.rstar_consistency import RStarConsistency
from ponder.reason.strategies.tree_of_thoughts import TREE_OF_THOUGHTS_GAME_OF_24
from ponder.types import Sampling


@dataclass(frozen=True, slots=True)
class Preset:
    strategy: Any  # a `Strategy`
    source: str
    guide: str = ""  # as `pipelines.guides` knows it


_SAMPLING_T07 = Sampling(temperature=0.7, max_tokens=1024)

PRESETS: dict[str, Preset] = {
    "direct": Preset(Chain(Sampling(temperature=0.0, max_tokens=64), DIRECT), "the answer alone, as a baseline"),
    "cot": Preset(
        Chain(Sampling(temperature=0.0, max_tokens=1024), STEP_BY_STEP),
        "zero-shot chain of thought, after Kojima et al. 2022 (arXiv 2205.11916): think step by step, then answer",
    ),
    "cot-sc": Preset(
        MajorityVote(n=40, sampling=_SAMPLING_T07, prompt=STEP_BY_STEP),
        "self-consistency, Wang et al. 2023 (arXiv 2203.11171)",
    ),
    "tot-24": Preset(
        TREE_OF_THOUGHTS_GAME_OF_24,
        "Tree of Thoughts on the Game of 24: propose, three values, keep 5, Yao et al. 2023 (arXiv 2305.10601)",
    ),
    "got-sorting": Preset(
        SORTING_GRAPH,
        "Graph of Thoughts that sorts a list: split, sort, merge, improve, Besta et al. 2024 (arXiv 2308.09687)",
    ),
    "qwq-style": Preset(
        Chain(Sampling(temperature=0.6, top_p=0.95, max_tokens=32768)),
        "one long chain that reflects as it goes; sampling as Qwen's QwQ-32B card advises",
    ),
    "marco-o1": Preset(
        MCTS(
            simulations=32, width=3, cut=Cut(tokens=64), selection=UCT(), rollouts=1, final_choice="value",
            sampling=Sampling(temperature=1.0, max_tokens=1024, logprobs=5),
        ),
        "mini-steps of 64 tokens, rollouts valued by the policy's confidence among 5 tokens (arXiv 2411.14405)",
        guide="ponder.reason.scorers:TopKConfidence",
    ),
    "alphallm-style": Preset(
        MCTS(
            simulations=64, width=6, cut=CUTS["sentence"], selection=PUCT(), rollouts=1, rollout_weight=0.5,
            widening=ProgressiveWidening(k=2.0, alpha=0.5), sampling=_SAMPLING_T07,
        ),
        "sentences as options, more branches with visits, value and rollouts mixed; without its state merging and "
        "importance-based branching; Tian et al. 2024 (arXiv 2404.12253)",
    ),
    "x1": Preset(
        MCTS(simulations=32, width=2, selection=X1(low=-1.0, high=1.0), backup=DiscountedBackup(0.96, 1.0),
             evaluate_on="expansion", stop_at_known_answer=True, final_choice="selection", sampling=_SAMPLING_T07),
        "Reasoning Language Models: A Blueprint, Besta et al. 2025 (arXiv 2501.11223)",
    ),
    "rstar-style": Preset(
        RStarConsistency(
            MCTS(simulations=32, width=4, cut=CUTS["paragraph"], selection=UCT(), rollouts=1, sampling=_SAMPLING_T07),
            n=2, sampling=_SAMPLING_T07,
        ),
        "MCTS, then mutual consistency; one kind of action where rStar has five, and the second look is the same "
        "model's; Qi et al. 2024 (arXiv 2408.06195)",
    ),
    "journey-style": Preset(
        BeamSearch(n=8, beam_width=4, sampling=_SAMPLING_T07),
        "a tree by beam search with a process reward model, to be linearised into journeys with its wrong turns "
        "(`ponder harvest --kind journeys`); O1 Replication Journey, Qin et al. 2024 (arXiv 2410.18982)",
    ),
    "alphazero": Preset(
        MCTS(simulations=800, width=64, cut=Cut(tokens=1), selection=PUCT(low=-1.0, high=1.0),
             root_noise=DirichletNoise(0.3, 0.25), two_player=True),
        "for the games in ponder.reason.games; 800 simulations a move, Silver et al. 2018 (arXiv 1712.01815)",
    ),
}  # fmt: skip


def unpack_preset(preset: Any) -> tuple[Strategy, str]:
    """The strategy and guide of a preset; any other object with no guide."""
    return (preset.strategy, preset.guide) if isinstance(preset, Preset) else (preset, "")

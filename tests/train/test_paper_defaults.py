"""A paper's name means the paper's numbers; every algorithm is plain data that a run directory can hold."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from typing import Any

import pytest

from ponder import registry
from ponder.errors import UsageError
from ponder.runs import job_json
from ponder.train.algorithms import OFFLINE, ONLINE
from ponder.train.objective import KL, Critic
from ponder.train.optimizer import AdamW
from ponder.train.ppo import PPO, AdaptiveKLController

ALL: dict[str, Any] = {**ONLINE, **OFFLINE}
PAPERS: dict[str, dict[str, Any]] = {
    "reinforce": {"baseline": "batch", "kl": None},
    "rloo": {"kl": KL(0.03, "k1", "reward")},  # section 4: beta 0.03 on TL;DR
    "reinforce++": {"clip": 0.2, "upper_clip": 0.2, "kl": KL(0.01, "k1", "reward"), "group_baseline": False,
    "entropy_coef": 0.0},
    "grpo": {"clip": 0.2, "upper_clip": 0.2, "kl": KL(0.04, "k3", "loss"), "bessel": False, "entropy_coef": 0.0},
    # section 4.2
    "dr-grpo": {"clip": 0.2, "upper_clip": 0.2, "kl": None, "max_completion_tokens": 3000, "entropy_coef": 0.0},
    "dapo": {  # section 4.1: 16384 tokens and a buffer of 4096
        "clip": 0.2, "upper_clip": 0.28, "kl": None, "max_completion_tokens": 16384 + 4096, "overlong_buffer": 4096,
        "dynamic_sampling_rounds": 10, "entropy_coef": 0.0,
    },
    "gspo": {"clip": 3e-4, "upper_clip": 4e-4, "kl": None, "entropy_coef": 0.0},  # section 5.1
    "cispo": {"clip": math.inf, "upper_clip": 4.0, "kl": None, "entropy_coef": 0.0},
    # section 5: gamma 0.95, omega 1, beta 0.01
    "gigpo": {"clip": 0.2, "upper_clip": 0.2, "kl": KL(0.01, "k3", "loss"), "gamma": 0.95, "step_weight": 1.0},
    "ppo": {  # InstructGPT, appendix C.4: beta 0.02, no discount, lambda 0.95, both clips 0.2
        "clip": 0.2, "upper_clip": 0.2, "kl": KL(0.02, "k1", "reward"), "gamma": 1.0, "lam": 0.95,
        "advantage_estimator": "gae",
        "whiten_advantages": True, "entropy_coef": 0.0, "adaptive_kl": None, "critic": Critic(value_clip=0.2),
    },
    "ppo-max": {  # section 5: rewards normalised by their history and clipped, token-level KL of 0.05
        "clip": 0.2, "upper_clip": 0.2, "kl": KL(0.05, "k1", "reward"), "gamma": 1.0, "lam": 0.95,
        "normalize_rewards": True, "reward_clip": 0.8, "whiten_advantages": True,
        "critic": Critic(value_clip=0.2, warmup_steps=10),
    },
    "tree": {"clip": 0.2, "upper_clip": 0.2, "kl": None, "treerl": False},
    "rejection": {"min_reward": 1.0},
    "sft": {},
    "dpo": {"beta": 0.1, "loss_type": "sigmoid", "label_smoothing": 0.0},
    "distill": {"divergence": "forward"},
}  # fmt: skip
CHANGED: dict[str, dict[str, Any]] = {
    "reinforce": {"baseline": "running", "baseline_decay": 0.5, "kl": KL(0.1, "k2", "reward")},
    "cispo": {"clip": 0.5, "clip_high": None},
    "dapo": {"mask_truncated": True, "overlong_buffer": 0},
    "ppo": {
        "critic": Critic("a/run", AdamW(3e-6), None, 5), "adaptive_kl": AdaptiveKLController(3.0, 100),
        "advantage_estimator": "td", "advantage_clip": 5.0,
        "normalize_rewards": True, "reward_clip": 10.0,
    },
    "dpo": {"loss_type": "ipo", "beta": 0.5},
    "distill": {"divergence": "jsd", "jsd_mix": 0.9},
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_defaults_equal_the_paper(name: str) -> None:
    objective = ALL[name]()
    for key, expected in PAPERS[name].items():
        assert getattr(objective, key) == expected, key


def test_adaptive_kl_defaults_equal_ziegler() -> None:
    assert AdaptiveKLController() == AdaptiveKLController(target=6.0, horizon=10_000)


def test_algorithm_tables_are_complete() -> None:
    assert list(PAPERS) == list(ALL) and not set(ONLINE) & set(OFFLINE)
    assert len({*ALL.values()}) == len(ALL), "no two names for one thing"


@pytest.mark.parametrize("name", ALL)
def test_objectives_name_their_paper(name: str) -> None:
    text = ALL[name].paper
    assert "arXiv:" in text or "doi:" in text
    assert ALL[name].__doc__ and not ALL[name].__doc__.startswith(f"{ALL[name].__name__}("), "written by a person"


@pytest.mark.parametrize("name", ALL)
def test_objectives_are_plain_data(name: str) -> None:
    for objective in (ALL[name](), replace(ALL[name](), **CHANGED.get(name, {}))):
        assert is_dataclass(objective) and hash(objective) == hash(replace(objective))
        data = json.loads(json.dumps(job_json.encode(objective)))
        again = job_json.decode(data)
        assert again == objective and type(again) is type(objective)
        for f in fields(objective)[:1]:
            with pytest.raises(FrozenInstanceError):
                setattr(objective, f.name, None)
    assert "paper" not in {f.name for f in fields(ALL[name])}, "a fact, not a setting"


@pytest.mark.parametrize("name", ALL)
def test_objectives_declare_their_requirements(name: str) -> None:
    objective = ALL[name]()
    assert objective.needs_reference == (name in ("dpo", "distill"))
    assert objective.needs_whole_trace == (name == "dpo")
    assert objective.trains_zero_advantage == (name in ("grpo", "gigpo")), "only where KL or entropy enters the loss"
    assert objective.kl is None or isinstance(objective.kl, KL)
    assert objective.needs_teacher == (name == "distill") and objective.needs_pairs == (name == "dpo")
    assert (objective.critic is not None) == (name in ("ppo", "ppo-max"))
    alone = ("reinforce", "reinforce++", "ppo", "ppo-max", "rejection", "distill")
    assert objective.needs_group == (name not in alone), "others of the group are the baseline"
    assert objective.needs_reward == (name not in ("sft", "distill"))
    assert objective.credit_needs_reference == (name in ("rloo", "reinforce++", "ppo", "ppo-max")), "KL in the reward"
    assert objective.weigh([1, 2]).shape == (2,)


def test_only_dapo_has_dynamic_sampling() -> None:
    assert [name for name, kind in ALL.items() if kind().dynamic_sampling_rounds] == ["dapo"]


def test_lookup_by_name() -> None:
    assert registry.lookup("algorithm", "dr-grpo", ONLINE) is ONLINE["dr-grpo"]
    with pytest.raises(UsageError, match="dr-grpo"):
        registry.lookup("algorithm", "dr-grop", ONLINE)
    assert registry.lookup("algorithm", "ppo", ONLINE) is PPO


def test_algorithm_tables_match_what_each_learns_from():
    from ponder.train.algorithms import OFFLINE, ON_POLICY, ONLINE

    algorithms = {**ONLINE, **OFFLINE}
    assert {name for name, kind in algorithms.items() if kind.learns_from_samples} == set(ON_POLICY)
    assert {name for name, kind in algorithms.items() if kind.learns_from_given} == set(OFFLINE)
    assert set(ONLINE) == set(ON_POLICY) - set(OFFLINE)

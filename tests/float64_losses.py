"""Every algorithm's loss from its paper's formula: float64, one sequence at a time, nothing packed, shared or cut.

Advantages, returns and old log-probabilities are read from the traces; everything that carries a gradient is computed
here. Shapes: t tokens of a sequence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ponder.nets.decoder import Decoder
from ponder.types import Trace
from reference_decoder import plain_hidden, weights64

Grads = dict[str, Tensor]


@dataclass
class Part:
    """What one completion brings to the loss."""

    trace: int
    advantage_t: Tensor
    logp_tV: Tensor  # with gradient
    token_t: Tensor
    old_t: Tensor | None = None
    taught_tV: Tensor | None = None  # the reference's
    value_t: Tensor | None = None  # of a critic, with gradient
    before_t: Tensor | None = None  # its values when the step began
    return_t: Tensor | None = None

    @property
    def new_t(self) -> Tensor:
        return self.logp_tV.gather(-1, self.token_t[:, None])[:, 0]

    @property
    def gap_t(self) -> Tensor:
        """log ref/pi."""
        assert self.taught_tV is not None
        return self.taught_tV.gather(-1, self.token_t[:, None])[:, 0] - self.new_t

    @property
    def rho_t(self) -> Tensor:
        return (self.new_t - (self.new_t.detach() if self.old_t is None else self.old_t)).exp()

    def clipped(self, rho_t: Tensor, low: float, high: float) -> Tensor:
        return -torch.minimum(rho_t * self.advantage_t, rho_t.clamp(1 - low, 1 + high) * self.advantage_t)


def parts(
    net: Decoder, w: Grads, traces: Sequence[Trace], fixed: Grads | None = None, heat: float = 1.0
) -> Iterator[Part]:
    """The completions of all traces: a path's credited steps, each step once."""
    for number, trace in enumerate(traces):
        seen: set[int] = set()
        for leaf in trace.answers():
            own = [i for i in trace.path(leaf) if trace.steps[i].advantages is not None and i not in seen]
            if own:
                seen.update(own)
                yield _part(net, w, fixed, heat, number, trace, own)


def _part(net: Decoder, w: Grads, fixed: Grads | None, heat: float, number: int, trace: Trace, own: list[int]) -> Part:
    path = trace.token_ids(own[-1]).tolist()
    where = []
    for i in own:
        end = len(trace.token_ids(i))
        where += range(end - len(trace.steps[i].token_ids), end)
    at = torch.tensor(where) - 1  # a token is predicted from the one before

    def logp(weights: Grads) -> Tensor:
        hidden = plain_hidden(weights, net.config, path)[at]
        logits = hidden @ weights.get("lm_head.weight", weights["embed_tokens.weight"]).T / heat
        return logits - logits.logsumexp(-1, keepdim=True)

    def noted(name: str) -> Tensor | None:
        result = [trace.steps[i].advantages if name == "advantages" else trace.steps[i].notes.get(name) for i in own]
        return None if any(f is None for f in result) else torch.tensor(np.concatenate(result), dtype=torch.float64)  # type: ignore[arg-type]

    values = plain_hidden(w, net.config, path)[at] @ w["score.weight"][0] if "score.weight" in w else None
    advantage = noted("advantages")
    assert advantage is not None
    return Part(
        number, advantage, logp(w), torch.tensor(path)[at + 1], noted("old"), None if fixed is None else logp(fixed),
        values, noted("values"), noted("returns"),
    )  # fmt: skip


def _cat(terms: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(terms))


def _mean(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(terms)).mean()


def reinforce(of: Sequence[Part]) -> Tensor:
    return _mean([-(p.advantage_t * p.new_t).sum() for p in of])


def ppo(of: Sequence[Part], high: float = 0.2) -> Tensor:
    return _cat([p.clipped(p.rho_t, 0.2, high) for p in of]).mean()


def grpo(of: Sequence[Part], beta: float = 0.04) -> Tensor:
    return _mean([(p.clipped(p.rho_t, 0.2, 0.2) + (beta * _k3(p) if beta else 0)).mean() for p in of])


def _k3(p: Part) -> Tensor:
    return p.gap_t.exp() - 1 - p.gap_t


def dr_grpo(of: Sequence[Part]) -> Tensor:
    return _mean([p.clipped(p.rho_t, 0.2, 0.2).sum() / 3000 for p in of])


def gspo(of: Sequence[Part]) -> Tensor:
    return _mean([p.clipped(p.rho_t.log().mean().exp().expand(len(p.token_t)), 3e-4, 4e-4).mean() for p in of])


def cispo(of: Sequence[Part]) -> Tensor:
    return _cat([-p.rho_t.detach().clamp(max=5.0) * p.advantage_t * p.new_t for p in of]).mean()


def sft(of: Sequence[Part]) -> Tensor:
    return -_cat([p.new_t for p in of]).mean()


def dpo(of: Sequence[Part], beta: float = 0.1) -> Tensor:
    """Chosen: advantage 1, rejected: -1."""
    pairs = [[p for p in of if p.trace == number] for number in sorted({p.trace for p in of})]
    margins = [sum(-(p.gap_t * p.advantage_t).sum() for p in pair) for pair in pairs]
    return _mean([-torch.log(1 / (1 + torch.exp(-beta * torch.as_tensor(m)))) for m in margins])


def distill(of: Sequence[Part]) -> Tensor:
    return _cat([(p.taught_tV.exp() * (p.taught_tV - p.logp_tV)).sum(-1) for p in of if p.taught_tV is not None]).mean()


def critic(of: Sequence[Part], clip: float = 0.2) -> Tensor:
    terms = []
    for p in of:
        assert p.value_t is not None and p.before_t is not None and p.return_t is not None
        held = torch.minimum(torch.maximum(p.value_t, p.before_t - clip), p.before_t + clip)
        terms.append(torch.maximum((p.value_t - p.return_t) ** 2, (held - p.return_t) ** 2) / 2)
    return _cat(terms).mean()


LOSSES: dict[str, Callable[[Sequence[Part]], Tensor]] = {
    "reinforce": reinforce, "rloo": reinforce, "reinforce++": ppo, "grpo": grpo, "dr-grpo": dr_grpo,
    "dapo": lambda of: ppo(of, 0.28), "gspo": gspo, "cispo": cispo, "gigpo": lambda of: grpo(of, beta=0.01),
    "ppo": ppo, "ppo-max": ppo, "tree": ppo,
    "rejection": sft, "sft": sft, "dpo": dpo, "distill": distill, "critic": critic,
}  # fmt: skip


def step(
    loss: Callable[[Sequence[Part]], Tensor] | str,
    net: Decoder,
    traces: Sequence[Trace],
    reference: Decoder | None = None,
    heat: float = 1.0,
) -> tuple[float, Grads]:
    """The loss and its gradient by parameter."""
    w = weights64(net)
    fixed = None if reference is None else {n: p.detach() for n, p in weights64(reference).items()}
    total = (LOSSES[loss] if isinstance(loss, str) else loss)(list(parts(net, w, traces, fixed, heat)))
    total.backward()
    return float(total.detach()), {n: x.grad for n, x in w.items() if x.grad is not None}


def full_logprobs(
    hidden: Tensor, weight: Tensor, target: Tensor, heat: float, banned: int | None = None
) -> tuple[Tensor, Tensor]:
    """As the learner's chunked head, by torch's own softmax over all logits at once."""
    assert banned is None
    logp = (hidden @ weight.T / heat).log_softmax(-1)
    return logp.gather(-1, target[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def gap(result: Grads, expected: Grads) -> float:
    """Largest relative distance of any parameter's gradient; small ones are measured against the largest."""
    assert result.keys() == expected.keys(), result.keys() ^ expected.keys()
    size = max(float(g.norm()) for g in expected.values())
    return max(
        float((result[n].double() - expected[n].double()).norm()) / max(float(expected[n].norm()), 1e-2 * size)
        for n in expected
    )


def turned(result: Grads, expected: Grads) -> float:
    """Relative distance of the whole gradient."""
    assert result.keys() == expected.keys(), result.keys() ^ expected.keys()
    off = sum(float((result[n].double() - expected[n].double()).square().sum()) for n in expected)
    return (off / sum(float(g.double().square().sum()) for g in expected.values())) ** 0.5

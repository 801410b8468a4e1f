"""Settings of the demo's training, compared by greedy accuracy on the problems of `demo_training.ChoiceSplit`.

A run takes seconds on a GPU: all prompts of two-digit sums are equally long, so that the training of the recipe
`addition` fits into plain torch without padding or paging. It has the recipe's formulas (one optimiser step on a step's
samples, completions of equal rewards left out), draws other random numbers, and computes matrix products in TF32. It
only compares; `demo_training.py` measures what the recipe comes to.

Several processes may share a folder: each takes the next run that none has taken.

    python bench/demo_settings.py run --out kept --seeds 1 2 3 --seconds 500
    python bench/demo_settings.py table --out kept
"""

from __future__ import annotations

import json
import random
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from demo_training import ChoiceSplit
from harness import commit, hardware, make_parser, report, versions
from ponder.models.model_paths import find_model
from ponder.nets.config import DecoderConfig, from_hf
from ponder.verify import FinalNumber

Pair = tuple[int, int]
Weights = dict[str, Tensor]

EQUATION = "What is {a} + {b}?\n{a} + {b} ="
ADDITION = "Addition: {a} + {b} ="
EVAL_TOKENS = 16
CHUNK_ROWS = 96  # sequences of one backward pass
EARLY_STEPS = 10  # after which the share of groups that are learned from is counted
BANK_STEPS = 4  # unsolved problems that are remembered for replay, in problems of a step


@dataclass(frozen=True)
class Settings:
    """The recipe's as it was with the template qa, and what was tried beside them."""

    steps: int = 24
    problems: int = 64
    group: int = 4
    late: int = 12  # from this step on the next two hold, where they are given
    problems_late: int | None = None
    group_late: int | None = None
    prompt: str = "Question: What is {a} + {b}?\nAnswer:"
    max_tokens: int = 10
    temperature: float = 1.0
    reward: str = "exact"  # or digits: half of it is the share of right digits of a number of the right length
    advantage: str = "group"  # see `advantages`
    negative: float = 1.0  # factor of negative advantages
    replay: float = 0.0  # share of a step's problems that were asked before and not always solved
    frozen: int = 12
    lr: float = 6e-5
    lr_shape: str = "linear"  # see `lr_factor`
    lr_per_layer: float = 1.0  # a layer's rate over that of the layer above
    betas: tuple[float, float] = (0.9, 0.95)


QA = Settings()
EQ = replace(QA, prompt=EQUATION, steps=20, max_tokens=6)
TRIED: dict[str, Settings] = {
    "w": EQ,
    "qa": QA,
    "p-line": replace(EQ, prompt="What is {a} + {b}? {a} + {b} ="),
    "p-add": replace(EQ, prompt=ADDITION, steps=24),
    "p-qaeq": replace(EQ, prompt="Question: What is {a} + {b}?\nAnswer: {a} + {b} =", steps=18),
    "p-twice": replace(EQ, prompt="{a} + {b}?\n{a} + {b} =", steps=22),
    "w-48": replace(EQ, problems=48, steps=27),
    "w-32": replace(EQ, problems=32, steps=40),
    "w-g8": replace(EQ, problems=32, group=8, steps=22),
    "w-g2": replace(EQ, problems=96, group=2),
    "w-lr9": replace(EQ, lr=9e-5),
    "w-lr4": replace(EQ, lr=4e-5),
    "w-late": replace(EQ, lr_shape="late"),
    "w-t1.2": replace(EQ, temperature=1.2),
    "w-t.8": replace(EQ, temperature=0.8),
    "w-nostd": replace(EQ, advantage="none"),
    "w-batch": replace(EQ, advantage="batch"),
    "w-mixed": replace(EQ, advantage="mixed"),
    "w-wrong": replace(EQ, advantage="wrong"),
    "w-digits": replace(EQ, reward="digits"),
    "w-replay": replace(EQ, replay=0.3),
    "w-frozen6": replace(EQ, frozen=6, steps=18),
    "w-frozen20": replace(EQ, frozen=20, lr=9e-5, steps=22),
    "w-beta": replace(EQ, betas=(0.9, 0.99)),
    "w-neg": replace(EQ, negative=0.5),
    "w-maxrl": replace(EQ, advantage="maxrl"),
    "w-long": replace(EQ, steps=40),
    "w-group8late": replace(EQ, group_late=8, problems_late=32, late=10),
    "w-llrd": replace(EQ, lr_per_layer=0.95, lr=9e-5),
    # Two of these together, and three
    "w-lr4+w-batch": replace(EQ, lr=4e-5, advantage="batch"),
    "w-lr4+w-nostd": replace(EQ, lr=4e-5, advantage="none"),
    "w-lr4+w-t.8": replace(EQ, lr=4e-5, temperature=0.8),
    "w-batch+w-t.8": replace(EQ, advantage="batch", temperature=0.8),
    "w-nostd+w-t.8": replace(EQ, advantage="none", temperature=0.8),
    "w-lr4+w-batch+w-t.8": replace(EQ, lr=4e-5, advantage="batch", temperature=0.8),
    "w-lr4+w-nostd+w-t.8": replace(EQ, lr=4e-5, advantage="none", temperature=0.8),
    "p-add+w-batch": replace(EQ, prompt=ADDITION, advantage="batch"),
    "p-add+w-lr4": replace(EQ, prompt=ADDITION, lr=4e-5),
}
# Then prompts that end with a space, which was the first token of every answer
SPACED = replace(EQ, prompt=EQUATION + " ", max_tokens=5, steps=22, lr=4e-5)
SHORT = replace(SPACED, prompt=ADDITION + " ", steps=28)
TRIED |= {
    "s-eq4": SPACED,
    "s-add5": replace(SHORT, lr=5e-5),
    "s-eq4-centred": replace(SPACED, advantage="centred"),
    "s-eq-96": replace(SPACED, problems=96, steps=15, lr=6e-5),
    "s-add4-centred": replace(SHORT, advantage="centred"),
    "s-eq5-frozen16": replace(SPACED, frozen=16, steps=24, lr=5e-5),
    "s-add6": replace(SHORT, lr=6e-5),
}


def lr_factor(shape: str, done: float) -> float:
    """Of the peak's rate, when this share of the steps is done."""
    return {"linear": 1 - done, "late": min(1.0, 3 * (1 - done))}[shape]


def advantages(kind: str, rewards_PG: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rewards less a baseline. group: GRPO's; centred: without the std; none: twice that; batch: the mean of all is the
    baseline; mixed: half of each; wrong: GRPO's, and -0.3 where a whole group is wrong; maxrl: over its mean."""
    r, mean = rewards_PG, rewards_PG.mean(1, keepdims=True)
    std = r.std(1, keepdims=True)
    flat = std < 1e-12
    group = np.where(flat, 0.0, (r - mean) / np.where(flat, 1.0, std))
    if kind == "group":
        return group
    if kind in ("none", "centred"):
        return (r - mean) * (2 if kind == "none" else 1)
    if kind == "batch":
        return (r - r.mean()) / max(float(r.std()), 0.1)
    if kind == "mixed":
        return (r - 0.5 * mean - 0.5 * r.mean()) / max(float(r.std()), 0.1)
    if kind == "wrong":
        lost = (r.max(1, keepdims=True) < 1) & (r.mean() > 0.2)
        return np.where(flat, np.where(lost, -0.3, 0.0), group)
    assert kind == "maxrl", kind
    return np.where(flat, 0.0, (r - mean) / np.maximum(mean, 1e-6))


def digit_reward(text: str, gold: str) -> float:
    """The share of right digits of a bare number that is as long as the right one."""
    number = re.fullmatch(r"\s*(\d+)\.?\s*", text)
    if number is None or len(number[1]) != len(gold):
        return 0.0
    return sum(a == b for a, b in zip(number[1], gold, strict=True)) / len(gold)


def carries(pair: Pair) -> bool:
    return pair[0] % 10 + pair[1] % 10 >= 10


class Model:
    """A Llama with tied embeddings in plain torch. Sequences of a batch are equally long, or padded on the right."""

    def __init__(self, folder: Path, device: str) -> None:
        self.config: DecoderConfig = from_hf(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        self.start: Weights = {
            name.removeprefix("model."): t.float().to(device)
            for name, t in load_file(folder / "model.safetensors").items()
        }
        c = self.config
        powers = torch.arange(0, c.head_dim, 2, device=device).float() / c.head_dim
        angles = torch.arange(128, device=device).float()[:, None] / c.rope.theta**powers
        self.cos, self.sin = (torch.cat([t, t], -1) for t in (angles.cos(), angles.sin()))
        self.device = device

    def hidden(self, w: Weights, ids_BT: Tensor, cache: list[list[Tensor]] | None = None, at: int = 0) -> Tensor:
        """[B, T, E]: the last hidden states; with a cache, of tokens that stand at `at` and after."""
        x = w["embed_tokens.weight"][ids_BT]
        cos, sin = (t[at : at + ids_BT.shape[1]] for t in (self.cos, self.sin))
        for i in range(self.config.layers):
            x = self._layer(w, i, x, cos, sin, None if cache is None else cache[i], at)
        return self._norm(x, w["norm.weight"])

    def _layer(
        self, w: Weights, i: int, x: Tensor, cos: Tensor, sin: Tensor, cache: list[Tensor] | None, at: int
    ) -> Tensor:
        c, (rows, tokens, _) = self.config, x.shape

        def project(h: Tensor, name: str) -> Tensor:
            return h @ w[f"layers.{i}.{name}.weight"].T

        def heads(h: Tensor, name: str) -> Tensor:
            return project(h, f"self_attn.{name}_proj").view(rows, tokens, -1, c.head_dim).transpose(1, 2)

        def rotated(t: Tensor) -> Tensor:
            half = c.head_dim // 2
            return t * cos + torch.cat([-t[..., half:], t[..., :half]], -1) * sin

        h = self._norm(x, w[f"layers.{i}.input_layernorm.weight"])
        q, k, v = rotated(heads(h, "q")), rotated(heads(h, "k")), heads(h, "v")
        if cache is not None:
            for kept, new in zip(cache, (k, v), strict=True):
                kept[:, :, at : at + tokens] = new
            k, v = (kept[:, :, : at + tokens] for kept in cache)
        shared = c.heads // c.kv_heads
        k, v = (t.repeat_interleave(shared, 1) for t in (k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=at == 0)
        x = x + project(o.transpose(1, 2).reshape(rows, tokens, -1), "self_attn.o_proj")
        h = self._norm(x, w[f"layers.{i}.post_attention_layernorm.weight"])
        return x + project(F.silu(project(h, "mlp.gate_proj")) * project(h, "mlp.up_proj"), "mlp.down_proj")

    def _norm(self, x: Tensor, gain: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), gain, self.config.norm_eps)

    @torch.no_grad()
    def sample(
        self, w: Weights, prompts: Sequence[Sequence[int]], n: int, max_tokens: int, temperature: float,
        stops: Sequence[int], random_numbers: torch.Generator | None,
    ) -> list[list[int]]:  # fmt: skip
        """`n` completions of each prompt, the token that ends them included; greedy at temperature 0."""
        ids_PT, c = torch.tensor(prompts, device=self.device), self.config
        problems, length = ids_PT.shape
        empty = [torch.empty(problems, c.kv_heads, length, c.head_dim, device=self.device) for _ in range(2 * c.layers)]
        cache = [empty[2 * i : 2 * i + 2] for i in range(c.layers)]
        last = self.hidden(w, ids_PT, cache)[:, -1].repeat_interleave(n, 0)
        cache = [[F.pad(t.repeat_interleave(n, 0), (0, 0, 0, max_tokens)) for t in kept] for kept in cache]
        ends = torch.tensor(stops, device=self.device)
        done = torch.zeros(problems * n, dtype=torch.bool, device=self.device)
        columns: list[Tensor] = []
        while True:
            logits = last @ w["embed_tokens.weight"].T
            if temperature:
                uniform = torch.rand(logits.shape, device=self.device, generator=random_numbers).clamp_min(1e-20)
                logits = torch.softmax(logits / temperature, -1) / -uniform.log()
            columns.append(torch.where(done, -1, logits.argmax(-1)))
            done |= torch.isin(columns[-1], ends)
            if len(columns) == max_tokens or bool(done.all()):
                break
            last = self.hidden(w, columns[-1].clamp_min(0)[:, None], cache, length + len(columns) - 1)[:, 0]
        return [[t for t in row if t >= 0] for row in torch.stack(columns, 1).tolist()]


class Search:
    """The model, the problems that accuracy is measured on, and those that training leaves out."""

    def __init__(self, folder: Path, device: str) -> None:
        self.model, self.device = Model(folder, device), device
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        newline = self.tokenizer.encode("\n", add_special_tokens=False).tokens[0]
        vocabulary = self.tokenizer.get_vocab().items()
        end = json.loads((folder / "config.json").read_text(encoding="utf-8"))["eos_token_id"]
        self.stops, self.end = [id for token, id in vocabulary if newline in token] + [end], end
        self.verifier = FinalNumber(("bare", "boxed", "tag", "hash", "line"))
        task = ChoiceSplit()
        self.problems: list[Pair] = [_numbers(problem.question) for problem in task.test]
        self.held_out = {(a, b) for a in range(10, 100) for b in range(10, 100) if task._is_test_item((a, b))}

    def prompts(self, prompt: str, pairs: Sequence[Pair]) -> list[list[int]]:
        return [self.tokenizer.encode(prompt.format(a=a, b=b), add_special_tokens=False).ids for a, b in pairs]

    def text(self, tokens: Sequence[int]) -> str:
        kept = [t for t in tokens if t != self.end]
        return str(self.tokenizer.decode(kept, skip_special_tokens=False)).partition("\n")[0]

    def is_right(self, text: str, pair: Pair) -> bool:
        return self.verifier.grade(text, str(sum(pair))).value == 1

    def accuracy(self, w: Weights, prompt: str) -> dict[str, float]:
        """Greedy, in percent: of all problems, of those whose units carry, and of the others."""
        tokens = self.model.sample(w, self.prompts(prompt, self.problems), 1, EVAL_TOKENS, 0.0, self.stops, None)
        right = [self.is_right(self.text(t), pair) for t, pair in zip(tokens, self.problems, strict=True)]
        kinds = {"all": (True, False), "carry": (True,), "no carry": (False,)}
        return {
            name: 100 * statistics.mean(r for r, p in zip(right, self.problems, strict=True) if carries(p) in kind)
            for name, kind in kinds.items()
        }

    def new_problems(self, rng: random.Random) -> Iterator[Pair]:
        while True:
            pair = (rng.randrange(10, 100), rng.randrange(10, 100))
            if pair not in self.held_out:
                yield pair

    def train(self, s: Settings, seed: int, averaged: Sequence[int] = ()) -> dict[str, Any]:
        """Train once: accuracy of the last weights and of means over the last steps, and per step the reward, the
        groups that were learned from, and the sampled tokens."""
        model = self.model
        layers = model.config.layers
        learns = [n for n in model.start if n == "norm.weight" or _layer_of(n) >= s.frozen]
        w = {n: t.clone().requires_grad_(n in learns) for n, t in model.start.items()}
        rates = {n: s.lr * s.lr_per_layer ** (layers - 1 - _layer_of(n)) if "layers" in n else s.lr for n in learns}
        optimizer = torch.optim.AdamW(
            [{"params": [w[n]], "peak": rates[n]} for n in learns], lr=s.lr, betas=s.betas, weight_decay=0.0,
            fused=self.device == "cuda",
        )  # fmt: skip
        random_numbers = torch.Generator(self.device).manual_seed(seed)
        rng = random.Random(f"train{seed}")
        stream, bank = self.new_problems(rng), list[Pair]()
        averages = {f"mean of the last {k}": (k, {n: torch.zeros_like(w[n]) for n in learns}) for k in averaged}
        curves: dict[str, list[float]] = {"reward": [], "live": [], "tokens": []}
        flops = 0.0
        for step in range(s.steps):
            problems = _problems_at(s, step)
            group = s.group_late if s.group_late and step >= s.late else s.group
            rng.shuffle(bank)
            again = min(int(problems * s.replay), len(bank))
            pairs, bank = bank[:again], bank[again:]
            pairs += [next(stream) for _ in range(problems - again)]
            prompts = self.prompts(s.prompt, pairs)
            tokens = model.sample(w, prompts, group, s.max_tokens, s.temperature, self.stops, random_numbers)
            asked = [pair for pair in pairs for _ in range(group)]
            texts = [self.text(t) for t in tokens]
            right = np.array([self.is_right(text, pair) for text, pair in zip(texts, asked, strict=True)], float)
            rewards = right
            if s.reward == "digits":
                parts = [digit_reward(text, str(sum(pair))) for text, pair in zip(texts, asked, strict=True)]
                rewards = np.where(right == 1, 1.0, 0.5 * np.array(parts))
            advantage = advantages(s.advantage, rewards.reshape(problems, group)).reshape(-1)
            advantage = np.where(advantage < 0, s.negative * advantage, advantage)
            if s.replay and step >= 2:
                unsolved = right.reshape(problems, group).mean(1) < 1
                bank += [pair for pair, kept in zip(pairs, unsolved, strict=True) if kept]
                bank = bank[-BANK_STEPS * problems :]
            flops += self._sampling_flops(prompts, tokens)
            live = [i for i in range(problems * group) if advantage[i]]
            if live:
                self._backward(w, [prompts[i // group] for i in live], [tokens[i] for i in live],
                               advantage[live] / (problems * group), s.temperature)  # fmt: skip
                flops += self._learning_flops(prompts, tokens, live, group, s.frozen)
                torch.nn.utils.clip_grad_norm_([w[n] for n in learns], 1.0)
                for part in optimizer.param_groups:
                    part["lr"] = part["peak"] * lr_factor(s.lr_shape, step / s.steps)
                optimizer.step()
                optimizer.zero_grad()
            for k, mean in averages.values():
                if step >= s.steps - k:
                    for n in learns:
                        mean[n] += w[n].detach() / min(k, s.steps)
            curves["reward"].append(float(right.mean()))
            curves["live"].append(len({i // group for i in live}))
            curves["tokens"].append(sum(map(len, tokens)))
        kinds: dict[str, Weights] = {"last": {}} | {name: mean for name, (_, mean) in averages.items()}
        accuracy = {name: self.accuracy(w | other, s.prompt) for name, other in kinds.items()}
        return {"seed": seed, "accuracy": accuracy, "flops": flops, "settings": asdict(s), **curves}

    def _backward(
        self, w: Weights, prompts: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]],
        weights: NDArray[np.float64], temperature: float,
    ) -> None:  # fmt: skip
        """Add the gradient of -weight * mean log-probability of each completion."""
        start = len(prompts[0])
        for first in range(0, len(tokens), CHUNK_ROWS):
            part = range(first, min(first + CHUNK_ROWS, len(tokens)))
            longest = max(len(tokens[i]) for i in part)
            ids = torch.zeros(len(part), start + longest, dtype=torch.long)
            weight = torch.zeros(len(part), longest)
            for row, i in enumerate(part):
                ids[row, : start + len(tokens[i])] = torch.tensor([*prompts[i], *tokens[i]])
                weight[row, : len(tokens[i])] = weights[i] / len(tokens[i])
            ids, weight = ids.to(self.device), weight.to(self.device)
            hidden = self.model.hidden(w, ids[:, :-1])[:, start - 1 :]
            logits = hidden @ w["embed_tokens.weight"].T / temperature
            logprobs = torch.log_softmax(logits, -1).gather(-1, ids[:, start:, None])[..., 0]
            (-(logprobs * weight).sum()).backward()

    def _sampling_flops(self, prompts: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]) -> float:
        """Of matrix products alone, prompts once: the head reads where a token is drawn."""
        c = self.model.config
        read = sum(map(len, prompts)) + sum(len(t) - 1 for t in tokens)
        drawn = len(prompts) + sum(len(t) - 1 for t in tokens)
        return 2.0 * (read * c.layers * c.layer_parameter_count + drawn * c.vocab * c.width)

    def _learning_flops(
        self, prompts: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]], live: Sequence[int], group: int,
        frozen: int,
    ) -> float:  # fmt: skip
        """Of matrix products alone: forward, and twice that backward in the layers that learn; the head is frozen."""
        c, groups = self.model.config, {i // group for i in live}
        read = sum(len(prompts[g]) for g in groups) + sum(len(tokens[i]) - 1 for i in live)
        layers, drawn = c.layers + 2 * (c.layers - frozen), sum(len(tokens[i]) for i in live)
        return 2.0 * (read * layers * c.layer_parameter_count + 2 * drawn * c.vocab * c.width)


def _numbers(question: str) -> Pair:
    a, b = map(int, re.findall("[0-9]+", question))
    return a, b


def _layer_of(name: str) -> int:
    """-1 outside the layers."""
    found = re.match(r"layers\.(\d+)\.", name)
    return -1 if found is None else int(found[1])


def run(args: Any) -> None:
    torch.set_float32_matmul_precision("high")
    until = time.monotonic() + args.seconds
    search = Search(find_model("smollm2"), args.device)
    args.out.mkdir(parents=True, exist_ok=True)
    longest = 0.0
    for seed in args.seeds:
        for name in args.only or TRIED:
            path = args.out / f"{name}-seed{seed}.json"
            began = time.monotonic()
            if began + longest > until:
                return
            try:
                path.touch(exist_ok=False)
            except FileExistsError:
                continue
            row = search.train(TRIED[name], seed, args.averaged)
            seconds = time.monotonic() - began
            origin = {"hardware": hardware(args.device), "versions": versions(), "commit": commit()}
            path.write_text(json.dumps({"name": name, **row, "seconds": seconds, **origin}) + "\n", encoding="utf-8")
            print(f"{name}, seed {seed}: {row['accuracy']['last']['all']:.1f} %, {seconds:.0f} s", flush=True)
            longest = max(longest, seconds)


def table(args: Any) -> None:
    """Keep every run, and print the means over seeds of each setting."""
    paths = sorted(args.out.rglob("*-seed*.json"))
    rows = [json.loads(text) for path in paths if (text := path.read_text(encoding="utf-8"))]  # a cut run's is empty
    names = list(dict.fromkeys(row["name"] for row in rows))
    by_name = {name: [row for row in rows if row["name"] == name] for name in names}
    means = {name: statistics.mean(row["accuracy"]["last"]["all"] for row in own) for name, own in by_name.items()}
    for name in sorted(names, key=lambda name: -means[name]):
        own = by_name[name]
        kinds = {kind: statistics.mean(row["accuracy"][kind]["all"] for row in own) for kind in own[0]["accuracy"]}
        carry = statistics.mean(row["accuracy"]["last"]["carry"] for row in own)
        listed = ", ".join(f"{kind} {value:.1f}" for kind, value in kinds.items())
        print(f"{name:<14} {len(own)} seeds: {listed}; carry {carry:.1f}; {own[0]['flops'] / 1e12:.1f} TFLOP")
    problems = len(ChoiceSplit().test)
    report(
        "demo_settings",
        f"smollm2, TF32: greedy accuracy on {problems} choice problems, {args.chosen} of {len(names)} settings",
        means[args.chosen],
        {"template qa": means.get("qa")},
        unit="%",
        details={
            "recipe_before": asdict(QA),
            "settings": [{"name": name, **_summary(own)} for name, own in by_name.items()],
            "note": args.note,
        },
        origin=rows[0],
    )


def _summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What differs from the recipe before, and the runs: accuracies of the last weights, of their means over steps, the
    reward of the last five steps, the share of groups that were learned from later on, tokens and FLOPs."""
    before = json.loads(json.dumps(asdict(QA)))
    changed = {name: value for name, value in runs[0]["settings"].items() if value != before[name]}
    rows = []
    for run in runs:
        last, *means = run["accuracy"].items()
        groups = sum(_problems_at(Settings(**run["settings"]), step) for step in range(EARLY_STEPS, len(run["live"])))
        rows.append({
            "seed": run["seed"], **{kind: round(value, 2) for kind, value in last[1].items()},
            **{kind: round(value["all"], 2) for kind, value in means},
            "reward": round(statistics.mean(run["reward"][-5:]), 4),
            "live": round(sum(run["live"][EARLY_STEPS:]) / groups, 4),
            "tokens": sum(run["tokens"]), "flops": run["flops"], "seconds": round(run["seconds"], 1),
        })  # fmt: skip
    return {"changed": changed, "runs": rows}


def _problems_at(s: Settings, step: int) -> int:
    return s.problems_late if s.problems_late and step >= s.late else s.problems


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("part", choices=["run", "table"])
    flags.add_argument("--out", type=Path, default=Path("kept"), help="folder of the JSON files")
    flags.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    flags.add_argument("--only", nargs="+", choices=list(TRIED), help="settings; default: all")
    flags.add_argument(
        "--averaged", type=int, nargs="*", default=[], help="measure means of the last so many steps, too"
    )
    flags.add_argument("--seconds", type=float, default=3600.0, help="no run begins that would not end by then")
    flags.add_argument("--chosen", choices=list(TRIED), default="w", help="the setting that became the recipe's")
    flags.add_argument("--note", default="", help="kept with the result")
    args = flags.parse_args()
    {"run": run, "table": table}[args.part](args)


if __name__ == "__main__":
    main()

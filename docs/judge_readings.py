"""What does a scalar head lack? Five readings of an answer, which learn the same verdicts by the same cross-entropy.

    python docs/judge_readings.py                      three seeds, two processes of one thread each
    python docs/judge_readings.py --seeds 0 --steps 40 --answers 1024 --problems 8 --work runs/try --out runs/try.json

A tiny model imitates sums of ten numbers, worked in lines, and is stopped early; ponder trains it and samples its
answers. The judges are plain torch and share nothing with ponder's trainers and readouts: a transformer that begins
with the weights of the start, and is checked to give each sampled token the log-probability that ponder stored. All
weights of a judge learn. Kept in docs/results/judge_readings.json. What the work folder has already is not made again.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from ponder.book.figure import SHARE, format_interval, markdown_table
from ponder.book.stated_answer import stated_answer
from ponder.cli.recipe_files import build_job, find_recipe, load_recipe
from ponder.measure import SampleCurve, auroc_within_problems, selection_curve
from ponder.pipelines.stages import Stages
from ponder.runs import newest_checkpoint, read_traces
from ponder.types import Trace
from ponder.verify import FinalNumber

RESULTS = Path(__file__).resolve().parent / "results" / "judge_readings.json"
OLD, NEW = "sums of five numbers, one seed", "sums of ten numbers"
READINGS = {
    "head": "a linear head at the last token",
    "layers": "the same on two further layers, which begin as the identity",
    "bilinear": "a score of each token, added up, bilinear in the hidden state before it and its embedding",
    "logit": "the difference of each token's logit from the start's, added up, times beta",
    "log-probability": "the same of its log-probability: the implicit reward model by its ratio",
}
LOG_PI = "log-probability, read by log pi"
PLAIN = {
    "majority": "majority vote",
    "start": "the start's own log-probability",
    "random": "a different text at random",
}
FURTHER_LAYERS, WEIGHT_STD = 2, 0.08  # the weights of the further layers that do not begin as 0: as the start's
SCORE_BATCH = 256
LEAST_ERROR = 1e-4  # of a token's log-probability, against the stored one
EPS = 1e-6


@dataclass(frozen=True)
class Settings:
    """Of the data and of every judge."""

    answers: int = 24576  # to learn from, each once
    answers_a_problem: int = 4
    problems: int = 64  # held out
    samples: int = 64  # of each of them
    steps: int = 384
    batch: int = 64  # answers in a step
    lr: float = 1e-3
    warmup_steps: int = 20
    beta: float = 0.2
    max_grad_norm: float = 1.0


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    for name, value in asdict(Settings()).items():
        flags.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    flags.add_argument("--processes", type=int, default=2, help="of one thread each")
    flags.add_argument("--work", type=Path, default=Path("runs/judge_readings"), help="folder of the runs")
    flags.add_argument("--out", type=Path, default=RESULTS, help="file of the kept results")
    args = flags.parse_args()
    settings = Settings(**{name: getattr(args, name) for name in asdict(Settings())})
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes, which load torch anew
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(args.processes, torch.set_num_threads, (1,)) as pool:
        made = [(args.work / f"seed-{seed}", seed, settings) for seed in args.seeds]
        held_out = pool.starmap(make_answers, made, chunksize=1)
        found = pool.starmap(train_judge, [(name, *own) for own in made for name in READINGS], chunksize=1)
    minutes = round((time.monotonic() - began) / 60, 1)
    seeds = [
        {"seed": seed, **own, "readings": dict(zip(READINGS, found[k * len(READINGS) :], strict=False))}
        for k, (seed, own) in enumerate(zip(args.seeds, held_out, strict=True))
    ]
    keep(args.out, settings, seeds, machine(args.processes), minutes)
    print("\n".join(report(seeds)), f"\n{minutes} minutes", flush=True)


def machine(processes: int) -> str:
    about = Path("/proc/cpuinfo")
    names = [line for line in about.read_text().splitlines() if "model name" in line] if about.exists() else []
    name = names[0].partition(":")[2].strip() if names else platform.machine()
    return f"{processes} processes of one thread, {name}, torch {torch.__version__}"


# The start and its answers, by ponder.


def make_answers(folder: Path, seed: int, settings: Settings) -> dict[str, Any]:
    """Train the start and sample its answers, where that is not done; what chooses among those held out without a
    judge, and how far the transformer below is from ponder's."""
    outcomes = f"outcomes-{settings.answers}"
    if not all(is_finished(folder / name) for name in ("start", outcomes, "validation")):
        job = build_job(
            load_recipe(find_recipe("step_labels")),
            {
                "puzzle": "long-sums", "seed": seed, "sizes": (settings.answers,), "negatives": False,
                "samples": settings.answers_a_problem, "validation_n": settings.samples, "limit": settings.problems,
            },
        )  # fmt: skip
        stages = [stage for stage in job.stages if stage.name in ("start", outcomes, "validation")]
        on_cpu = [replace(stage, job=replace(stage.job, device="cpu", dtype="float32")) for stage in stages]
        Stages(tuple(on_cpu))(folder)
    learned, held_out = read_answers(folder / outcomes), read_answers(folder / "validation")
    start = load_start(folder)
    error = max(worst_logprob_error(start, answers) for answers in (learned, held_out))
    assert error < LEAST_ERROR, f"log-probabilities differ from the stored ones by up to {error:.2g}"
    print(f"seed {seed}: {len(learned.right)} answers, log-probabilities within {error:.1e} of ponder's", flush=True)
    return {
        "largest difference of a token's log-probability from ponder's": error,
        "learned from": about(learned),
        "held out": about(held_out) | choose_without_judge(held_out),
    }


def is_finished(run: Path) -> bool:
    status = run / "status.json"
    return status.exists() and json.loads(status.read_text())["state"] == "finished"


@dataclass(frozen=True)
class Answers:
    """Answers with their prompts, padded on the right, problem by problem."""

    tokens_NT: Tensor
    answer_NT: Tensor  # whether a token is the answer's
    logprobs_NT: Tensor  # of the answer's tokens, as ponder stored them; else 0
    right: list[float]
    problems: list[str]
    stated: list[Any]


def read_answers(run: Path) -> Answers:
    """The answers that a run directory has."""
    verifier = FinalNumber(("hash",))  # the puzzle's
    traces = sorted((trace for _, trace in read_traces(run)), key=lambda trace: trace.problem.id)
    both = [(trace, i) for trace in traces for i in trace.answers()]
    longest = max(len(trace.token_ids(i)) for trace, i in both)
    tokens, logprobs = np.zeros((len(both), longest), np.int64), np.zeros((len(both), longest), np.float32)
    is_answer = np.zeros((len(both), longest), bool)
    for row, (trace, i) in enumerate(both):
        assert trace.path(i) == [0, i], "an answer has one step"
        begin, ids = len(trace.steps[0].token_ids), trace.token_ids(i)
        tokens[row, : len(ids)], is_answer[row, begin : len(ids)] = ids, True
        logprobs[row, begin : len(ids)] = trace.steps[i].logprobs
    return Answers(
        torch.from_numpy(tokens), torch.from_numpy(is_answer), torch.from_numpy(logprobs),
        [is_right(trace, i, verifier.name) for trace, i in both], [trace.problem.question for trace, _ in both],
        [stated_answer(verifier, trace.text(i)) for trace, i in both],
    )  # fmt: skip


def is_right(trace: Trace, step: int, scorer: str) -> float:
    value = trace.score(step, scorer)
    assert value in (0.0, 1.0), f"no verdict on an answer to {trace.problem.question}"
    return value


def by_problem(answers: Answers, values: Sequence[Any]) -> list[list[Any]]:
    groups: dict[str, list[Any]] = {}
    for problem, value in zip(answers.problems, values, strict=True):
        groups.setdefault(problem, []).append(value)
    return list(groups.values())


def texts(answers: Answers) -> list[bytes]:
    return [row.numpy().tobytes() for row in answers.tokens_NT]


def about(answers: Answers) -> dict[str, Any]:
    pairs = set(zip(texts(answers), answers.right, strict=True))
    return {
        "answers": len(answers.right),
        "problems": len(set(answers.problems)),
        "different texts": len(pairs),
        "different right texts": sum(right == 1 for _, right in pairs),
        "right": mean(answers.right),
        "tokens of an answer": mean(answers.answer_NT.sum(1).tolist()),
    }


def mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 4)


def best_of(curve: SampleCurve, sizes: Sequence[int]) -> dict[str, float]:
    """By the number of samples to choose from, the share right."""
    return {str(k): round(float(value), 4) for k, value in zip(sizes, curve.mean, strict=True)}


# A transformer in plain torch, with the names of Hugging Face's Llama. N answers, T tokens, E width, H heads.


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x_NTE: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (
            project(x_NTE).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(rotate(q, *turn), rotate(k, *turn), v, is_causal=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(width, heads), MLP(width, inner)
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width, EPS), nn.RMSNorm(width, EPS)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turn)
        return x + self.mlp(self.post_attention_layernorm(x))


class Transformer(nn.Module):
    """The LM head's weights are the embedding's."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, inner: int, theta: float) -> None:
        super().__init__()
        self.shape, self.theta = (width, heads, inner), theta
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(*self.shape) for _ in range(layers))
        self.norm = nn.RMSNorm(width, EPS)

    def forward(self, tokens_NT: Tensor) -> Tensor:
        """The hidden state at each token, [N, T, E]: what the LM head reads."""
        x, (width, heads, _) = self.embed_tokens(tokens_NT), self.shape
        turn = rotary(tokens_NT.shape[1], width // heads, self.theta)
        for layer in self.layers:
            x = layer(x, turn)
        out: Tensor = self.norm(x)
        return out

    def add_layers(self, count: int) -> None:
        """Further layers that begin as the identity."""
        for _ in range(count):
            layer = Layer(*self.shape)
            for name, weight in layer.named_parameters():
                if "o_proj" in name or "down_proj" in name:
                    nn.init.zeros_(weight)
                elif "proj" in name:
                    nn.init.normal_(weight, std=WEIGHT_STD)
            self.layers.append(layer)


def rotary(length: int, size: int, theta: float) -> tuple[Tensor, Tensor]:
    angles = torch.outer(torch.arange(length), theta ** -(torch.arange(0, size, 2) / size)).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, other = x.chunk(2, -1)
    return x * cos + torch.cat([-other, one], -1) * sin


def load_start(folder: Path) -> Transformer:
    newest = newest_checkpoint(folder / "start")
    assert newest is not None, f"{folder} has no trained start"
    c = json.loads((newest / "model" / "config.json").read_text())
    assert c["tie_word_embeddings"] and c["num_key_value_heads"] == c["num_attention_heads"]
    assert c["rms_norm_eps"] == EPS and not c["attention_bias"] and not c["mlp_bias"]
    net = Transformer(
        c["vocab_size"], c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"], c["intermediate_size"],
        c["rope_theta"],
    )  # fmt: skip
    weights = load_file(newest / "model" / "model.safetensors")
    net.load_state_dict({name.removeprefix("model."): weight for name, weight in weights.items()})
    return net


def token_logits(net: Transformer, tokens_NT: Tensor) -> tuple[Tensor, Tensor]:
    """The logit and the log-probability of each token after the first, [N, T - 1] both."""
    logits_NTV = net(tokens_NT[:, :-1]) @ net.embed_tokens.weight.T
    logit_NT = logits_NTV.gather(-1, tokens_NT[:, 1:, None]).squeeze(-1)
    return logit_NT, logit_NT - logits_NTV.logsumexp(-1)


def all_logits(net: Transformer, answers: Answers) -> tuple[Tensor, Tensor]:
    """The same of all answers, to remember."""
    with torch.no_grad():
        parts = [token_logits(net, tokens) for tokens in answers.tokens_NT.split(SCORE_BATCH)]
    return torch.cat([logit for logit, _ in parts]), torch.cat([logprob for _, logprob in parts])


def worst_logprob_error(net: Transformer, answers: Answers) -> float:
    own_NT = all_logits(net, answers)[1]
    return float(((own_NT - answers.logprobs_NT[:, 1:]) * answers.answer_NT[:, 1:]).abs().max())


# Judges


class Judge(nn.Module):
    """A transformer and how an answer is read from it: as a logit, which begins as 0 for every answer."""

    def __init__(self, net: Transformer, reading: str, beta: float) -> None:
        super().__init__()
        width = net.shape[0]
        self.net, self.reading, self.beta = net, reading, beta
        if reading == "layers":
            net.add_layers(FURTHER_LAYERS)
        if reading in ("head", "layers"):
            self.head = nn.Parameter(torch.zeros(width))
        if reading == "bilinear":
            self.form = nn.Parameter(torch.zeros(width, width))

    def forward(self, tokens_NT: Tensor, answer_NT: Tensor, start: tuple[Tensor, Tensor]) -> Tensor:
        """`start`: the start's logits and log-probabilities of these tokens."""
        if self.reading in ("head", "layers"):
            last_N = answer_NT.shape[1] - 1 - answer_NT.flip(1).int().argmax(1)
            return self.net(tokens_NT)[torch.arange(len(last_N)), last_N] @ self.head
        if self.reading == "bilinear":
            before_NTE, own_NTE = self.net(tokens_NT[:, :-1]), self.net.embed_tokens(tokens_NT[:, 1:])
            return ((before_NTE @ self.form * own_NTE).sum(-1) * answer_NT[:, 1:]).sum(1)
        which = 0 if self.reading == "logit" else 1
        own_NT = token_logits(self.net, tokens_NT)[which]
        return self.beta * ((own_NT - start[which]) * answer_NT[:, 1:]).sum(1)


def train_judge(reading: str, folder: Path, seed: int, settings: Settings) -> dict[str, Any]:
    """What a judge of this reading learns, measured on the answers held out; kept in the folder."""
    kept = folder / "readings" / f"{reading}.json"
    if kept.exists() and (before := json.loads(kept.read_text()))["settings"] == asdict(settings):
        return dict(before["found"])
    learned, held_out = read_answers(folder / f"outcomes-{settings.answers}"), read_answers(folder / "validation")
    start, began = load_start(folder), time.monotonic()
    torch.manual_seed(seed)  # of the further layers
    judge = Judge(load_start(folder), reading, settings.beta)
    first = score(judge, start, held_out)
    assert max(map(abs, first)) < LEAST_ERROR, f"{reading} does not begin with 0"
    losses = learn(judge, all_logits(start, learned), learned, seed, settings)
    last_pass = losses[-min(len(losses), len(learned.right) // settings.batch) :]
    found: dict[str, Any] = {
        "reading": READINGS[reading],
        "weights": sum(weight.numel() for weight in judge.parameters()),
        "loss of the last pass": mean(last_pass),
        "loss of the last quarter": mean(losses[-max(1, len(losses) // 4) :]),
        **measure(held_out, score(judge, start, held_out)),
    }
    if reading == "log-probability":
        log_pi_NT = all_logits(judge.net, held_out)[1]
        found["by log pi"] = measure(held_out, (log_pi_NT * held_out.answer_NT[:, 1:]).sum(1).tolist())
    found["seconds"] = round(time.monotonic() - began, 1)
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps({"settings": asdict(settings), "found": found}))
    print(f"seed {seed}, {reading}: AUROC {found['AUROC within problems']}, {found['seconds']} s", flush=True)
    return found


def learn(judge: Judge, start: tuple[Tensor, Tensor], data: Answers, seed: int, s: Settings) -> list[float]:
    """The loss of each step. The batches of a seed are the same for all readings."""
    right_N = torch.tensor(data.right)
    optimizer = torch.optim.Adam(judge.parameters(), s.lr)
    losses = []
    for step, rows in enumerate(batches(len(right_N), seed, s)):
        cut = int(data.answer_NT[rows].any(0).nonzero().max()) + 1  # the longest answer of the batch
        own = start[0][rows, : cut - 1], start[1][rows, : cut - 1]
        logit_N = judge(data.tokens_NT[rows, :cut], data.answer_NT[rows, :cut], own)
        loss = F.binary_cross_entropy_with_logits(logit_N, right_N[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(judge.parameters(), s.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = s.lr * rate_share(step, s)
        optimizer.step()
        losses.append(loss.item())
    return losses


def rate_share(step: int, s: Settings) -> float:
    """Linear warm-up, then linear decay."""
    return min((step + 1) / s.warmup_steps, 1.0, (s.steps - step) / max(1, s.steps - s.warmup_steps))


def batches(count: int, seed: int, s: Settings) -> Iterator[Tensor]:
    """The rows of each step: every answer once before any comes again."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.cat([torch.randperm(count, generator=draw) for _ in range(math.ceil(s.steps * s.batch / count))])
    return iter(rows[: s.steps * s.batch].split(s.batch))


def score(judge: Judge, start: Transformer, answers: Answers) -> list[float]:
    with torch.no_grad():
        parts = [
            judge(tokens, is_answer, token_logits(start, tokens))
            for tokens, is_answer in zip(
                answers.tokens_NT.split(SCORE_BATCH), answers.answer_NT.split(SCORE_BATCH), strict=True
            )
        ]
    return torch.cat(parts).tolist()


# What they choose


def measure(answers: Answers, scores: Sequence[float]) -> dict[str, Any]:
    """How well scores tell right answers from wrong ones to the same problem, and the share right of what they choose.
    An attempt that states no answer is not chosen."""
    right = by_problem(answers, answers.right)
    places = [
        [None if stated is None else i for i, stated in enumerate(own)] for own in by_problem(answers, answers.stated)
    ]
    sizes = choice_sizes(right)
    curve = selection_curve("best", places, right, sizes, by_problem(answers, scores), "exact")
    area = auroc_within_problems(scores, answers.right, answers.problems, resamples=2).area
    return {
        "AUROC within problems": round(area, 4),
        "best of": best_of(curve, sizes),
    }


def choice_sizes(right: Sequence[Sequence[float]]) -> list[int]:
    most = min(map(len, right))
    return sorted({min(8, most), most})


def choose_without_judge(answers: Answers) -> dict[str, Any]:
    """What the vote, the start's own log-probability and chance choose."""
    right = by_problem(answers, answers.right)
    different = by_problem(answers, list(zip(texts(answers), answers.right, strict=True)))
    sizes = choice_sizes(right)
    vote = selection_curve("majority", by_problem(answers, answers.stated), right, sizes, how="exact")
    return {
        "majority": {"best of": best_of(vote, sizes)},
        "start": measure(answers, answers.logprobs_NT.double().sum(1).tolist()),
        "different texts of a problem": mean([len(set(own)) for own in different]),
        "a different text at random": mean([mean([right for _, right in set(own)]) for own in different]),
        "problems with a right answer": mean([max(own) for own in right]),
        "problems with right and wrong answers": sum(0 < sum(own) < len(own) for own in right),
    }


def keep(out: Path, settings: Settings, seeds: list[dict[str, Any]], machine: str, minutes: float) -> None:
    before = json.loads(RESULTS.read_text())
    new = {
        "about": "What does a judge of the tiny model learn from the same verdicts, by how it reads an answer? Every"
        " reading begins with 0 for every answer and learns by binary cross-entropy; all weights learn.",
        "settings": asdict(settings)
        | {
            "optimizer": "Adam, betas 0.9 and 0.999, no weight decay; linear warm-up, then linear decay to 0",
            "further layers": FURTHER_LAYERS,
            "bias": "none in any reading",
            "temperature": 1,
            "held out": "problems that neither the start nor a judge learned from; nothing was chosen on them",
            "an attempt that states no answer": "is not chosen",
        },
        "machine": machine,
        "minutes": minutes,
        "seeds": seeds,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({OLD: before.get(OLD, before), NEW: new}, indent=1) + "\n")


# The table


def report(seeds: Sequence[dict[str, Any]]) -> list[str]:
    """The mean over seeds, its 95 % interval and each seed, of every reading and of what needs no judge."""
    rows = {READINGS[name]: [one["readings"][name] for one in seeds] for name in READINGS}
    rows[LOG_PI] = [one["readings"]["log-probability"]["by log pi"] for one in seeds]
    rows |= {PLAIN[name]: [one["held out"][name] for one in seeds] for name in ("majority", "start")}
    sizes = list(seeds[0]["held out"]["majority"]["best of"])
    cells = [[title, *(cell(own, size) for size in ("", *sizes))] for title, own in rows.items()]
    chance = [one["held out"]["a different text at random"] for one in seeds]
    cells.append([PLAIN["random"], *[""] * len(sizes), format_interval(chance, bounds=SHARE)])
    table = markdown_table(["reading", "AUROC within problems", *(f"best of {k}, %" for k in sizes)], cells)
    return [*table, *steps_up(seeds, sizes[-1])]


def cell(own: Sequence[dict[str, Any]], size: str) -> str:
    if size:
        return format_interval([one["best of"][size] for one in own], bounds=SHARE)
    if "AUROC within problems" not in own[0]:
        return ""
    return format_interval([one["AUROC within problems"] for one in own], 1, 3, bounds=SHARE)


def steps_up(seeds: Sequence[dict[str, Any]], size: str) -> list[str]:
    """How much each reading has more than the one before it."""
    names, out = list(READINGS), []
    for before, name in pairwise(names):
        both = [(one["readings"][name], one["readings"][before]) for one in seeds]
        areas = [a["AUROC within problems"] - b["AUROC within problems"] for a, b in both]
        chosen = [a["best of"][size] - b["best of"][size] for a, b in both]
        out.append(
            f"{name} less {before}: AUROC {format_interval(areas, 1, 3, sign=True)}; best of {size}, in points,"
            f" {format_interval(chosen, sign=True)}"
        )
    for key, title in (("AUROC within problems", "AUROC"), ("best of", f"best of {size}")):
        own = [[one["readings"][name][key] for name in names] for one in seeds]
        values = [[v[size] if isinstance(v, dict) else v for v in row] for row in own]
        rising = [all(a < b for a, b in pairwise(row)) for row in values]
        out.append(f"by {title} each reading has more than the one before it in {sum(rising)} of {len(rising)} seeds")
    return out


if __name__ == "__main__":
    main()

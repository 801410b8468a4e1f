"""Episodes per second: a model calls a tool turn by turn. ponder, and the tool loop of TRL's GRPOTrainer.

Both sample the same number of episodes at once with the same weights, type and number of threads, from the same
prompts and chat template, in the same environment: one class in TRL's form (`environment_factory`), which ponder takes
unchanged. The model is taught by imitation, before any clock runs, to call the tool in every turn with a number of
three digits. So every turn has as many tokens on both sides, and every episode has as many turns; the report counts
them. The temperature is 0.3: digits differ, and calls are well formed.

ponder's time is that of `solve_all`: environments made, episodes played and rewarded, with the log-probabilities of
what was sampled. TRL's is that of `GRPOTrainer._generate`: prompts rendered, episodes played, neither rewards nor
log-probabilities. Its optimiser runs between, with a learning rate of 0, and is not counted. The two sides take turns.

TRL is measured where it is installed (pip install 'trl==1.16.*'); without it only ponder is. TRL generates by
transformers, as it does by default.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from harness import make_parser, report
from ponder import event_loop
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.nets import hf
from ponder.pipelines.sft import PREFERENCE_SCORER
from ponder.pipelines.solve import solve_all
from ponder.pipelines.training.gold_episodes import gold_traces
from ponder.reason.strategies import Samples
from ponder.tasks.environments.episode_reward import EpisodeReward
from ponder.tasks.environments.episode_task import EpisodeTask
from ponder.tasks.environments.tool_actions import call_text
from ponder.tasks.environments.trl_environment import TRLEnvironment
from ponder.train.imitation import SFT
from ponder.train.learner import Learner
from ponder.train.optimizer import AdamW
from ponder.types import Problem, Sampling, Trace
from training_harness import trl_dataset

INSTALL = "pip install 'trl==1.16.*'"
PROMPT = "Find my number from 100 to 999."
LOWEST, HIGHEST = 100, 999
TEMPERATURE = 0.3
TURN_TOKENS = 96  # more than a call has, on either model
ALPHABET = "".join(map(chr, range(32, 127))) + "\n"
MODELS = {  # what is taught, its learning rate, steps of teaching
    "tiny": (ScratchModel(ALPHABET, width=64, layers=2, heads=2, context=2048), 5e-3, 160),
    "smollm2": ("smollm2", 1e-4, 40),
}
# Names the tools, and does not print their schemas, which the two sides write in different words.
TEMPLATE = (
    "{%- if tools %}{{ 'tools:' }}{% for t in tools %}{{ ' ' + t.function.name }}{% endfor %}{{ '\n' }}{% endif %}"
    "{%- for m in messages %}{{ m.role + ': ' + (m.content or '') }}"
    '{%- for call in m.tool_calls or [] %}{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \''
    " + (call.function.arguments | tojson) + '}\n</tool_call>' }}{% endfor %}"
    "{{- eos_token + '\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


class HigherOrLower:
    """The environment, in TRL's form."""

    def reset(self, number: int, **columns: Any) -> None:
        self.number, self.nearest = number, HIGHEST

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: from 100 to 999
        """
        self.nearest = min(self.nearest, abs(number - self.number))
        return "right" if number == self.number else "higher" if number < self.number else "lower"

    def get_reward(self) -> float:
        return 1.0 - self.nearest / (HIGHEST + 1)


class Taught(TRLEnvironment):
    """The same, with actions to imitate: a call in every turn."""

    def __init__(self, turns: int) -> None:
        super().__init__(HigherOrLower, turns)

    def gold(self) -> str:
        rng = random.Random(f"{self._instance.number} {self._turns}")
        return call_text("guess", {"number": rng.randint(LOWEST, HIGHEST)})


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {"prompt": [{"role": "user", "content": PROMPT}], "number": rng.randint(LOWEST, HIGHEST), "row": row}
        for row in range(count)
    ]


def game(options: Any, count: int, seed: int) -> EpisodeTask:
    data = rows(count, seed)
    return EpisodeTask(environment=HigherOrLower, data=data, test_data=data[:1], max_turns=options.turns)


def teach(options: Any, folder: Path) -> None:
    """Save a model that calls the tool in every turn."""
    model, lr, steps = MODELS[options.model]
    policy = load_policy(model, template=TEMPLATE, device=options.device, dtype="float32")
    batch = 8
    task = game(options, batch * steps + 1, seed=1)
    verifier = EpisodeReward(lambda: Taught(options.turns), task.limits)
    objective, state = SFT(), {}
    optimizer = AdamW(lr=lr, warmup_steps=steps // 10, decay_steps=steps)
    learner = Learner(policy.net, objective, optimizer)
    for step in range(steps):
        traces = gold_traces(policy, task.train[step * batch : (step + 1) * batch], verifier)
        objective.credit(traces, PREFERENCE_SCORER, state)
        loss = learner.step(traces)["loss"]
        if step % 20 == 19:
            print(f"taught for {step + 1} steps: loss {loss:.3f}", flush=True)
    hf.save(policy.net, folder)
    policy.tokenizer.save(folder)


class PonderSide:
    """Episodes by ponder."""

    def __init__(self, options: Any, folder: Path, dtype: str) -> None:
        self.options = options
        self.policy: PonderPolicy = load_policy(str(folder), device=options.device, dtype=dtype)
        self.strategy = Samples(options.n, Sampling(TEMPERATURE, max_tokens=TURN_TOKENS * options.turns))
        self.task = game(options, options.prompts * (1 + options.repeats) + 1, seed=2)
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.counts: dict[str, float] = {}

    def play(self) -> None:
        """One batch of episodes, on the clock."""
        at = len(self.seconds) * self.options.prompts
        problems: Sequence[Problem] = self.task.train[at : at + self.options.prompts]
        self.policy.reseed(0, len(self.seconds))
        began, worked = clock(self.options.device), time.process_time()
        traces = event_loop.run(solve_all(problems, self.strategy, self.policy, self.task.verifier))
        self.seconds.append(clock(self.options.device) - began)
        self.cpu_seconds.append(time.process_time() - worked)
        self.counts = count_traces(traces)
        print(f"ponder: {self.seconds[-1]:.2f} s, {self.counts}", flush=True)


def count_traces(traces: Sequence[Trace]) -> dict[str, float]:
    """Means over episodes."""
    paths = [[trace.steps[i] for i in trace.path(leaf)] for trace in traces for leaf in trace.answers()]
    sampled = [[step for step in path if step.sampled] for path in paths]
    return {
        "episodes": len(paths),
        "turns": statistics.mean(map(len, sampled)),
        "sampled_tokens": statistics.mean(sum(len(step.token_ids) for step in path) for path in sampled),
        "prompt_tokens": statistics.mean(len(path[0].token_ids) for path in paths),
    }


def trl_side(
    options: Any, folder: Path, dtype: str, between: Callable[[], None]
) -> tuple[list[float], list[float], dict[str, Any]]:
    """Seconds and processor seconds of each of TRL's batches, and what the last one had; `between` is called after
    each."""
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_template

    seconds: list[float] = []
    cpu_seconds: list[float] = []
    counts: dict[str, Any] = {}

    class TimedTrainer(GRPOTrainer):  # type: ignore[misc]
        def _generate(self, prompts: list[Any]) -> Any:
            began, worked = clock(options.device), time.process_time()
            output = super()._generate(prompts)
            seconds.append(clock(options.device) - began)
            cpu_seconds.append(time.process_time() - worked)
            prompt_ids, _, tool_mask, completions = output[:4]
            counts["episodes"] = len(completions)
            counts["turns"] = statistics.mean(sum(m["role"] == "assistant" for m in c) for c in completions)
            counts["sampled_tokens"] = statistics.mean(map(sum, tool_mask))
            counts["prompt_tokens"] = statistics.mean(map(len, prompt_ids))
            print(f"TRL: {seconds[-1]:.2f} s, {counts}", flush=True)
            return output

    class TakeTurns(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            between()

    tokenizer = AutoTokenizer.from_pretrained(folder)
    anchor = {"start_anchor": "assistant: "}
    ending = {"close_pattern": tokenizer.eos_token.replace("|", r"\|"), "content": "text"}
    tokenizer.response_template = qwen3_template | anchor | {"fields": qwen3_template["fields"] | {"content": ending}}
    with tempfile.TemporaryDirectory() as output:
        settings = GRPOConfig(
            output_dir=output, max_steps=1 + options.repeats, per_device_train_batch_size=options.prompts * options.n,
            num_generations=options.n, max_tool_calling_iterations=options.turns - 1,
            max_completion_length=2 * TURN_TOKENS * options.turns, temperature=TEMPERATURE, top_p=1.0, top_k=0,
            beta=0.0, learning_rate=0.0, weight_decay=0.0, bf16=False, fp16=False, gradient_checkpointing=False,
            use_cpu=options.device == "cpu", shuffle_dataset=False, model_init_kwargs={"dtype": dtype},
            report_to="none", save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = TimedTrainer(
            model=str(folder), args=settings, processing_class=tokenizer, environment_factory=HigherOrLower,
            train_dataset=trl_dataset(rows(options.prompts * (1 + options.repeats) + 1, seed=2)[1:]),
            callbacks=[TakeTurns()],
        )  # fmt: skip
        trainer.train()
    return seconds, cpu_seconds, counts


def clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    flags = make_parser(__doc__)
    flags.add_argument("--model", choices=[*MODELS], help="default: tiny, on a GPU smollm2")
    flags.add_argument("--prompts", type=int, default=8)
    flags.add_argument("--n", type=int, default=8, help="episodes of each prompt")
    flags.add_argument("--turns", type=int, default=8, help="turns of an episode, each with a call")
    flags.add_argument("--repeats", type=int, default=5, help="measured batches, after one to warm up")
    flags.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32, on a GPU bfloat16")
    flags.add_argument("--taught", type=Path, help="folder for the taught model, which a later call takes from there")
    flags.add_argument("--note", default="", help="kept with the result, such as: shared machine")
    options = flags.parse_args()
    options.model = options.model or ("smollm2" if options.device == "cuda" else "tiny")
    dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")

    with tempfile.TemporaryDirectory() as work:
        folder = (options.taught or Path(work)) / options.model
        if not folder.exists():
            teach(options, folder)
        ours = PonderSide(options, folder, dtype)
        seconds, cpu = {"ponder": ours.seconds}, {"ponder": ours.cpu_seconds}
        counts, threads = {}, torch.get_num_threads()
        if importlib.util.find_spec("trl") is None:
            print(f"TRL is not installed, so only ponder is measured. To measure both: {INSTALL}", flush=True)
            for _ in range(1 + options.repeats):
                ours.play()
        else:
            seconds["TRL"], cpu["TRL"], counts["TRL"] = trl_side(options, folder, dtype, ours.play)
            assert torch.get_num_threads() == threads
    counts["ponder"] = ours.counts
    at_once = options.prompts * options.n
    rate = {side: at_once / statistics.median(times[1:]) for side, times in seconds.items()}
    report(
        "episodes",
        f"{options.model}, {dtype}: {at_once} episodes at once, {options.prompts} prompts x {options.n}, of"
        f" {options.turns} turns with a tool call each",
        rate["ponder"],
        {"TRL": rate.get("TRL")},
        promised=3.0 if options.device == "cpu" else 5.0,
        unit="episodes/s",
        device=options.device,
        packages=["trl", "transformers", "accelerate"],
        details={
            "seconds": seconds,
            "cpu_seconds": cpu,
            "per_episode": counts,
            "threads": threads,
            "note": options.note,
        },
    )


if __name__ == "__main__":
    main()

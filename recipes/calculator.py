"""Arithmetic with a calculator, and without it at as many sampled tokens: is a tool worth the words that call it?

Two models of one shape and seed imitate gold answers for as many steps: one calls the calculator and then answers, the
other answers at once. Then each learns by GRPO. A call has many more tokens than an answer, so the one without it has
`--answers-per-call` times as many answers: that many times the problems in each step of GRPO, and at the end a majority
vote of that many. Whether that is as many tokens, the results say.

Results with three seeds, hardware and time: docs/results.md.
"""

from dataclasses import replace
from typing import Annotated

from _agents import (
    Cosine,
    Dtype,
    GoldEpisodes,
    MicrobatchTokens,
    compute_on,
    evaluate_agent,
    imitate_gold_play,
    pace_of,
    train_agent,
)
from _bases import LIMIT, Count, Limit, Lr, ModelName, Steps, measured

from ponder.common_settings import Device
from ponder.pipelines.evaluate import Evaluate
from ponder.pipelines.stages import Stage, Stages
from ponder.reason.strategies import MajorityVote
from ponder.settings import GreaterThan
from ponder.tasks import Arithmetic
from ponder.tasks.environments.tool_actions import call_text
from ponder.tasks.environments.tool_task import ToolTask
from ponder.types import Sampling

# Two tokens of the tiny model: spelled in characters they are four in five of those that it writes.
CALL_WORDS = tuple(call_text("calculator", {"expression": "|"}).split("|"))
WEIGHT_STD = 0.08  # sqrt(2 / (5 width)): from 0.02 the tiny model, 64 wide, does not learn to copy in these steps


def recipe(
    model: ModelName = "tiny",
    terms: Annotated[int, "numbers in an expression", GreaterThan(1)] = 3,
    largest: Annotated[int, "the largest of them", GreaterThan(1)] = 99,
    max_tokens: Annotated[int, "of an answer with all of its turns, at most", GreaterThan(0)] = 128,
    answers_per_call: Annotated[int, "without the calculator, answers for each one with it", GreaterThan(0)] = 16,
    limit: Limit = LIMIT, cold_start_steps: Steps = None, cold_start_lr: Lr = None,
    gold_episodes: GoldEpisodes = None, steps: Steps = None, problems_per_step: Count = 8, group_size: Count = 8,
    lr: Lr = None, cosine: Cosine = False, device: Device = "auto", dtype: Dtype = None,
    max_tokens_per_microbatch: MicrobatchTokens = 0, seed: int = 0,
) -> Stages:  # fmt: skip
    tiny, pace, sampling = model == "tiny", pace_of(model), Sampling(max_tokens=max_tokens)
    if tiny:  # to copy an expression it needs longer than to learn a move
        pace = replace(pace, cold_start_steps=500, steps=30, lr=2e-4)
    prompt = "{expression}=" if tiny else "What is {expression}?"
    plain = measured(Arithmetic(terms=terms, largest=largest, brackets=False, prompt=prompt))
    with_tool = ToolTask(plain, ("calculator",), max_turns=3)
    place = compute_on(model, device, dtype)
    stages = []
    for name, world, times in (("tool", with_tool, 1), ("plain", plain, answers_per_call)):
        start = f"stage:{name}-start"
        first = imitate_gold_play(
            world, model, cold_start_steps or pace.cold_start_steps, cold_start_lr or pace.cold_start_lr, seed,
            gold_episodes, CALL_WORDS, WEIGHT_STD, max_tokens_per_microbatch=max_tokens_per_microbatch, **place,
        )  # fmt: skip
        rl = train_agent(
            world, start, sampling, steps or pace.steps, lr or pace.lr, seed, cosine,
            problems_per_step=problems_per_step * times, group_size=group_size,
            max_tokens_per_microbatch=max_tokens_per_microbatch, **place,
        )  # fmt: skip
        stages += [
            Stage(f"{name}-start", first),
            Stage(f"{name}-start-accuracy", evaluate_agent(world, start, sampling, limit, seed, **place)),
            Stage(f"{name}-rl", rl),
            Stage(f"{name}-accuracy", evaluate_agent(world, f"stage:{name}-rl", sampling, limit, seed, **place)),
        ]
    vote = MajorityVote(answers_per_call, sampling=sampling)
    voted = Evaluate(plain, "stage:plain-rl", strategy=vote, limit=limit, max_concurrency=512, seed=seed, **place)
    return Stages((*stages, Stage("plain-vote-accuracy", voted)))

"""Known bugs of whole training loops, by their numbers. See tests/train/test_known_trainer_bugs.py."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, RecordingProgress, char_policy, fails_if, perturb, run_async
from ponder.engine import sampler
from ponder.engine.engine import Engine
from ponder.errors import Interrupted
from ponder.models.base_policy import BasePolicy
from ponder.models.engine_policy import EnginePolicy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.pipelines import rl as pipeline
from ponder.pipelines.problems.curriculum import Frontier
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.training import session
from ponder.pipelines.training.session import TrainingSession
from ponder.reason.strategies import Samples
from ponder.runs import read_metrics, read_traces
from ponder.train import checkpoint
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO, REINFORCE
from ponder.types import Completion, Sampling, Score, user_messages
from ponder.verify import FinalNumber, base
from ponder.verify.final_answer import number
from processor_time import processor_time_below, spin
from reference_decoder import plain_logits, plain_logprobs, weights64  # fmt: skip

Patch = pytest.MonkeyPatch
both = pytest.mark.parametrize("broken", [False, True], ids=["right", "mistake"])
MODEL = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32)
JOB = RL(
    DigitTask(), MODEL, QUESTION_TEMPLATE, Samples(4, Sampling(max_tokens=2)), GRPO(kl=None), AdamW(lr=1e-2), steps=2,
    problems_per_step=3,
    preflight=False, device="cpu", dtype="float32",
)  # fmt: skip


@both
def test_5_the_sampler_says_what_it_drew_from(broken: bool, monkeypatch: Patch) -> None:
    """top-k renormalises: the true log-probability is that of the tokens that were left. And a job says so."""
    if broken:
        real = sampler.sample_tokens

        def full(logprobs: torch.Tensor, uniform: torch.Tensor, greedy: torch.Tensor, forced: Any) -> Any:
            tokens, text = real(logprobs, uniform, greedy)
            return tokens, text - 0.7  # as if the rest of the distribution were still there

        monkeypatch.setattr(sampler, "sample_tokens", full)
    policy, rule = char_policy(), Sampling(temperature=0.8, top_k=3, max_tokens=4)
    w = {n: p.detach() for n, p in weights64(policy.net).items()}
    prompt = policy.encode(user_messages("12="))
    with fails_if(broken):
        for item in run_async(policy.generate(prompt, rule, 5)):
            path = [*prompt.tolist(), *item.token_ids.tolist()]
            logits = plain_logits(w, policy.net.config, path)[len(prompt) - 1 : -1] / 0.8
            top = logits.topk(3)
            place = (top.indices == torch.tensor(path[len(prompt) :])[:, None]).nonzero()[:, 1]
            true = top.values.log_softmax(-1).gather(-1, place[:, None])[:, 0]
            assert np.allclose(item.logprobs, true, atol=1e-4)
    with pytest.warns(UserWarning, match="ratio to the sampler is not 1"):
        replace(JOB, strategy=Samples(4, Sampling(top_k=3, max_tokens=2)))


@both
def test_7_each_step_names_the_weights_that_wrote_it(broken: bool, tmp_path: Path, monkeypatch: Patch) -> None:
    if broken:
        real = TrainingSession.record

        def silent(self: TrainingSession, *args: Any) -> None:
            before = self.policy.version
            real(self, *args)
            self.policy.version = before

        monkeypatch.setattr(TrainingSession, "record", silent)
    JOB(tmp_path / "run")
    with fails_if(broken):
        assert all({s.version for s in t.steps[1:]} == {step} for step, t in read_traces(tmp_path / "run"))


@both
def test_7_new_weights_write_at_once(broken: bool, monkeypatch: Patch) -> None:
    """Nothing of a prefix that was computed before an update is used after it."""
    if broken:
        monkeypatch.setattr(Engine, "refresh_weights", lambda self: None)
    policy = char_policy()
    prompt = policy.encode(user_messages("12="))
    with fails_if(broken):
        for _ in range(2):
            w = {n: p.detach() for n, p in weights64(policy.net).items()}
            for item in run_async(policy.generate(prompt, Sampling(max_tokens=3), 4)):
                path = [*prompt.tolist(), *item.token_ids.tolist()]
                true = plain_logprobs(policy.net, w, path, len(item.token_ids))
                assert np.allclose(item.logprobs, true, atol=1e-4)
            perturb(policy.net, 0.1)


@both
def test_11_an_answer_never_ends_twice(broken: bool, tmp_path: Path, monkeypatch: Patch) -> None:
    from ponder.pipelines import sft

    if broken:
        real = sft.text_answer_trace
        twice = lambda policy, problem, text: real(policy, problem, text + "<eos><eos>")  # noqa: E731
        monkeypatch.setattr(sft, "text_answer_trace", twice)
    job = FineTune(DigitTask(), MODEL, QUESTION_TEMPLATE, steps=1, batch_size=4, device="cpu", dtype="float32")
    job(tmp_path / "run")
    with fails_if(broken):
        for _, trace in read_traces(tmp_path / "run"):
            written = trace.steps[1].token_ids.tolist()
            assert written[-1] == 2 and written.count(2) == 1


@both
def test_15_the_same_problem_twice_is_two_groups(broken: bool, tmp_path: Path, monkeypatch: Patch) -> None:
    """Each instance has its own samples, and its own baseline."""
    if broken:
        monkeypatch.setattr(BasePolicy, "_next_seed", lambda self, prefix, *rest: int(prefix.sum()))
    replace(JOB, task=DigitTask(1), problems_per_step=2, strategy=Samples(8, Sampling(max_tokens=2)), steps=1)(
        tmp_path / "run"
    )
    one, two = (t for _, t in read_traces(tmp_path / "run"))
    with fails_if(broken):
        assert one.problem == two.problem and len(one.answers()) == len(two.answers()) == 8
        assert [s.token_ids.tolist() for s in one.steps] != [s.token_ids.tolist() for s in two.steps]


STRIPS = "{%- for m in messages %}{{ m.content.split('?')[-1] }}{% endfor %}"  # "?" ends this alphabet's thinking


@both
def test_18_what_was_sampled_is_trained_not_what_a_template_makes_of_it(
    broken: bool, tmp_path: Path, monkeypatch: Patch
) -> None:
    """The template drops what stands before the last "?" of an answer, as thinking templates drop their thoughts."""
    if broken:
        real = EnginePolicy.completions

        def render(self: EnginePolicy, result: Completion) -> Completion:
            tokens = self.encode([{"role": "assistant", "content": result.text}])
            text = np.resize(result.logprobs, len(tokens)) if len(tokens) else result.logprobs
            return replace(result, token_ids=tokens if len(tokens) else result.token_ids, logprobs=text)

        def rendered(self: EnginePolicy, *args: Any) -> list[Completion]:
            return [render(self, result) for result in real(self, *args)]

        monkeypatch.setattr(EnginePolicy, "completions", rendered)
    samples = Samples(16, Sampling(max_tokens=6))
    job = replace(JOB, template=STRIPS, strategy=samples, steps=1, optimizer=AdamW(lr=1e-9))
    policy = job(tmp_path / "run")
    w = {n: p.detach() for n, p in weights64(policy.net).items()}
    traces = [t for _, t in read_traces(tmp_path / "run")]
    assert any("?" in t.text(i) for t in traces for i in t.answers()), "there is something to drop"
    with fails_if(broken):
        for trace in traces:
            for i in trace.answers():
                step, path = trace.steps[i], trace.token_ids(i).tolist()
                assert step.stop == "length" or path[-1] == 2, "the end is a token without text"
                true = plain_logprobs(policy.net, w, path, len(step.token_ids))
                assert np.allclose(step.logprobs, true, atol=1e-4)


FORGETS = ["", "cursor", "objective_state", "curriculum_state", "num_tokens", "flops", "moments", "steps"]


@pytest.mark.parametrize("forgotten", FORGETS)
def test_19_a_resumed_run_is_the_same_to_the_bit(
    forgotten: str, whole: dict[str, Any], tmp_path: Path, monkeypatch: Patch
) -> None:
    """See test_kill.py for runs that are killed. Here a run is stopped in good order, and forgets something."""
    with pytest.raises(Interrupted):
        LONG(tmp_path / "run", RecordingProgress("step", 3))
    if forgotten:
        real = checkpoint.load_latest

        def forgetful(run: Any, group: Any, loading: Any) -> Any:
            result = real(run, group, loading)
            state, facts = result.state["state"], result.state["learners"]["policy"]
            if forgotten == "moments":
                result.tensors.update({n: torch.zeros_like(t) for n, t in result.tensors.items() if "exp_avg." in n})
            elif forgotten in facts:
                facts[forgotten] = 0
            else:
                state[forgotten] = type(state[forgotten])()
            return result

        monkeypatch.setattr(session.checkpoint, "load_latest", forgetful)
    with fails_if(bool(forgotten)):
        policy = LONG(tmp_path / "run")
        result = record(tmp_path / "run", policy)
        assert result == whole


LONG = replace(
    JOB, algorithm=REINFORCE(baseline="running"), curriculum=Frontier(), optimizer=AdamW(lr=1e-2, warmup_steps=5),
    steps=6,
    save_every=2,
)  # fmt: skip


def record(folder: Path, policy: PonderPolicy) -> dict[str, Any]:
    metrics = [{k: v for k, v in m.items() if "time" not in k} for m in read_metrics(folder)]
    asked = [(step, t.problem.id, t.steps[1].token_ids.tolist()) for step, t in read_traces(folder)]
    newest = sorted((folder / "checkpoints").glob("step-*"))[-1]
    kept = json.loads((newest / "state.json").read_text())
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in policy.net.parameters())).hexdigest()
    return {"metrics": metrics, "asked": asked, "kept": kept, "weights": weights}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    return record(folder, LONG(folder))


@pytest.mark.parametrize("mistake", ["", "zero"])
@pytest.mark.parametrize("raises", [False, True], ids=["", "raises"])
def test_20_a_grader_that_breaks_is_undecided(mistake: str, raises: bool, monkeypatch: Patch) -> None:
    """It neither stops the run nor gives anybody a 0, even where a verifier lets its bug out."""

    def parse(text: str) -> Any:
        raise RecursionError("a bug in the grader")

    monkeypatch.setattr(number, "parse_plain_number", parse)
    if mistake == "zero":
        monkeypatch.setattr(base, "grade_or_undecided", lambda grade: Score(0.0, "crashed"))
    if raises and not mistake:
        monkeypatch.setattr(base, "grade_or_undecided", lambda grade: grade())

    class Numbers(DigitTask):
        @property
        def verifier(self) -> Any:
            return FinalNumber(("bare",))

    async def run() -> Sequence[Any]:
        from ponder.pipelines.solve import solve_all

        policy = char_policy()
        return await solve_all(Numbers().train[:2], JOB.strategy, policy, Numbers().verifier)

    with fails_if(bool(mistake)):
        try:
            traces = run_async(run())
        except BaseException as raised:
            raise AssertionError("into the loop") from raised
        output = pipeline.sample_metrics(traces, "accuracy")
        assert output["frac_undecided"] == 1.0 and output["reward"] != output["reward"]
        GRPO().credit(traces, "accuracy", {})
        assert all(s.advantages is None for t in traces for s in t.steps)


@both
def test_20_a_grader_does_not_hang(broken: bool, monkeypatch: Patch) -> None:
    """Texts made to take long take no time; more of them: tests/verify."""
    if broken:
        real = number.extract
        monkeypatch.setattr(number, "extract", lambda *args: spin(0.02 * len(args[0]) / 1000) or real(*args))
    judge = FinalNumber()
    with fails_if(broken):
        for piece in ("\\boxed{", "<answer>", "1,", "((", "\\frac{1}{", "a" * 7 + "!"):
            with processor_time_below(2.0):
                assert judge.grade(piece * 20_000, "42").value == 0.0

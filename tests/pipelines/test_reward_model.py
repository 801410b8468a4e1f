"""Judges learn a signal from files and runs, choose better than chance, and go on to the bit after a stop."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes import ALPHABET, QUESTION_TEMPLATE, RecordingProgress, run_async
from ponder.engine.request import ReadRequest
from ponder.errors import Interrupted, ModelError, RunError, TaskError, UsageError
from ponder.models.guides import load_guide, parse_reward_model
from ponder.models.load import load_policy
from ponder.models.load_scorer import load_scorer, load_shared_scorer, make_head_reader
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.reward_models import ORM as Outcome
from ponder.models.reward_models import PRM as Process
from ponder.models.reward_models import PreferenceModel, ValueModel, make_scorer
from ponder.models.scratch_model import ScratchModel
from ponder.nets import hf
from ponder.nets.decoder_with_head import DecoderWithHead
from ponder.nets.lora import LoRA
from ponder.pipelines.reward_model import TrainRewardModel, _answer_scores
from ponder.pipelines.rewards.labelled_traces import (
    merge_by_prompt,
    read_labelled_traces,
    split_by_question,
    tokenize_trace,
)
from ponder.pipelines.solve import solve
from ponder.reason.operators.cut import Cut
from ponder.reason.strategies import DVTS, BeamSearch, BestOfN, LookaheadBeamSearch, ParticleFilter, Rebase
from ponder.runs import Run, job_json, newest_checkpoint, read_metrics
from ponder.tasks.step_labels import LABEL_SCORE, read_labels, write_labels
from ponder.trace_json import trace_to_json
from ponder.train.optimizer import AdamW
from ponder.train.reward_objectives import BradleyTerry, OutcomeReward, ProcessReward, RewardObjective, StateValue
from ponder.types import Problem, Sampling, Score, Step, Trace, ids, user_messages
from reference_decoder import plain_hidden, weights64

MODEL = ScratchModel(ALPHABET + "\n", width=32, layers=1, heads=4, context=64)
JOB = TrainRewardModel(
    ("?",), MODEL, OutcomeReward(), QUESTION_TEMPLATE, optimizer=AdamW(lr=1e-2), steps=30, batch_size=24,
    save_every=10, held_out_tenths=3,
    device="cpu", dtype="float32",
)  # fmt: skip


def draw(rng: np.random.Generator, steps: int) -> list[str]:
    return [str(d) for d in rng.integers(0, 10, steps)]


def even(step: str) -> bool:
    """The signal: a step is right where its digit is even."""
    return int(step) % 2 == 0


def made(path: Path, kind: str, rows: int = 120, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    out: list[dict[str, Any]] = []
    for i in range(rows):
        prompt = f"{i}="
        if kind == "stepwise":
            steps = draw(rng, int(rng.integers(1, 4)))
            out.append({"prompt": prompt, "completions": steps, "labels": [even(s) for s in steps]})
        elif kind == "outcomes":
            text = draw(rng, 1)[0]
            out.append({"prompt": prompt, "completion": text, "label": even(text)})
        else:
            answers = sorted({*draw(rng, 4), "1", "2"}, key=lambda s: (even(s), s))
            out.append({"prompt": prompt, "completions": answers, "scores": [float(even(s)) for s in answers]})
    path.write_text("".join(json.dumps(row) + "\n" for row in out))
    return str(path)


RULES: dict[str, tuple[str, RewardObjective, type]] = {
    "outcomes": ("outcomes", OutcomeReward(), Outcome), "stepwise": ("stepwise", ProcessReward(), Process),
    "ranked": ("ranked", BradleyTerry(), PreferenceModel),
    "two-hot": ("stepwise", StateValue("two-hot", bins=5), ValueModel),
}  # fmt: skip


def solutions(policy: Any, ending: str = "", n: int = 8, problems: int = 30) -> list[Trace]:
    """Groups of answers with a wrong and a right one among them, as a policy would have sampled them."""
    rng = np.random.default_rng(9)
    out = []
    for i in range(problems):
        trace = Trace(
            Problem(f"new/{i}", user_messages(f"{i + 500}=")),
            [Step(None, "", policy.encode(user_messages(f"{i + 500}=")))],
        )
        for j in range(n):
            text = str(2 * rng.integers(5) + (0 if j == 0 else 1 if j == 1 else rng.integers(2))) + ending
            tokens = ids([*policy.tokens(text), 2])
            step = Step(0, text, tokens, np.full(len(tokens), -1.0, np.float32), "eos")
            step.scores["gold"] = Score(float(even(text)))
            trace.add(step)
        out.append(trace)
    return out


@pytest.mark.parametrize("name", RULES)
def test_reward_model_learns_and_best_of_n_beats_chance(name: str, tmp_path: Path) -> None:
    kind, rule, judge = RULES[name]
    job = replace(JOB, data=(made(tmp_path / "d.jsonl", kind, 150),), algorithm=rule, steps=60, save_every=60)
    job = replace(job, batch_size=8 if kind == "ranked" else 24)
    policy = job(tmp_path / "run")
    output = read_metrics(tmp_path / "run")
    assert output[-1]["loss"] < 0.5 * output[0]["loss"] or rule.metric_name == "rewards/errors"
    last = output[-1]
    if isinstance(rule, StateValue):
        assert last["test/explained"] > 0.8
    else:
        assert last["test/accuracy"] > 0.9 and last["test/labels"] > 15
    if name in ("outcomes", "stepwise"):
        assert last["test/auroc"] > 0.95
    if name == "ranked":
        assert last["test/best_of_n"] > 0.95 > 0.7 > last["test/any_of_n"] and last["test/oracle_of_n"] == 1.0
    learned = make_scorer(make_head_reader(policy))
    assert type(learned) is judge
    chosen, chance = [], []
    for trace in solutions(policy, "\n" if kind == "stepwise" else ""):
        scores = run_async(learned(trace, trace.answers()))
        assert all(s.value is not None and s.cost.scorer_tokens > 0 and s.cost.flops > 0 for s in scores)
        outcomes = [trace.score(i, "gold") for i in trace.answers()]
        chosen.append(outcomes[int(np.argmax([s.value for s in scores]))])
        chance.append(np.mean(outcomes))  # type: ignore[arg-type]
    assert np.mean(chosen) > 0.9 > 0.65 > np.mean(chance)  # type: ignore[arg-type]


def test_saved_reward_model_loads(tmp_path: Path) -> None:
    job = replace(JOB, data=(made(tmp_path / "d.jsonl", "stepwise"),), algorithm=ProcessReward(), steps=10)
    policy = job(tmp_path / "run")
    again = load_scorer(str(tmp_path / "run"), dtype="float32", device="cpu", reduce="mean")
    assert isinstance(again, Process) and again.reduce == "mean"
    named = load_guide(f"reward+mean:{tmp_path / 'run'}", None, device="cpu", dtype="float32")
    assert (
        isinstance(named, Process)
        and named.reduce == "mean"
        and parse_reward_model("reward+mean:x") == ("reward+mean", "x")
    )
    head = again.reader.head
    assert head.predicts == "process" and head.form == "logit" and head.bias
    assert head.temperature == read_metrics(tmp_path / "run")[-1]["test/temperature"] != 1.0
    traces = solutions(policy)[:3]
    here = Process(make_head_reader(policy), "mean")
    for trace in traces:
        one, two = (run_async(judge(trace, trace.answers())) for judge in (here, again))
        assert [s.value for s in one] == [s.value for s in two]
    with pytest.raises(ModelError, match="cannot write"):
        load_policy(str(tmp_path / "run"))
    with pytest.raises(UsageError, match="no setting 'reduce'"):
        make_scorer(make_head_reader(replace(job, algorithm=OutcomeReward(), steps=1,
        data=(made(tmp_path / "o.jsonl", "outcomes"),))(
            tmp_path / "orm")), reduce="min")  # fmt: skip


def test_transformers_reads_the_same_reward(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    job = replace(JOB, data=(made(tmp_path / "d.jsonl", "ranked"),), algorithm=BradleyTerry(), steps=10)
    policy = job(tmp_path / "run")
    newest = newest_checkpoint(tmp_path / "run")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(newest / "model")  # type: ignore[operator]
    theirs.config.pad_token_id = 0
    learned = make_scorer(make_head_reader(policy))
    trace = solutions(policy)[0]
    for i, score in zip(trace.answers(), run_async(learned(trace, trace.answers())), strict=True):
        result = theirs(torch.tensor(trace.token_ids(i)[None].astype(np.int64))).logits.item()
        assert score.value == pytest.approx(result / learned.reader.head.temperature, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("where", [("share", 3), ("phase", 4), ("phase", 5), ("phase", 6), ("step", 3), ("step", 4)])
def test_interrupted_run_resumes_exactly(where: tuple[str, int], tmp_path: Path) -> None:
    job = replace(JOB, data=(made(tmp_path / "d.jsonl", "stepwise"),), algorithm=ProcessReward(), steps=5, save_every=2)
    expected = job(tmp_path / "whole")
    with pytest.raises(Interrupted, match="goes on"):
        job(tmp_path / "run", RecordingProgress(*where))
    policy = job(tmp_path / "run")
    for n, w in expected.net.state_dict().items():
        assert torch.equal(w, policy.net.state_dict()[n])
    assert policy.net.head == expected.net.head  # type: ignore[union-attr]
    one, two = (
        [{k: v for k, v in m.items() if "time" not in k} for m in read_metrics(tmp_path / f)] for f in ("run", "whole")
    )
    assert one == two
    Path(job.data[0]).write_text(Path(made(tmp_path / "other.jsonl", "stepwise", seed=1)).read_text())
    with pytest.raises(RunError, match=r"the file d.jsonl \(data\) changed since"):
        job(tmp_path / "run")


@pytest.mark.parametrize("way", ["lora", "head"])
def test_reward_model_shares_policy_engine(way: str, tmp_path: Path) -> None:
    if way == "lora":
        pytest.importorskip("peft")
    net, tokenizer = MODEL.build(torch.float32, torch.device("cpu"))
    hf.save(net, tmp_path / "base")
    tokenizer.save(tmp_path / "base")
    job = replace(
        JOB, data=(made(tmp_path / "d.jsonl", "stepwise"),), algorithm=ProcessReward(), model=str(tmp_path / "base"),
        steps=5,
        lora=LoRA(4) if way == "lora" else None, head_only=way == "head",
    )  # fmt: skip
    trained = job(tmp_path / "run")
    policy = load_policy(str(tmp_path / "base"), QUESTION_TEMPLATE, "cpu", "float32")
    shared = load_shared_scorer(policy, str(tmp_path / "run"))
    apart = load_scorer(str(tmp_path / "run"), device="cpu", dtype="float32")
    assert shared.reader.engine_policy is policy and isinstance(shared, Process)
    trace = solutions(trained)[0]
    one, two = (run_async(judge(trace, trace.answers())) for judge in (shared, apart))
    assert np.allclose([s.value for s in one], [s.value for s in two], atol=1e-5)  # type: ignore[arg-type]
    assert len({round(s.value, 6) for s in one if s.value is not None}) > 1
    assert len({round(s.value, 6) for s in one if s.value is not None}) > 1
    readings: list[Any] = []
    ask = policy.engine._submit

    async def listened(works: Any, *more: Any) -> Any:
        readings.extend(work for work in works if isinstance(work, ReadRequest))
        return await ask(works, *more)

    policy.engine._submit = listened  # type: ignore[method-assign]
    prompt = policy.encode(user_messages("123456789+123456789="))
    (text,) = run_async(policy.generate(prompt, Sampling(max_tokens=6)))
    written = Trace(Problem("p", user_messages("?")), [Step(None, "", prompt)])
    written.add(Step(0, text.text, text.token_ids, text.logprobs, text.stop))
    alone = Process(shared.reader, granularity="step")
    (score,) = run_async(alone(written, [1]))
    length = len(written.token_ids(1))
    assert readings[-1].prefill_tokens == score.cost.scorer_tokens == (1 if way == "head" else length)
    more = run_async(policy.generate(written.token_ids(1), Sampling(max_tokens=4)))[0]
    written.add(Step(1, more.text, more.token_ids, more.logprobs, more.stop))
    (score,) = run_async(alone(written, [2]))
    assert readings[-1].prefill_tokens == score.cost.scorer_tokens == (1 if way == "head" else len(more.token_ids))
    with torch.no_grad():
        policy.net.norm.weight.add_(0.5)
    with pytest.raises(ModelError, match="trained on another model"):
        load_shared_scorer(policy, str(tmp_path / "run"), "again")


def test_the_best_of_n_by_the_worst_step(tmp_path: Path) -> None:
    """A PRM is measured on whole answers, too: each by its lowest step, against the label of its end."""
    policy = load_policy(MODEL, QUESTION_TEMPLATE, "cpu", "float32")
    trace = Trace(Problem("p", user_messages("5=")), [Step(None, "", policy.encode(user_messages("5=")))])
    for labels in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
        at = 0
        for k, label in enumerate(labels):
            tokens = policy.tokens("24"[k])
            at = trace.add(Step(at, "24"[k], tokens, np.zeros(1, np.float32), "stop", last=bool(k)))
            trace.steps[at].scores["label"] = Score(label)
    places = [(i, s.scores["label"].value or 0.0) for i, s in enumerate(trace.steps) if i]
    numbers = np.array([[0.9], [0.2], [0.1], [0.8], [0.5], [0.6]])
    assert _answer_scores(trace, places, numbers) == ([0.2, 0.1, 0.5], [0.0, 1.0, 1.0])


# where labels come from


def test_labels_from_a_run_and_from_traces(tmp_path: Path) -> None:
    policy = load_policy(MODEL, QUESTION_TEMPLATE, "cpu", "float32")
    traces = solutions(policy)
    with Run(tmp_path / "sampled", JOB) as run:
        run.write_traces(0, traces)
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(trace_to_json(t)) + "\n" for t in traces))
    for place in ("sampled", "t.jsonl"):
        result, name = read_labelled_traces((str(tmp_path / place),))
        assert name == "gold" and [trace_to_json(t) for t in result] == [trace_to_json(t) for t in traces]
    job = replace(JOB, data=(str(tmp_path / "sampled"),), steps=40)
    job(tmp_path / "run")
    assert read_metrics(tmp_path / "run")[-1]["test/accuracy"] > 0.9
    assert job_json.decode(json.loads((tmp_path / "run" / "job.json").read_text())) == job
    with pytest.raises(UsageError, match=r"no step has a score named 'reward'.*: gold"):
        read_labelled_traces((str(tmp_path / "sampled"),), scorer="reward")


def test_a_text_s_tokens_are_read_where_its_steps_end(tmp_path: Path) -> None:
    (trace,) = read_labels(write_row(tmp_path, {"prompt": "7=", "completions": ["12", "3"], "labels": [True, False]}))
    policy = load_policy(MODEL, QUESTION_TEMPLATE, "cpu", "float32")
    ready = tokenize_trace(trace, policy)
    text = [policy.text(s.token_ids) for s in ready.steps]
    assert text[:2] == ["7=", "12\n"] and text[2].startswith("3\n") and ready.steps[2].token_ids[-1] == 2
    assert [s.scores.get("label") for s in ready.steps] == [None, Score(1.0), Score(0.0)]


def write_row(folder: Path, *rows: Any) -> str:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "rows.jsonl")


def test_one_long_step_is_cut_at_its_lines(tmp_path: Path) -> None:
    """Training and scoring read the very same tokens: those that complete a line, and the last."""
    policy = load_policy(MODEL, QUESTION_TEMPLATE, "cpu", "float32")
    text = "12\n\n3\n4"
    tokens = ids([*policy.tokens(text), 2])
    trace = Trace(Problem("p", user_messages("5=")), [Step(None, "", policy.encode(user_messages("5=")))])
    trace.add(Step(0, text, tokens, np.full(len(tokens), -1.0, np.float32), "eos"))
    cut = tokenize_trace(trace, policy, "\n")
    assert [s.text for s in cut.steps[1:]] == ["12\n", "\n3\n", "4"]
    assert [s.text for s in tokenize_trace(trace, policy, "3").steps[1:]] == ["12\n\n3", "\n4"]
    net = replace(JOB, data=(made(tmp_path / "d.jsonl", "stepwise"),), algorithm=ProcessReward(), steps=3)(
        tmp_path / "run"
    )
    judge = Process(make_head_reader(net))
    ends = [len(cut.token_ids(i)) - 1 for i in range(1, 4)]
    assert judge.step_end_positions(trace, 1) == ends == judge.step_end_positions(cut, 3)
    w = {n: p.detach() for n, p in weights64(net.net).items()}
    hidden = plain_hidden(w, net.net.config, trace.token_ids(1).tolist())[ends]
    z = (hidden @ w["score.weight"].T + w["score.bias"])[:, 0] / judge.reader.head.temperature
    expected = (1 / (1 + np.exp(-z.numpy()))).tolist()
    assert run_async(judge.step_scores(trace, 1))[0] == pytest.approx(expected, abs=1e-5)
    for how, value in {"min": min(expected), "product": np.prod(expected), "last": expected[-1]}.items():
        (score,) = run_async(Process(judge.reader, how)(trace, [1]))  # type: ignore[arg-type]
        assert score.value == pytest.approx(value, abs=1e-5)


REDUCED = {"min": min, "product": np.prod, "last": lambda p: p[-1], "mean": np.mean}
SAMPLED = Sampling(max_tokens=20, seed=3, logit_bias=((2, -1e9),))  # four steps, since it never ends by itself
CUT_AT = Cut(tokens=5)
STEPWISE = [
    BeamSearch(4, 2, cut=CUT_AT, sampling=SAMPLED), DVTS(4, 2, cut=CUT_AT, sampling=SAMPLED),
    Rebase(4, cut=CUT_AT, sampling=SAMPLED), LookaheadBeamSearch(4, 2, cut=CUT_AT, sampling=SAMPLED, lookahead_steps=1),
    ParticleFilter(4, cut=CUT_AT, sampling=SAMPLED), BestOfN(4, cut=CUT_AT, sampling=SAMPLED),
]  # fmt: skip


@pytest.mark.parametrize("how", REDUCED)
@pytest.mark.parametrize("strategy", STEPWISE, ids=lambda s: type(s).__name__)
def test_searches_rank_by_what_the_head_reads_at_each_step(strategy: Any, how: Any) -> None:
    """From the head to the rank there is one reduction: recounted in float64, without the engine and without ponder."""
    policy = load_policy(MODEL, QUESTION_TEMPLATE, "cpu", "float32")
    net = DecoderWithHead.from_decoder(
        load_policy(replace(MODEL, seed=5), QUESTION_TEMPLATE, "cpu", "float32").net, ProcessReward().head, 7
    )
    with torch.no_grad():
        for p in net.score.parameters():
            p.normal_(0.0, 0.2, generator=torch.Generator().manual_seed(1))  # so that steps differ
    judge = Process(make_head_reader(PonderPolicy(net, policy.tokenizer)))
    trace = run_async(solve(Problem("p", user_messages("5=")), replace(strategy, reduce=how), policy, guide=judge))
    w = {n: p.detach() for n, p in weights64(net).items()}
    assert {len(trace.path(i)) for i in trace.answers()} == {5}
    for i in trace.answers():
        ids_, places = trace.token_ids(i).tolist(), np.cumsum([len(trace.steps[j].token_ids) for j in trace.path(i)])
        z = (plain_hidden(w, net.config, ids_) @ w["score.weight"].T + w["score.bias"])[places[1:] - 1, 0]
        probabilities = (1 / (1 + np.exp(-z.numpy()))).tolist()
        assert trace.steps[i].value == pytest.approx(REDUCED[how](probabilities), abs=1e-5)
        assert trace.steps[i].scores["prm"].steps == pytest.approx(probabilities, abs=1e-5)
        assert trace.score(i, "prm") == pytest.approx(min(probabilities), abs=1e-5), "the judge's own reduction"


def test_a_judge_reads_lines_of_a_whole_answer_and_ends_of_cut_steps() -> None:
    policy = load_policy(MODEL, QUESTION_TEMPLATE, "cpu", "float32")
    judge = Process(
        make_head_reader(
            PonderPolicy(DecoderWithHead.from_decoder(policy.net, ProcessReward().head, 7), policy.tokenizer)
        )
    )
    whole = Trace(Problem("p", user_messages("5=")), [Step(None, "", policy.encode(user_messages("5=")))])
    tokens = policy.tokens("1\n3\n4")
    logprobs = np.full(len(tokens), -1.0, np.float32)
    assert judge.step_end_positions(whole, whole.add(Step(0, "1\n3\n4", tokens, logprobs, "eos"))) == [3, 6]
    assert judge.step_end_positions(whole, whole.add(Step(0, "1\n3\n4", tokens, logprobs, "stop", last=True))) == [
        3,
        5,
        6,
    ]
    assert judge.step_end_positions(whole, whole.add(Step(0, "1\n3\n4", tokens, logprobs, "stop"))) == [6], (
        "a cut step is one"
    )


def test_reward_model_splits_steps_as_trained(tmp_path: Path) -> None:
    job = replace(
        JOB, data=(made(tmp_path / "d.jsonl", "stepwise"),), algorithm=ProcessReward(), steps=1, separator="3"
    )
    policy = job(tmp_path / "run")
    judge = load_scorer(str(tmp_path / "run"), "cpu", "float32")
    assert isinstance(judge, Process) and judge.reader.head.separator == "3"
    tokens = ids([*policy.tokens("1\n3\n4"), 2])
    trace = Trace(Problem("p", user_messages("5=")), [Step(None, "", policy.encode(user_messages("5=")))])
    trace.add(Step(0, "1\n3\n4", tokens, np.full(len(tokens), -1.0, np.float32), "eos"))
    assert judge.step_end_positions(trace, 1) == [4, 7] and Process(judge.reader, separator="\n").step_end_positions(
        trace, 1
    ) == [3, 5, 7]


def test_value_model_learns_search_values(tmp_path: Path) -> None:
    """No scorer is needed: values stand on the steps that were visited."""
    policy = load_policy(MODEL, QUESTION_TEMPLATE, "cpu", "float32")
    traces = solutions(policy)
    for trace in traces:
        for step in trace.steps[1:]:
            step.visits, step.value = 2, 2 * float(even(step.text)) - 1
            step.scores = {}
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(trace_to_json(t)) + "\n" for t in traces))
    rule = StateValue("x1", target_source="value", hidden=(16,))
    job = replace(JOB, data=(str(tmp_path / "t.jsonl"),), algorithm=rule, steps=40)
    learned = make_scorer(make_head_reader(job(tmp_path / "run")))
    assert isinstance(learned, ValueModel) and read_metrics(tmp_path / "run")[-1]["test/explained"] > 0.8
    result = [s.value for s in run_async(learned(traces[0], traces[0].answers()))]
    assert np.allclose(result, [s.value for s in traces[0].steps[1:]], atol=0.5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="say which scores are the labels"):
        replace(job, algorithm=StateValue())(tmp_path / "other")


def test_a_longer_path_does_not_pay_for_its_beginning_again(tmp_path: Path) -> None:
    policy = replace(JOB, data=(made(tmp_path / "d.jsonl", "stepwise"),), algorithm=ProcessReward(), steps=2)(
        tmp_path / "run"
    )
    judge = Process(make_head_reader(policy))
    trace = tokenize_trace(
        read_labels(write_row(tmp_path, {"prompt": "7=", "completions": list("12345"), "labels": [1] * 5}))[0], policy
    )
    alone = [run_async(Process(make_head_reader(policy))(trace, [i]))[0] for i in range(1, 6)]
    grown = [run_async(judge(trace, [i]))[0] for i in range(1, 6)]
    assert [s.value for s in grown] == pytest.approx([s.value for s in alone], abs=1e-5)
    assert [s.cost.scorer_tokens for s in grown] == [len(trace.steps[0].token_ids) + 2, 2, 2, 2, 3]
    assert [s.cost.scorer_tokens for s in alone] == [len(trace.token_ids(i)) for i in range(1, 6)]
    assert run_async(judge(trace, [3]))[0].cost.scorer_tokens == 0
    with torch.no_grad():
        policy.net.score.weight.mul_(-1.0)  # type: ignore[operator,union-attr]
    assert run_async(judge(trace, [3]))[0].value != grown[2].value, "what was known is forgotten with the weights"


# what cannot be


def test_invalid_data_is_named(tmp_path: Path) -> None:
    def refused(what: str, *rows: Any, **changes: Any) -> None:
        run = tmp_path / "run" / str(abs(hash(what)))
        with pytest.raises((TaskError, UsageError), match=what):
            replace(JOB, data=(write_row(tmp_path, *rows),), **changes)(run)
        assert not (run / "checkpoints").exists()

    refused("columns answer, prompt, which are of no known format", {"prompt": "1=", "answer": "2"})
    good = {"prompt": "1=", "completion": "2", "label": True}
    refused("line 2: the column 'completion' is missing", good, {"prompt": "1=", "label": True})
    refused("labels do not match the steps: 2 steps and 1 labels",
            {"prompt": "1=", "completions": ["1", "2"], "labels": [True]}, algorithm=ProcessReward())  # fmt: skip
    refused(r"no trace has labels under 'label'(?s:.*)\n  traces .* 1\n(?s:.*)0   - 1 nothing for this objective", good,
            algorithm=BradleyTerry())  # fmt: skip
    refused(r"with a score by 'label' *0   - 1 all undecided", good | {"label": None})
    refused("has 71 tokens, the model's context only 64", {"prompt": "1=", "completion": "2" * 68, "label": True})
    with pytest.raises(TaskError, match="cannot read"):
        replace(JOB, data=(str(tmp_path / "nothing.jsonl"),))(tmp_path / "run2")
    with pytest.raises(TaskError, match="no run directory"):
        replace(JOB, data=(str(tmp_path),))(tmp_path / "run3")


@pytest.mark.parametrize("change", [
    {"scores": [1]}, {"token_ids": None}, {"token_ids": 3}, {"token_ids": [[3]]}, {"token_ids": [-3]}, {"text": 7},
    {"token_ids": [10**30]}, {"logprobs": [1.0, 2.0]}, {"scores": {"label": [10**400]}}, {"parent": 5}, {"wrong": 1},
])  # fmt: skip
def test_a_file_of_traces_may_be_anybody_s(change: dict[str, Any], tmp_path: Path) -> None:
    problem = {"id": "p", "messages": list(user_messages("1=")), "answer": None, "tags": {}}
    steps = [{"parent": None, "token_ids": [3, 4]}, {"parent": 0, "text": "0", "token_ids": [3], "logprobs": [-1.0]}]

    def read(problem: Any, steps: Any) -> None:
        (tmp_path / "t.jsonl").write_text(json.dumps({"problem": problem, "cost": {}, "steps": steps}))
        read_labelled_traces((str(tmp_path / "t.jsonl"),), needs_scores=False)

    read(problem, steps)
    with pytest.raises(TaskError, match="line 1 is no trace"):
        read(problem, [steps[0], steps[1] | change])
    for messages in ([], [1], [{"content": "x"}]):
        with pytest.raises(TaskError, match=r"line 1 is no trace.*no prompt"):
            read(problem | {"messages": messages}, steps)


def test_every_place_must_have_the_labels(tmp_path: Path) -> None:
    """A run's scores have the verifier's name, a file's are labels: neither may be left out in silence."""
    policy = load_policy(MODEL, QUESTION_TEMPLATE, "cpu", "float32")
    traces = [trace_to_json(t) for t in solutions(policy)]
    for trace in traces:
        for step in trace["steps"]:
            step["scores"] = dict(zip(["accuracy"], step.get("scores", {}).values(), strict=False))
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(t) + "\n" for t in traces))
    file = made(tmp_path / "d.jsonl", "outcomes")
    with pytest.raises(UsageError, match=r"no step has a score named 'label'.*t\.jsonl: accuracy.*apart"):
        replace(JOB, data=(file, str(tmp_path / "t.jsonl")))(tmp_path / "run")
    with pytest.raises(UsageError, match=r"no step has a score named 'accuracy'.*d\.jsonl: label"):
        replace(JOB, data=(file, str(tmp_path / "t.jsonl")), scorer="accuracy")(tmp_path / "run2")


def test_traces_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    other = load_policy(
        ScratchModel("=9876543210\n+", width=32, layers=1, heads=4), QUESTION_TEMPLATE, "cpu", "float32"
    )
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(trace_to_json(t)) + "\n" for t in solutions(other)))
    with pytest.raises(TaskError, match="step 1 was written with another tokenizer"):
        replace(JOB, data=(str(tmp_path / "t.jsonl"),))(tmp_path / "run")
    policy = replace(JOB, data=(made(tmp_path / "d.jsonl", "outcomes"),), steps=1)(tmp_path / "own")
    (score,) = run_async(make_scorer(make_head_reader(policy))(solutions(other)[0], [1]))
    assert score.value is None and "another tokenizer" in score.reason


def test_invalid_settings_are_refused(tmp_path: Path) -> None:
    for changes in ({"steps": 0}, {"held_out_tenths": 10}, {"data": ()}, {"data": "d.jsonl"}):
        with pytest.raises(UsageError):
            replace(JOB, **changes)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give one of them"):
        replace(JOB, head_only=True, frozen_layers=1)
    replace(JOB, data=(made(tmp_path / "d.jsonl", "outcomes"),), steps=1)(tmp_path / "run")
    with pytest.raises(ModelError, match="trained for 'outcome'"):
        replace(
            JOB, data=(made(tmp_path / "p.jsonl", "stepwise"),), model=str(tmp_path / "run"), algorithm=ProcessReward()
        )(tmp_path / "next")


def test_held_out_questions_are_disjoint(tmp_path: Path) -> None:
    traces = read_labels(made(tmp_path / "d.jsonl", "outcomes")) * 2
    train, test = split_by_question(traces, 3)
    asked = [{t.problem.question for t in side} for side in (train, test)]
    assert not asked[0] & asked[1] and len(train) + len(test) == len(traces) and len(test) > 20


def test_written_labels_read_back(tmp_path: Path) -> None:
    traces = read_labels(made(tmp_path / "d.jsonl", "ranked"))
    assert write_labels(tmp_path / "pairs.jsonl", traces[:1], "pairs") > 2
    assert all(len(t.answers()) == 2 for t in read_labels(tmp_path / "pairs.jsonl"))


# a row for each answer


def rows(path: Path, kind: str, prompts: int = 40, answers: int = 4, seed: int = 0) -> str:
    """As many rows of a prompt as it has answers, of which one at least is right and one is not, far apart."""
    rng = np.random.default_rng(seed)
    text = {i: [2, 1, *rng.integers(0, 10, answers - 2).tolist()] for i in range(prompts)}
    out: list[dict[str, Any]] = []
    for k in range(answers):
        for i in range(prompts):
            digit = str(text[i][k])
            if kind == "outcomes":
                out.append({"prompt": f"{i}=", "completion": digit, "label": even(digit)})
            else:
                out.append({"prompt": f"{i}=", "completions": ["2", digit], "labels": [True, even(digit)]})
    path.write_text("".join(json.dumps(row) + "\n" for row in out))
    return str(path)


@pytest.mark.parametrize("kind", ["outcomes", "stepwise"])
def test_pairs_are_found_among_rows_of_one_prompt(kind: str, tmp_path: Path) -> None:
    job = replace(JOB, data=(rows(tmp_path / "d.jsonl", kind),), algorithm=BradleyTerry(), batch_size=8, steps=40)
    result = job(tmp_path / "run")
    last = read_metrics(tmp_path / "run")[-1]
    assert last["test/accuracy"] > 0.9 and last["test/best_of_n"] > 0.95 > last["test/any_of_n"]
    text = job.summary_lines(tmp_path / "run", result)
    counts = [line.split() for line in text]
    assert ["traces", "160"] in counts and ["prompts", "40"] in counts


@pytest.mark.parametrize(("kind", "rule"), [("outcomes", OutcomeReward()), ("stepwise", ProcessReward())])
def test_the_best_of_n_of_rows_is_that_of_the_same_answers_in_one(
    kind: str, rule: RewardObjective, tmp_path: Path
) -> None:
    """And what is learned from is a row at a time, as before."""
    job = replace(JOB, data=(rows(tmp_path / "d.jsonl", kind),), algorithm=rule, steps=6, batch_size=8)
    job(tmp_path / "run")
    last = read_metrics(tmp_path / "run")[-1]
    policy = load_policy(MODEL, QUESTION_TEMPLATE, "cpu", "float32")
    groups = merge_by_prompt([tokenize_trace(t, policy) for t in read_labels(job.data[0])])
    _, test = split_by_question(groups, 3)
    wanted = [np.mean([t.score(i, "label") for i in t.answers()]) for t in test]  # type: ignore[arg-type]
    assert last["test/any_of_n"] == pytest.approx(np.mean(wanted)) and last["test/oracle_of_n"] == 1.0
    assert last["test/labels"] == sum(LABEL_SCORE in s.scores for t in test for s in t.steps)
    assert 0 <= last["test/best_of_n"] <= 1 and last["num_tokens"] < 6 * 8 * 12


def test_rows_of_one_prompt_become_one_trace(tmp_path: Path) -> None:
    policy = load_policy(MODEL, QUESTION_TEMPLATE, "cpu", "float32")
    single = [
        tokenize_trace(t, policy) for t in read_labels(rows(tmp_path / "d.jsonl", "stepwise", prompts=3, answers=5))
    ]
    single[0].steps[2].cites = (0, 1)
    joined = merge_by_prompt(single)
    assert [len(t.answers()) for t in joined] == [5, 5, 5] and [t.problem.question for t in joined] == [
        "0=", "1=", "2="]  # fmt: skip
    for trace in joined:
        own = [t for t in single if t.problem.question == trace.problem.question]
        for i, alone in zip(trace.answers(), own, strict=True):
            assert trace.token_ids(i).tolist() == alone.token_ids(2).tolist() and trace.text(i) == alone.text(2)
            assert [trace.score(j, "label") for j in trace.path(i)] == [alone.score(j, "label") for j in range(3)]
    assert joined[0].steps[2].cites == (0, 1) and joined[0].steps[4].parent == 3
    assert merge_by_prompt(joined) == joined, "there is nothing left to bring together"
    other = replace(single[1].steps[0], token_ids=policy.encode(user_messages("9=")))
    strange = Trace(single[0].problem, [other, *single[0].steps[1:]])
    assert len(merge_by_prompt([single[0], strange])) == 2, (
        "the same question in other tokens, such as another template's"
    )
    parts = merge_by_prompt(single, max_answers=2)
    assert [len(t.answers()) for t in parts] == [2, 2, 1] * 3, "none is too large to be computed at once"
    firsts = [t.text(t.answers()[0]) for t in parts[:2]]
    assert firsts == [single[0].text(2), single[3].text(2)], "dealt out in turn, so that sorted rows mix"


@pytest.mark.parametrize("rule", [OutcomeReward(), ProcessReward()])
@pytest.mark.parametrize("label", [0, 1])
def test_equal_labels_are_refused(rule: RewardObjective, label: int, tmp_path: Path) -> None:
    made = [{"prompt": f"{i}=", "completions": ["1", "2"], "labels": [label, label]} for i in range(30)]
    job = replace(JOB, data=(write_row(tmp_path, *made),), algorithm=rule, steps=1)
    why = f"labels under 'label' are {label}, and a judge would learn to say just that: give "
    with pytest.raises(TaskError, match=why + ("answers that are wrong" if label else "an easier task")) as stopped:
        job(tmp_path / "run")
    assert ["traces", "30"] in [line.split() for line in str(stopped.value).split("\n")], "the funnel is shown"
    assert not (tmp_path / "run" / "checkpoints").exists()
    value = replace(job, algorithm=StateValue())(tmp_path / "value")
    assert make_scorer(make_head_reader(value)).head_kind == "value", "which may well be the same all over"

"""Learning from given answers: the loss falls, only answers are learned, files are read line by line."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, RecordingProgress, char_policy, run_async
from ponder.errors import Interrupted, RunError, TaskError, UsageError
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.models.tokenizer import Tokenizer
from ponder.pipelines.problems.conversations import read_conversations
from ponder.pipelines.problems.shuffled_order import shuffled_problems
from ponder.pipelines.sft import PREFERENCE_SCORER, FineTune, answer_trace, check_answer_tokens, text_answer_trace
from ponder.runs import job_json, newest_checkpoint, read_metrics, read_traces
from ponder.train.distill import Distill
from ponder.train.dpo import DPO
from ponder.train.imitation import SFT, RejectionSampling
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.types import Problem, Sampling, user_messages
from reference_decoder import plain_logits, plain_logprobs, weights64

MODEL = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32)
JOB = FineTune(
    DigitTask(),
    MODEL,
    QUESTION_TEMPLATE,
    SFT(),
    AdamW(lr=1e-2),
    steps=5,
    batch_size=6,
    save_every=2,
    device="cpu",
    dtype="float32",
)


def write(path: Path, *rows: Any) -> str:
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_sft_learns_the_answers(tmp_path: Path) -> None:
    policy = replace(JOB, optimizer=AdamW(lr=2e-2), steps=40, batch_size=10)(tmp_path / "run")
    losses = [m["loss"] for m in read_metrics(tmp_path / "run")]
    assert losses[0] > 2.5 and losses[-1] < 0.1
    prompt = policy.encode(DigitTask().train[4].messages)
    (result,) = run_async(policy.generate(prompt, Sampling(temperature=0.0, max_tokens=5)))
    assert (result.text, result.stop) == ("4", "eos"), "the end was learned too"


def test_first_loss_is_token_mean(tmp_path: Path) -> None:
    replace(JOB, steps=1)(tmp_path / "run")
    net, tokenizer = MODEL.build(torch.float32, torch.device("cpu"))
    w = {n: p.detach() for n, p in weights64(net).items()}
    terms: list[float] = []
    for p in shuffled_problems(DigitTask().train, 0, 0, 6):
        path = [
            *tokenizer.encode(p.question, add_special_tokens=False),
            *tokenizer.encode(p.answer, add_special_tokens=False),
            2,
        ]
        terms += (-plain_logprobs(net, w, path, 2)).tolist()  # the digit and the end, never the prompt
    (metrics,) = read_metrics(tmp_path / "run")
    assert metrics["loss"] == pytest.approx(np.mean(terms), rel=1e-5)
    assert metrics["num_trained_tokens"] == len(terms) == 12
    assert metrics["num_tokens"] == 6 * 4


@pytest.mark.parametrize("where", [("share", 3), ("phase", 3), ("step", 3), ("step", 5)])
def test_interrupted_run_resumes_exactly(where: tuple[str, int], tmp_path: Path) -> None:
    expected = JOB(tmp_path / "whole")
    with pytest.raises(Interrupted, match="goes on"):
        JOB(tmp_path / "run", RecordingProgress(*where))
    done = len(read_metrics(tmp_path / "run"))
    saved = newest_checkpoint(tmp_path / "run")
    assert saved is not None and saved.name == f"step-{done:06d}"
    policy = JOB(tmp_path / "run")
    for n, w in expected.net.state_dict().items():
        assert torch.equal(w, policy.net.state_dict()[n])
    one, two = (
        [{k: v for k, v in m.items() if "time" not in k} for m in read_metrics(tmp_path / f)] for f in ("run", "whole")
    )
    assert one == two and [m["step"] for m in one] == list(range(5))


def test_traces_are_recorded(tmp_path: Path) -> None:
    replace(JOB, steps=1)(tmp_path / "run")
    traces = [t for _, t in read_traces(tmp_path / "run")]
    assert [t.problem.id for t in traces] == [p.id for p in shuffled_problems(DigitTask().train, 0, 0, 6)]
    assert all(t.steps[1].logprobs is None and t.steps[1].stop == "eos" for t in traces)


def test_answer_trace_has_one_end_token() -> None:
    policy = char_policy()
    problem = Problem("p", user_messages("1+"))
    trace = text_answer_trace(policy, problem, "12")
    assert trace.steps[1].token_ids.tolist() == [*policy.tokenizer.encode("12", add_special_tokens=False), 2]
    again = text_answer_trace(policy, problem, "12<eos>")
    assert again.steps[1].token_ids.tolist() == trace.steps[1].token_ids.tolist(), "never a second end"
    assert text_answer_trace(policy, problem, "").steps[1].token_ids.tolist() == [2]
    assert trace.token_ids(1).tolist() == [*policy.encode(problem.messages), *trace.steps[1].token_ids]


# preferences and teachers


def pairs(path: Path) -> str:
    return write(path, *({"prompt": f"{d}=", "chosen": "a", "rejected": "b"} for d in range(6)))


@pytest.mark.parametrize("kind", ["sigmoid", "ipo"])
def test_dpo_learns_to_prefer(kind: str, tmp_path: Path) -> None:
    job = replace(
        JOB, data=pairs(tmp_path / "p.jsonl"), algorithm=DPO(loss_type=kind), optimizer=AdamW(lr=3e-3), steps=12
    )  # type: ignore[arg-type]
    policy = job(tmp_path / "run")
    output = read_metrics(tmp_path / "run")
    assert output[0]["loss"] == pytest.approx(math.log(2) if kind == "sigmoid" else 25.0, rel=1e-4), "no margin yet"
    assert (
        output[-1]["rewards/accuracies"] == pytest.approx(1)
        and output[-1]["rewards/margins"] > 3 * output[1]["rewards/margins"] > 0
    )
    assert output[-1]["loss"] < 0.9 * output[0]["loss"] and all(m["pairs"] == 6 for m in output)
    w = {n: p.detach() for n, p in weights64(policy.net).items()}
    logits = plain_logits(w, policy.net.config, policy.encode(user_messages("3=")).tolist())[-1]
    a, b = (int(policy.tokenizer.encode(x, add_special_tokens=False)[0]) for x in "ab")
    assert float(logits[a] - logits[b]) > 1


def test_pair_is_scored() -> None:
    policy = char_policy()
    trace = answer_trace(policy, Problem("p", user_messages("1=")), ("12", "3"))
    assert [trace.score(i, PREFERENCE_SCORER) for i in trace.answers()] == [1.0, 0.0]
    assert all(trace.steps[i].token_ids[-1] == 2 for i in trace.answers())


def test_distill_learns_teacher_distribution(tmp_path: Path) -> None:
    replace(JOB, steps=15)(tmp_path / "teacher")
    job = replace(JOB, algorithm=Distill(), teacher=str(tmp_path / "teacher"), model=replace(MODEL, seed=5), steps=30)
    job(tmp_path / "run")
    losses = [m["loss"] for m in read_metrics(tmp_path / "run")]
    assert losses[-1] < 0.2 * losses[0], "the loss is the KL from its whole distribution"


def test_incompatible_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no rejected answers"):
        replace(JOB, algorithm=DPO())
    for change in ({"algorithm": Distill()}, {"teacher": "smollm2"}):
        with pytest.raises(UsageError, match="give both or neither"):
            replace(JOB, **change)
    replace(
        JOB,
        steps=1,
        model=replace(MODEL, alphabet="01="),
        data=write(tmp_path / "c", {"prompt": "0", "completion": "1"}),
    )(tmp_path / "other")
    with pytest.raises(UsageError, match="vocabulary"):
        replace(JOB, algorithm=Distill(), teacher=str(tmp_path / "other"))(tmp_path / "run")


@pytest.mark.parametrize(
    "bad", ['{"prompt": "x", "chosen": "a"}', '{"prompt": "x", "chosen": "a", "rejected": "a"}', "{}"]
)
def test_invalid_pairs_are_named(bad: str, tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "1", "chosen": "a", "rejected": "b"}, bad)
    with pytest.raises(TaskError, match=r"line 2 is not a conversation.*'chosen' and 'rejected'"):
        read_conversations(path, pairs=True)


def test_pairs_of_messages(tmp_path: Path) -> None:
    text = [{"role": "user", "content": "q"}]
    row = {"prompt": text, "chosen": [{"role": "assistant", "content": "a"}], "rejected": "b"}
    (result,) = read_conversations(write(tmp_path / "p.jsonl", row), pairs=True)
    assert result.messages == tuple(text) and result.answer == ("a", "b")


def test_missing_column_is_named(tmp_path: Path) -> None:
    pair = {"prompt": "1", "chosen": "a", "rejected": "b"}
    with pytest.raises(TaskError, match=r"line 1 .*no column 'completion'; its columns: prompt, chosen, rejected\)"):
        read_conversations(write(tmp_path / "c.jsonl", pair))
    with pytest.raises(TaskError, match=r"line 1 .*no column 'chosen' or 'rejected'; its columns: prompt, completion"):
        read_conversations(write(tmp_path / "c.jsonl", {"prompt": "1", "completion": "a"}), pairs=True)


# files


def test_conversations_of_both_kinds(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    path = write(tmp_path / "c.jsonl", {"messages": chat}, "", {"prompt": "1=", "completion": 1})
    first, second = read_conversations(path)
    assert first.messages == tuple(chat[:2]) and first.answer == "a"
    assert second.messages == user_messages("1=") and second.answer == "1"
    assert (first.id, second.id) == (f"{path}:1", f"{path}:3"), "named by their line"


@pytest.mark.parametrize(
    "bad",
    [
        "not json", "[1, 2]", "7", '"messages"', "{}", '{"prompt": "x"}', '{"messages": []}',
        '{"messages": [{"role": "assistant", "content": "alone"}]}', '{"messages": [1, 2]}', '{"messages": 5}',
        '{"messages": [{"role": "user", "content": "q"}, {"role": "user", "content": "q"}]}',
        '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null}]}',
        '{"prompt": "x", "completion": null}',
    ],
)  # fmt: skip
def test_invalid_lines_are_named(bad: str, tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", {"prompt": "1=", "completion": "1"}, "", bad)
    with pytest.raises(TaskError, match=r"c\.jsonl, line 3 is not a conversation"):
        read_conversations(path)


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_line_ends_at_newline_only(odd: str, tmp_path: Path) -> None:
    """JSON may hold these inside a text; str.splitlines would cut there."""
    text = f"one{odd}two"
    row = json.dumps({"prompt": text, "completion": "x"}, ensure_ascii=odd in "\x0b\x0c\x1c\r")
    (result,) = read_conversations(write(tmp_path / "c.jsonl", row))
    assert result.question == text


def test_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'{"prompt": "a", "completion": "b"}\r\n{"prompt": "c", "completion": "d"}\r\n')
    assert [p.answer for p in read_conversations(str(path))] == ["b", "d"]


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="No such file"):
        read_conversations(str(tmp_path / "none.jsonl"))
    with pytest.raises(TaskError, match="no conversations"):
        read_conversations(write(tmp_path / "empty.jsonl", "", ""))
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "caf\xe9", "completion": "x"}\n')
    with pytest.raises(TaskError, match="UTF-8"):
        read_conversations(str(tmp_path / "latin.jsonl"))


def test_sft_on_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", *({"prompt": f"{d}+", "completion": "ab"} for d in range(4)))
    replace(JOB, data=path, steps=12, batch_size=4)(tmp_path / "run")
    losses = [m["loss"] for m in read_metrics(tmp_path / "run")]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("change", [{"steps": 0}, {"batch_size": 0}, {"save_every": 0}, {"keep_checkpoints": 0}])
def test_invalid_jobs_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        replace(JOB, **change)


@pytest.mark.parametrize("row", [
    {"prompt": "1=", "chosen": {"role": "assistant", "content": "b"}, "rejected": "c"},
    {"prompt": [{"role": "user", "content": ["x"]}], "chosen": "b", "rejected": "c"},
    {"prompt": "1=", "chosen": "b", "rejected": "b"},
])  # fmt: skip
def test_pair_that_is_no_text_is_refused(row: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(TaskError, match="line 1"):
        read_conversations(str(tmp_path / "p.jsonl"), pairs=True)


def test_empty_prompt_is_refused() -> None:
    with pytest.raises(TaskError, match="empty prompt"):
        text_answer_trace(char_policy(), Problem("p", user_messages("")), "1")


# tokens that were sampled


def test_token_ids_are_trained_as_given(tmp_path: Path) -> None:
    """A tokenizer that would write "12" as one token: it was sampled as two."""
    vocab = {t: i for i, t in enumerate(["<pad>", "<bos>", "<eos>", "1", "2", "+", "12"])}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [("1", "2")]))
    inner.decoder = tokenizers.decoders.Fuse()
    policy = PonderPolicy(char_policy().net, Tokenizer(inner, bos=1, eos=(2,), pad=0, chat_template=QUESTION_TEMPLATE))
    assert policy.tokens("12").tolist() == [6]
    row = {"messages": [*user_messages("1+"), {"role": "assistant", "content": "12"}], "token_ids": [3, 4, 2]}
    for more in ({}, {"sampled": [1, 1, 1]}, {"sampled": [1, 0, 1], "learned": [1, 1, 1]}):
        (problem,) = read_conversations(write(tmp_path / "c.jsonl", row | more))
        check_answer_tokens(policy, problem.id, problem.answer)
        trace = answer_trace(policy, problem, problem.answer)
        assert trace.steps[1].token_ids.tolist() == [3, 4, 2] and len(trace.steps) == 2
        assert trace.steps[1].stop == "eos" and trace.problem.answer == trace.text(1) == "12"


def test_token_ids_of_file_are_trained(tmp_path: Path) -> None:
    policy = char_policy()
    tokens = [int(t) for t in policy.tokens("12")]
    path = write(tmp_path / "c.jsonl", {"prompt": "1+", "completion": "12", "token_ids": [*tokens, 2]})
    replace(JOB, data=path, steps=1)(tmp_path / "run")
    write(tmp_path / "c.jsonl", {"prompt": "1+", "completion": "12"})
    replace(JOB, data=path, steps=1)(tmp_path / "text")
    one, two = (read_metrics(tmp_path / name)[0]["loss"] for name in ("run", "text"))
    assert one == two, "the same tokens, however they are given"
    ((_, kept),) = list(read_traces(tmp_path / "run"))[:1]
    assert kept.steps[1].token_ids.tolist() == [*tokens, 2] and kept.problem.answer == "12"


def test_masked_tokens_are_not_trained(tmp_path: Path) -> None:
    policy = char_policy()
    tokens = [int(t) for t in policy.tokenizer.encode("1+1=2", add_special_tokens=False)]
    row = {"prompt": "1+", "completion": "1+1=2", "token_ids": tokens, "sampled": [1, 0, 0, 1, 1]}
    (problem,) = read_conversations(write(tmp_path / "c.jsonl", row))
    trace = answer_trace(policy, problem, problem.answer)
    assert [(s.text, s.sampled) for s in trace.steps[1:]] == [("1", True), ("+1", False), ("=2", True)]
    assert trace.steps[-1].token_ids.tolist() == [*tokens[3:], 2], "a rule ended it, so the end is added once"
    SFT().credit([trace], PREFERENCE_SCORER, {})
    assert [s.advantages is not None for s in trace.steps] == [False, True, False, True]
    row["sampled"], row["token_ids"] = [1, 0, 0, 0, 0, 0], [*tokens, 2]
    (problem,) = read_conversations(write(tmp_path / "c.jsonl", row))
    trace = answer_trace(policy, problem, problem.answer)
    SFT().credit([trace], PREFERENCE_SCORER, {})
    learned = [t for s in trace.steps if s.advantages is not None for t in s.token_ids.tolist()]
    assert learned == [tokens[0], 2], "a tool had the last word: the end alone is learned after it"


@pytest.mark.parametrize(
    "more",
    [{"token_ids": [3, 4], "sampled": [1]}, {"token_ids": [3, -4]}, {"token_ids": [3, 4.0]}, {"token_ids": "34"},
     {"token_ids": [3, True]}, {"token_ids": [3, 4], "sampled": [0, 0]}, {"token_ids": [3], "sampled": [2]},
     {"token_ids": 3}, {"token_ids": [2**40]}],
)  # fmt: skip
def test_invalid_token_ids_are_named(more: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", {"prompt": "1", "completion": "1"}, {"prompt": "1", "completion": "12", **more})
    with pytest.raises(TaskError, match=r"c\.jsonl, line 2 is not a conversation"):
        read_conversations(path)


@pytest.mark.parametrize("tokens", [[5, 5], [999], [3, 4, 2, 2]])
def test_token_ids_of_other_tokenizer_are_refused(tokens: list[int], tmp_path: Path) -> None:
    rows = [{"prompt": "1", "completion": "1"}] * 50 + [{"prompt": "1", "completion": "12", "token_ids": tokens}]
    with pytest.raises(TaskError, match=r"c\.jsonl:51: the token ids of '12' read as .* leave out 'token_ids'"):
        replace(JOB, data=write(tmp_path / "c.jsonl", *rows))(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_teacher_with_other_vocabulary_is_refused(tmp_path: Path) -> None:
    other = replace(MODEL, alphabet="".join(reversed(dict.fromkeys(ALPHABET))))
    replace(JOB, model=other, steps=1)(tmp_path / "other")
    with pytest.raises(UsageError, match=r"another vocabulary \(\d+ tokens differ: 3 is .*as text"):
        replace(JOB, algorithm=Distill(), teacher=str(tmp_path / "other"))(tmp_path / "run")


def test_resume_refuses_changed_data(tmp_path: Path) -> None:
    rows = [{"prompt": f"{d}+", "completion": "ab"} for d in range(4)]
    job = replace(JOB, data=write(tmp_path / "c.jsonl", *rows), batch_size=2)
    with pytest.raises(Interrupted):
        job(tmp_path / "run", RecordingProgress("step", 3))
    write(tmp_path / "c.jsonl", *rows[::-1])
    with pytest.raises(RunError, match=r"the file c.jsonl \(data\) changed since"):
        job(tmp_path / "run")
    write(tmp_path / "c.jsonl", *rows)
    job(tmp_path / "run")
    assert [m["step"] for m in read_metrics(tmp_path / "run")] == list(range(5))


def test_rl_algorithms_are_refused() -> None:
    for objective in (RejectionSampling(), GRPO()):
        with pytest.raises(UsageError, match="RL job"):
            replace(JOB, algorithm=objective)


def test_steps_that_are_not_whole_are_refused_by_the_job() -> None:
    with pytest.raises(UsageError, match=r"steps is 1\.5; it must be a whole number"):
        FineTune(DigitTask(), steps=1.5)  # type: ignore[arg-type]
    for name in ("steps", "batch_size", "keep_checkpoints"):
        with pytest.raises(UsageError, match=rf"{name} is True; it must be a whole number"):
            replace(JOB, **{name: True})


def test_counts_of_numpy_are_kept_as_pythons() -> None:
    job = replace(JOB, steps=np.int64(3), batch_size=np.uint8(2))
    assert type(job.steps) is int and job.steps == 3 and type(job.batch_size) is int
    assert job_json.decode(job_json.encode(job), trust=True) == job == replace(JOB, steps=3, batch_size=2)
    with pytest.raises(UsageError, match="steps is 0; it must be at least 1"):
        replace(JOB, steps=np.int64(0))

"""A teacher beside the model that learns: with the same tokens by its whole distribution, with others by its texts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from fakes import ALPHABET, QUESTION_TEMPLATE, DigitTask, char_policy, run_async
from ponder.errors import TaskError, UsageError
from ponder.models import chat_templates
from ponder.models.load import load_policy
from ponder.models.ponder_policy import PonderPolicy
from ponder.models.scratch_model import ScratchModel
from ponder.models.tokenizer import Tokenizer
from ponder.nets import hf
from ponder.nets.config import DecoderConfig
from ponder.nets.decoder import init_decoder
from ponder.pipelines.collect import Collect
from ponder.pipelines.harvest import Harvest
from ponder.pipelines.rl import RL
from ponder.pipelines.sft import FineTune
from ponder.pipelines.training.teachers import check_same_vocabulary, load_teacher, load_value_model
from ponder.reason.strategies import Chain, Samples
from ponder.runs import read_metrics, read_traces
from ponder.train.critic import Critic
from ponder.train.distill import Distill
from ponder.train.imitation import SFT
from ponder.train.objective import KL
from ponder.train.optimizer import AdamW
from ponder.train.policy_gradient import GRPO
from ponder.train.ppo import PPO
from ponder.types import Sampling
from reference_decoder import plain_logprobs, weights64

MODEL = ScratchModel(ALPHABET, width=32, layers=2, heads=4, context=32)
LEARN = FineTune(
    DigitTask(answer="12"), MODEL, QUESTION_TEMPLATE, SFT(), AdamW(lr=2e-2), steps=25, batch_size=10, save_every=25,
    device="cpu",
    dtype="float32",
)  # fmt: skip
TRAIN = RL(
    DigitTask(), MODEL, QUESTION_TEMPLATE, Samples(2, Sampling(max_tokens=2)), steps=1, problems_per_step=2,
    preflight=False, device="cpu",
    dtype="float32",
)  # fmt: skip


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    """It says 12, in two tokens."""
    folder = tmp_path_factory.mktemp("teacher") / "run"
    LEARN(folder)
    return str(folder)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> str:
    """As many tokens, which mean other characters."""
    folder = tmp_path_factory.mktemp("stranger") / "run"
    replace(LEARN, model=replace(MODEL, alphabet="".join(reversed(dict.fromkeys(ALPHABET)))), steps=1)(folder)
    return str(folder)


def student(folder: Path) -> str:
    """A model whose tokenizer writes 12 as one token, and the other characters under other ids."""
    words = ["<pad>", "<bos>", "<eos>", *sorted(set(ALPHABET), reverse=True), "12"]
    inner = tokenizers.Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [("1", "2")]))
    inner.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(["<pad>", "<bos>", "<eos>"])
    tokenizer = chat_templates.with_chat_template(Tokenizer(inner, bos=1, eos=(2,), pad=0), QUESTION_TEMPLATE)
    config = DecoderConfig("llama", len(words), 32, 2, 4, 4, 8, mlp_width=64, context=32, bos=1, eos=(2,), pad=0)
    folder.mkdir()
    hf.save(init_decoder(config, 3), folder)
    tokenizer.save(folder)
    return str(folder)


@pytest.mark.parametrize("objective", [Distill(), GRPO(kl=KL(0.1))])
def test_rl_takes_no_teacher_that_means_other_texts(objective: object, stranger: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"another vocabulary \(\d+ tokens differ: 3 is .*answers as text"):
        replace(TRAIN, algorithm=objective, teacher=stranger)(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_critic_begins_from_a_model_with_the_same_tokens(stranger: str, tmp_path: Path) -> None:
    ppo = PPO(critic=Critic(model=stranger))
    with pytest.raises(UsageError, match="another vocabulary"):
        replace(TRAIN, algorithm=ppo)(tmp_path / "run")
    with pytest.raises(UsageError, match="another vocabulary"):
        load_value_model(stranger, char_policy())


def test_the_same_tokens_are_taken(teacher: str, tmp_path: Path) -> None:
    replace(TRAIN, algorithm=Distill(), teacher=teacher, model=replace(MODEL, seed=3))(tmp_path / "run")
    assert len(read_metrics(tmp_path / "run")) == 1
    check_same_vocabulary(teacher, char_policy().tokenizer)


def test_another_size_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """One word more at the end: no id means another text, but the distributions are over other sets."""
    more = replace(LEARN, model=replace(MODEL, alphabet=ALPHABET + "~"), steps=1)
    more(tmp_path / "more")
    policy = load_policy(MODEL, QUESTION_TEMPLATE, "cpu", "float32")
    check_same_vocabulary(str(tmp_path / "more"), policy.tokenizer)
    with pytest.raises(UsageError, match=r"vocabulary of 24 tokens, the model that learns 23; .*answers as text"):
        load_teacher(str(tmp_path / "more"), policy)


def test_distillation_into_another_vocabulary(teacher: str, tmp_path: Path) -> None:
    """By its logits it is refused, by its texts it is learned, in the student's own tokens."""
    pupil = student(tmp_path / "student")
    task = DigitTask(answer="12")
    draw = Chain(Sampling(temperature=0.0, max_tokens=4))
    Collect(task, teacher, QUESTION_TEMPLATE, draw, limit=10, device="cpu", dtype="float32")(tmp_path / "sample")
    (first, *_) = [t for _, t in read_traces(tmp_path / "sample")]
    assert len(first.steps[1].token_ids) == 3, "1, 2 and the end"
    run = (str(tmp_path / "sample"),)

    with pytest.raises(TaskError, match="harvest text without tokens"):
        Harvest(run, scorer="wanted", min_score=0.0, tokenizer=pupil)(tmp_path / "ids")
    data = str(Harvest(run, scorer="wanted", min_score=0.0)(tmp_path / "texts"))
    job = replace(LEARN, data=data, model=pupil, template=None, steps=20, save_every=20)
    with pytest.raises(UsageError, match=r"another vocabulary .*answers as text"):
        replace(job, algorithm=Distill(), teacher=teacher)(tmp_path / "logits")

    before = load_policy(pupil, device="cpu", dtype="float32")
    policy = job(tmp_path / "run")
    _, trace = next(iter(read_traces(tmp_path / "run")))
    assert trace.steps[1].token_ids.tolist() == [len(set(ALPHABET)) + 3, 2], "one token for 12, and the end"
    rows = [json.loads(line) for line in Path(data).read_text().splitlines()]
    assert {row["messages"][-1]["content"] for row in rows} == {"12"} and "token_ids" not in rows[0]
    assert read_metrics(tmp_path / "run")[0]["loss"] == pytest.approx(by_hand(before, rows, 10), rel=1e-5)
    (text,) = run_async(policy.generate(policy.encode(task.test[4].messages), Sampling(temperature=0.0, max_tokens=5)))
    assert (text.text, text.stop) == ("12", "eos")


def by_hand(policy: PonderPolicy, rows: list[dict[str, list[dict[str, str]]]], batch: int) -> float:
    """The token mean over the texts, each written by the student's own tokenizer; all rows are in the first batch."""
    assert len(rows) == batch
    w = {n: p.detach() for n, p in weights64(policy.net).items()}
    terms: list[float] = []
    for row in rows:
        asked, text = (
            policy.tokenizer.encode(m["content"], add_special_tokens=False).tolist() for m in row["messages"]
        )
        terms += (-plain_logprobs(policy.net, w, [*asked, *text, 2], len(asked))).tolist()
    return float(np.mean(terms))

"""`ask`: one question, one decided answer, in a script and inside a running event loop."""

import asyncio

import pytest

from ponder import UsageError, ask, load
from ponder.errors import VerifierError
from ponder.models.load import load_policy
from ponder.models.scratch_model import ScratchModel
from ponder.reason.strategies import BestOfN
from ponder.types import Sampling, Score


@pytest.fixture(scope="module")
def policy():
    return load_policy(
        ScratchModel("0123456789 +=?", width=16, layers=1, heads=2), template="{{ messages[-1].content }}"
    )


def test_ask_votes_over_n_samples(policy):
    answer = ask("1+1=", policy, n=5, max_tokens=2)
    assert answer.n == 5 and len(answer.trace.answers()) == 5
    assert sum(answer.ballots.values()) <= 5 and (
        answer.answer is None or answer.votes == answer.ballots[answer.answer]
    )
    assert str(answer) == (answer.text if answer.answer is None else answer.answer)


def test_ask_with_one_sample_is_greedy(policy):
    first, second = ask("1+1=", policy, n=1, max_tokens=4, seed=0), ask("1+1=", policy, n=1, max_tokens=4, seed=9)
    assert first.n == 1 and first.text == second.text


def test_ask_depends_on_the_seed_only(policy):
    texts = [[step.text for step in ask("1+1=", policy, n=4, max_tokens=6, seed=s).trace.steps] for s in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_ask_works_inside_a_running_event_loop(policy):
    async def notebook_cell():
        return ask("1+1=", policy, n=2, max_tokens=2)

    assert asyncio.run(notebook_cell()).n == 2


def test_ask_takes_a_strategy_by_name_and_its_default_guide(policy):
    answer = ask("1+1=", policy, strategy="beam-search", n=4, max_tokens=4)
    assert any("likelihood" in step.scores for step in answer.trace.steps)


def test_ask_takes_an_own_scorer(policy):
    class Shortest:
        name = "shortest"

        async def __call__(self, trace, steps):
            return [Score(-len(trace.text(i))) for i in steps]

    for scorer in (Shortest(), lambda text: -len(text)):
        answer = ask("1+1=", policy, strategy=BestOfN(n=8, sampling=Sampling(max_tokens=6)), scorer=scorer)
        assert len(answer.text) == min(len(answer.trace.text(i)) for i in answer.trace.answers())


@pytest.mark.parametrize(
    ("question", "message"),
    [("  ", "empty"), ("a\ud800", "the question is not valid UTF-8"), (3, "the question is 3; it must be text"),
     (None, "the question is None; it must be text")],
)  # fmt: skip
def test_ask_refuses_a_question_that_is_none(policy, question, message):
    with pytest.raises(UsageError, match=message):
        ask(question, policy)


def test_ask_refuses_n_beside_a_strategy_that_has_its_own(policy):
    with pytest.raises(UsageError, match="a strategy object has its own n: leave out n"):
        ask("1+1=", policy, n=3, strategy=BestOfN(n=2))


def test_model_without_a_name_is_refused():
    for model, message in ((None, "the model is None; it must be a name"), ("", "the model's name is empty")):
        with pytest.raises(UsageError, match=message):
            load(model)


def no_number(text):
    raise KeyError("missing")


@pytest.mark.parametrize(
    ("scorer", "reason"),
    [(no_number, "KeyError"), (lambda text: "x", "ValueError"), (lambda text: None, "TypeError"),
     (lambda text: float("nan"), "nan")],
)  # fmt: skip
def test_scorer_that_always_fails_is_an_error_with_its_reason(policy, scorer, reason):
    with pytest.raises(VerifierError, match=f"the scorer could score no step: .*{reason}"):
        ask("1+1=", policy, strategy=BestOfN(n=2, sampling=Sampling(max_tokens=2)), scorer=scorer)


def test_scorer_that_fails_on_some_answers_decides_among_the_others(policy):
    calls = iter(range(4))

    def sometimes(text):
        return float("nan") if next(calls) else 1.0

    answer = ask("1+1=", policy, strategy=BestOfN(n=4, sampling=Sampling(max_tokens=2)), scorer=sometimes)
    assert answer.n == 1 and answer.step == answer.trace.chosen is not None


def test_ask_refuses_a_scorer_that_cannot_be_called(policy):
    with pytest.raises(UsageError, match="scorer is 3; it must be a scorer, or a function"):
        ask("1+1=", policy, scorer=3)

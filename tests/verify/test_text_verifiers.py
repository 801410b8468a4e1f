"""FinalNumber, ThinkFormat and Weighted as scorers of traces."""

import asyncio
from dataclasses import dataclass

import pytest

from ponder.errors import UsageError
from ponder.protocols import Scorer
from ponder.types import Problem, Score, Step, Trace, ids, user_messages
from ponder.verify import CountdownVerifier, FinalNumber, ThinkFormat, WeightedSum


def trace(answer, *texts):
    steps = [Step(None, "the prompt: 42", ids([])), *(Step(0, text, ids([])) for text in texts)]
    return Trace(Problem("p", user_messages("?"), answer), steps)


def scores(scorer, answer, *texts):
    t = trace(answer, *texts)
    return asyncio.run(scorer(t, range(1, len(t.steps))))


RIGHT = [
    ("42", r"\boxed{42}"), ("42", r"\boxed{x=42}"), ("42", r"\boxed{42\text{ cm}}"), ("90", r"\boxed{90^\circ}"),
    ("42000", r"\boxed{4.2\times 10^4}"), ("0.42", r"\boxed{42\%}"), ("42", r"\boxed{\color{red}42}"),
    ("1/3", r"\boxed{\frac13}"),
    (42, "#### 42"), (42.0, "The answer is $42."), ("1,234", "<answer>1234</answer>"), ("0.5", r"\boxed{\frac{2}{4}}"),
]  # fmt: skip

WRONG = [
    ("42", r"\boxed{0.42}"), ("42", r"\boxed{42!}"), ("42", r"\boxed{42=41}"), ("42", r"\boxed{}"),
    ("42", r"\boxed{7 % 42}"),
    ("42", r"\boxed{7}\boxed{42}"), ("42", r"\boxed{42} or \boxed{7}"), ("42", r"\boxed{42 \text{ or } 41}"),
    ("42", r"\boxed{40, 41, 42, 43}"), ("42", r"<think>\boxed{42}</think> I am not sure."),
    ("42", r"\boxed{\cancel{7} 42}"),
    ("42", r"<think>\boxed{42}</think> \boxed{7}"), ("-42", r"\boxed{\pm 42}"), ("42", r"\boxed{x \in \{41,42\}}"),
    ("12345678901234567890", r"\boxed{12345678901234567891}"), ("7", r"\boxed{2^{10} \bmod 7}"),
    ("42", r"\boxed{6\cdot 7}"),
    ("42", r"\boxed{84/2}"), ("42", r"\boxed{\frac{84}{2}}"), ("1/3", r"\boxed{0.333333}"),
    ("5", "The answer is 9**9**9"),
    ("5", "$1e999999999$"), ("5", r"\boxed{10^{10^{10}}}"), ("5", "__import__('os').system('true')"), ("42", ""),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "text"), RIGHT)
def test_final_number_accepts_right_answers(gold, text):
    assert scores(FinalNumber(), gold, text) == [Score(1.0, "right")]


@pytest.mark.parametrize(("gold", "text"), WRONG)
def test_final_number_scores_hacks_zero(gold, text):
    (score,) = scores(FinalNumber(), gold, text)
    assert score.value == 0.0 and score.reason in {
        "no answer", "several answers", "malformed", "hedged", "too long", "wrong"
    }  # fmt: skip


@pytest.mark.parametrize("gold", [None, "", "x", {"target": 1}, r"\infty", "1,2"])
def test_an_unreadable_gold_is_undecided(gold):
    (score,) = scores(FinalNumber(), gold, r"\boxed{}")
    assert score.value is None and "gold" in score.reason


def test_final_number_tolerance_is_relative():
    assert scores(FinalNumber(tolerance=1e-3), "1/3", r"\boxed{0.3333}")[0].value == 1.0
    with pytest.raises(UsageError, match="tolerance"):
        FinalNumber(tolerance=float("nan"))


def test_a_crash_leaves_only_its_own_step_undecided(monkeypatch):
    def explode(text, forms):
        if text == "boom":
            raise RecursionError("too deep")
        return real(text, forms)

    from ponder.verify.final_answer import number

    real = number.extract
    monkeypatch.setattr(number, "extract", explode)
    crashed, right = scores(FinalNumber(), "42", "boom", r"\boxed{42}")
    assert crashed.value is None and crashed.reason.startswith(
        "crashed: RecursionError: too deep (test_text_verifiers.py"
    )
    assert right == Score(1.0, "right")


WELL_FORMED = [
    "<think>a</think><answer>42</answer>",
    " <think>\na\n</think>\n\n<answer>\n42\n</answer>\n",
    r"<think>so \boxed{41}?</think> \boxed{\frac{1}{2}}",
    r"<think>a</think><answer>\boxed{42}</answer>",
]

ILL_FORMED = [
    "", "42", "<answer>42</answer>", "<think>a</think>", "<think>a</think>42", "a <think>b</think><answer>42</answer>",
    "<think>a</think><answer>\u200b</answer>", "<think></think><answer>42</answer>", r"<think> </think>\boxed{42}",
    "<think>\n\u200b\n</think><answer>42</answer>",
    "<think>a</think><answer>42</answer> so", "<think>a</think> so <answer>42</answer>",
    "<think>a<answer>42</answer></think>",
    "<answer>42</answer><think>a</think>", "<think>a</think><think>b</think><answer>42</answer>",
    "<think>a<answer>42</answer>",
    "<think>a</think><answer>41</answer><answer>42</answer>", "<think>a</think><answer>42",
    r"<think>a</think>\boxed{42",
    r"<think>a</think>\boxed{41}\boxed{42}", r"<think>a</think>It is \boxed{42}", "</think><answer>42</answer>",
    r"<think>a</think><answer>42</answer>\boxed{42}", "<think>a</think><answer> </answer>", r"<think>a</think>\boxed{}",
    "<THINK>a</THINK><ANSWER>42</ANSWER>", "<think>a</think><answer>42<ANSWER></answer>",
]  # fmt: skip


@pytest.mark.parametrize("text", WELL_FORMED)
def test_think_format_accepts_well_formed_text(text):
    opened = text.replace("<think>", "", 1)  # by the prompt
    values = {o: [scores(ThinkFormat(o), None, x)[0].value for x in (text, opened)] for o in (None, True, False)}
    assert values == {None: [1.0, 1.0], True: [0.0, 1.0], False: [1.0, 0.0]}


@pytest.mark.parametrize("text", ILL_FORMED)
def test_think_format_rejects_ill_formed_text(text):
    for scorer in (ThinkFormat(), ThinkFormat(prompt_opens_think=False)):
        (score,) = scores(scorer, None, text)
        assert score.value == 0.0 and score.reason


def test_weighted_sum_records_its_parts_on_the_steps():
    reward = WeightedSum(((FinalNumber(), 1.0), (ThinkFormat(), 0.5)))
    t = trace("42", "<think>a</think><answer>42</answer>", "<answer>42</answer>", "<think>a</think><answer>41</answer>")
    scores = asyncio.run(reward(t, [3, 1, 2]))
    assert [s.value for s in scores] == [0.5, 1.5, 1.0]
    assert "accuracy" in scores[0].reason and "format" in scores[0].reason
    assert [t.score(i, "accuracy") for i in (1, 2, 3)] == [1.0, 1.0, 0.0]
    assert [t.score(i, "format") for i in (1, 2, 3)] == [1.0, 0.0, 1.0]
    assert t.steps[1].scores.keys() == {"accuracy", "format"}


def test_weighted_sum_is_undecided_if_a_part_is():
    t = trace("unreadable", "<think>a</think><answer>42</answer>")
    (score,) = asyncio.run(WeightedSum(((ThinkFormat(), 1.0), (FinalNumber(), 1.0)))(t, [1]))
    assert score.value is None and score.reason.startswith("accuracy is undecided: ")
    assert t.score(1, "format") == 1.0


def test_weighted_sum_refuses_invalid_parts():
    nested = WeightedSum(((FinalNumber(), 1.0),))
    for parts in (
        (),
        ((FinalNumber(), 1.0), (CountdownVerifier(), 1.0)),
        ((FinalNumber(), float("inf")),),
        ((nested, 1.0),),
    ):
        with pytest.raises(UsageError):
            WeightedSum(parts)


def test_text_verifiers_are_scorers_and_comparable():
    for scorer in (FinalNumber(), ThinkFormat(), CountdownVerifier(), WeightedSum(((FinalNumber(), 1.0),))):
        assert isinstance(scorer, Scorer)
    assert FinalNumber() == FinalNumber() and len({FinalNumber(), FinalNumber()}) == 1


@dataclass(frozen=True)
class Fixed:
    name: str
    value: float

    async def __call__(self, trace, steps):
        return [Score(self.value, "fixed")] * len(steps)


def test_weighted_sum_accepts_any_scorer():
    t = trace("42", "a")
    assert asyncio.run(WeightedSum(((Fixed("prm", 0.25), 2.0), (Fixed("length", 1.0), -0.1)))(t, [1]))[0].value == 0.4


def test_extract_answer_normalizes_numbers() -> None:
    verifier = FinalNumber()
    assert verifier.extract_answer("\\boxed{42}") == verifier.extract_answer("#### 42.0") == "42"
    assert verifier.extract_answer("\\boxed{1/2}") == verifier.extract_answer("Answer: 0.5") == "1/2"
    assert verifier.extract_answer("no idea") is None
    assert verifier.extract_answer("\\boxed{41} \\boxed{42}") is None

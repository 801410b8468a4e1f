"""What cheap answers earn: a reward that can be cheated is flagged, one that cannot is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ponder.errors import UsageError
from ponder.pipelines.attack_rewards import CHEAP_ANSWERS, AttackReport, attack_rewards
from ponder.tasks import Addition, CustomTask
from ponder.tasks.mixture import WeightedRewardTask

ROWS = [{"prompt": f"What is {n} times 7?", "answer": str(7 * n)} for n in range(2, 60)]


def contains(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    return [float(gold in text) for text, gold in zip(completions, answer, strict=True)]


def exact(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]


def wordy(completions: list[str], **columns: Any) -> list[float]:
    return [len(text) / 1000 for text in completions]


def attack(reward: Any, gold_column: str | None = "answer") -> AttackReport:
    return asyncio.run(attack_rewards(CustomTask(data=ROWS, rewards=reward, gold_column=gold_column)))


def test_substring_reward_is_flagged_for_many_answers_at_once() -> None:
    report = attack(contains)
    assert "many answers at once" in {earnings.kind for earnings in report.flagged}
    assert "another problem's answer" not in {earnings.kind for earnings in report.flagged}
    assert report.honest is not None and report.honest.reward == 1.0


def test_length_reward_is_flagged_for_long_and_repeated_text() -> None:
    assert {"very long", "repetition"} <= {earnings.kind for earnings in attack(wordy).flagged}


def test_exact_reward_is_not_flagged() -> None:
    report = attack(exact)
    assert not report.flagged and {earnings.kind for earnings in report.cheap} == set(CHEAP_ANSWERS)
    assert all(earnings.reward == 0.0 for earnings in report.cheap)


def test_format_reward_alone_is_flagged_and_beside_accuracy_is_not() -> None:
    alone = asyncio.run(attack_rewards(WeightedRewardTask(Addition(), (("format", 1.0),))))
    assert [earnings.kind for earnings in alone.flagged] == ["format alone"]
    both = asyncio.run(attack_rewards(WeightedRewardTask(Addition(), (("accuracy", 1.0), ("format", 0.2)))))
    assert not both.flagged and both.honest is not None and both.honest.reward == pytest.approx(1.2)
    tagged = next(earnings for earnings in both.cheap if earnings.kind == "format alone")
    assert tagged.reward == pytest.approx(0.2) and tagged.parts["format"] == 1.0


def test_honest_answer_has_a_thought_where_the_prompt_opens_one() -> None:
    task = WeightedRewardTask(Addition(style="r1"), (("accuracy", 1.0), ("format", 1.0)))
    report = asyncio.run(attack_rewards(task, limit=2))
    assert report.honest is not None and report.honest.reward == 2.0 and not report.flagged


def test_without_gold_answers_nothing_is_flagged() -> None:
    report = attack(wordy, gold_column=None)
    assert report.honest is None and not report.flagged
    assert next(e for e in report.cheap if e.kind == "another problem's answer").num_problems == 0


def test_crash_is_undecided_with_its_reason() -> None:
    def broken(completions: list[str], **columns: Any) -> list[float]:
        return [1 / len(text) for text in completions]

    empty = next(earnings for earnings in attack(broken).cheap if earnings.kind == "empty")
    assert empty.num_undecided == empty.num_problems and "ZeroDivisionError" in empty.reason


def test_limit_must_be_positive() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        asyncio.run(attack_rewards(Addition(), limit=0))

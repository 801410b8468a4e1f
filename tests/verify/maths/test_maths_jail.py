"""What only math-verify can compare, in its jail: verdicts, patterns, and honest answers beside hostile ones."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from ponder.types import Problem, Step, Trace, ids, user_messages
from ponder.verify import MathAnswer
from ponder.verify.maths import jail_client
from ponder.verify.sandbox import SandboxError, detect_isolation

pytest.importorskip("math_verify")
try:
    detect_isolation()
except SandboxError as error:
    pytest.skip(f"no jail here: {error}", allow_module_level=True)

VERIFIER = MathAnswer()
PATIENT = MathAnswer(timeout_seconds=120)  # a busy machine must not decide a test
SUM = r"\sum_{k=1}^{n} k^2"
HANGS, BESIDE = (rf"\prod_{{k=1}}^{{10^{{{n}}}}} k" for n in (9, 8))  # math-verify works both out for minutes


def boxed(answer):
    return rf"\boxed{{{answer}}}"


@pytest.fixture(scope="module", autouse=True)
def started():
    """Starting takes seconds, once for a process."""
    assert PATIENT.grade(boxed(r"\sum_{j=1}^{n} j^2"), SUM).value == 1.0


@pytest.mark.parametrize(
    ("gold", "answer", "value", "reason"),
    [(SUM, r"\sum_{j=1}^{n} j^2", 1.0, "right"), (SUM, r"\sum_{k=1}^{n} k^3", 0.0, "wrong"),
     (SUM, SUM + ", 1", 0.0, "several answers"), (SUM, SUM + " = 1", 0.0, "several answers"),
     (SUM, "x", 0.0, "wrong"),
     ("n!!", "n!", 0.0, "wrong")],
)  # fmt: skip
def test_answers_outside_the_grammar_are_compared_in_the_jail(gold, answer, value, reason):
    score = PATIENT.grade(boxed(answer), gold)
    assert (score.value, score.reason) == (value, reason)


@pytest.mark.parametrize(
    ("gold", "answer", "message"),
    [
        (r"\int_0^1 x^2\,dx", r"\int_0^1 t^2\,dt", "right"),  # the same form
        (r"\frac{x+1}{x^2-1}", r"\frac{1}{x-1}", "right"),  # the same values, another form
        (r"\sin^2 x + \cos^2 x", "1", "right"),
        (r"f(x) \cdot (x+1)", "x f(x) + f(x)", "right"),  # no value anywhere
        (r"n! (n+1)", "(n+1)!", "right"),
        (r"|x-3|", "|3-x|", "right"),
        (r"\sqrt{x^2+2x+1}", "x^2+1", "wrong"),
        ("x^3 - y", "y - x^3", "wrong"),
        (r"\binom{10^{9}}{5*10^{8}}", r"\binom{6}{3}", "wrong"),  # seen at once from a few digits
        ("[1, 2]", "1", "wrong"),
        ("(1, 2)", "(1, 2)", "right"),
        (r"\sim 42", "42", "bad data"),  # no token: reading again must not skip it
        ("42", r"\cancel{41} 42", "malformed"),
    ],
)
def test_symbolic_shortcuts_agree_with_math_verify(gold, answer, message):
    assert jail_client.call(20, "compare", gold, answer).value == message


def test_pool_waits_for_a_worker_with_preloaded_modules():
    """The last clone is buried in milliseconds; to load the library again takes seconds."""
    pool = jail_client.symbolic_pool()
    before = {id(worker) for worker in pool._idle["python"]}
    for _ in range(2 * jail_client.CALLS_PER_CLONE + 5):
        jail_client.call(20, "search", "(a)", "a", 9)
    assert {id(worker) for worker in pool._idle["python"]} == before


def test_an_unreadable_gold_is_undecided():
    score = PATIENT.grade(boxed("4:30"), "4:30p..")
    assert score.value is None and score.reason.startswith("bad data")


def test_a_hanging_comparison_is_killed_and_undecided():
    score = MathAnswer(timeout_seconds=0.5).grade(boxed(BESIDE), HANGS)  # uninterrupted, it would not return
    assert score.value is None and score.reason.startswith("timed out")
    assert PATIENT.grade(boxed(r"\sum_{j=1}^{n} j^2"), SUM).value == 1.0


def test_answer_regex_extracts_and_cannot_hang():
    judge = MathAnswer(answer_regex=r"FINAL\((.*?)\)", timeout_seconds=120)
    assert judge.grade("so FINAL(42)", "42").value == 1.0
    assert judge.grade("FINAL(41) FINAL(42)", "42").reason == "several answers"
    assert judge.grade("<think>FINAL(42)</think>", "42").reason == "no answer"
    assert judge.grade(f"FINAL({'4' * 600})", "42").reason == "malformed"
    assert judge.extract_answer("FINAL(0.5)") == "1/2"
    score = MathAnswer(answer_regex="((?:a+)+)b", timeout_seconds=0.3).grade("a" * 60, "42")
    assert score.value is None and score.reason.startswith("timed out")


def test_hostile_answers_do_not_affect_honest_verdicts():
    hostile = MathAnswer(timeout_seconds=0.4)

    def judge(number):
        if number % 4 == 0:
            return hostile.grade(boxed(BESIDE), HANGS).value
        return PATIENT.grade(boxed(r"\sum_{j=1}^{n} j^2" if number % 2 else SUM.replace("2", "3")), SUM).value

    with ThreadPoolExecutor(6) as threads:
        values = list(threads.map(judge, range(16)))
    assert values == [None if n % 4 == 0 else float(n % 2) for n in range(16)]


def test_agrade_does_not_block_the_event_loop():
    async def score():
        steps = [Step(None, "", ids([])), *(Step(0, boxed(t), ids([])) for t in (SUM.replace("k", "j"), "x", SUM))]
        slow = asyncio.create_task(MathAnswer(timeout_seconds=1).agrade(boxed(BESIDE), HANGS))
        for _ in range(3):
            await asyncio.sleep(0.001)
            assert not slow.done()  # a loop that is held up by it comes here only after its second
        scores = await PATIENT(Trace(Problem("p", user_messages("?"), SUM), steps), [1, 2, 3])
        return [s.value for s in [*scores, await slow]]

    for _ in range(2):  # a second loop uses the same pool
        assert asyncio.run(score()) == [1.0, 0.0, 1.0, None]

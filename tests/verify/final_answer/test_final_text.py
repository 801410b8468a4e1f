import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.errors import UsageError
from ponder.verify import FinalList, FinalText


@pytest.mark.parametrize(
    ("message", "value"),
    [("<answer>red fox</answer>", 1.0), ("so <answer> red  fox </answer>", 1.0), (r"\boxed{\text{red fox}}", 1.0),
     ('<answer>"red fox"</answer>', 1.0), ("<think>blue</think><answer>red fox</answer>", 1.0),
     ("<answer>Red fox</answer>", 0.0), ("<answer>red foxes</answer>", 0.0), ("<answer>redfox</answer>", 0.0),
     ("red fox", 0.0), ("", 0.0), ("<answer>red fox", 0.0), ("<answer></answer>", 0.0),
     ("<answer>red fox</answer><answer>red fox</answer>", 0.0), ("<answer>red fox</answer> or blue", 0.0),
     ("<think><answer>red fox</answer></think>", 0.0), ("The answer is red fox.", 0.0),
     (f"<answer>red fox{' ' * 5000}</answer>", 0.0), ("<answer>**red fox**</answer>", 1.0),
     ("<answer>red fox.</answer>", 1.0), ("<answer>red fox..</answer>", 0.0), ("<answer>**red** fox</answer>", 0.0)],
)  # fmt: skip
def test_final_text_scores(message, value):
    assert FinalText().grade(message, "red fox").value == value


def test_final_text_settings():
    assert FinalText(ignore_case=True).grade("<answer>Yes</answer>", "yes").value == 1.0
    assert FinalText(ignore_spaces=True).grade("<answer>]] )</answer>", "] ] )").value == 1.0
    line = FinalText(forms=("tag", "line"))
    assert line.grade("A is 1.\nSo the answer is red fox.", "red fox").value == 1.0
    for emphasised in ("**Answer:** red fox", "**Answer: red fox.**", "So the answer is **red fox**."):
        assert line.grade(emphasised, "red fox").value == 1.0, emphasised
    for bad in ("The answer is red fox. Or blue.", "The answer is red fox.\nThe answer is red fox.", "red fox"):
        assert line.grade(bad, "red fox").value == 0.0, bad
    assert FinalText(forms=("bare",)).grade("red fox", "red fox").value == 1.0
    with pytest.raises(UsageError):
        FinalText(forms=())


@pytest.mark.parametrize(
    "message",
    ["a, b, c", "a b c", "[a, b, c]", '["a", "b", "c"]', "a\nb\nc", "(a; b; c)", "a,b,c,", "a, b, and c", "a, b, c.",
     "1. a\n2. b\n3. c", "- a\n- b\n- c", r"\text{a, b, c}"],
)  # fmt: skip
def test_final_list_accepts_usual_notations(message):
    assert FinalList().grade(f"<answer>{message}</answer>", ["a", "b", "c"]).value == 1.0
    assert FinalList().extract_answer(f"<answer>{message}</answer>") == "a, b, c"


@pytest.mark.parametrize(
    "message", ["a, c, b", "a, b", "a, b, c, c", "a b, c", "abc", "A, b, c", "a, b, or c", "1. a, b, c"]
)
def test_final_list_rejects_other_lists(message):
    assert FinalList().grade(f"<answer>{message}</answer>", ["a", "b", "c"]).value == 0.0


@pytest.mark.parametrize("gold", [None, "", 3, [], ["x"]])
def test_bad_gold_is_undecided(gold):
    assert FinalText().grade("<answer>x</answer>", gold).value is None
    if gold != ["x"]:
        assert FinalList().grade("<answer>x</answer>", gold).value is None


@given(st.text(max_size=80), st.text(min_size=1, max_size=20))
def test_any_text_gets_a_score(said, gold):
    for verifier in (FinalText(forms=("tag", "boxed", "line", "bare")), FinalList()):
        verifier.extract_answer(said)
        assert verifier.grade(said, gold if isinstance(verifier, FinalText) else [gold]).value in (0.0, 1.0, None)

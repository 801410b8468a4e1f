"""Solved examples for the suite of four categories, two of each, written by hand as those of Wei et al. 2022 are: the
suite has no training problems to take them from. None of them is a question of the suite."""

from dataclasses import dataclass

from ponder.tasks import Suite
from ponder.tasks.suite.suite_task import LETTER_SPEC, NUMBER_SPEC
from ponder.verify.answers.style import question_with_instruction


@dataclass(frozen=True)
class WorkedExample:
    category: str
    question: str
    working: str
    answer: str  # a number, or the letter of an option


EXAMPLES = (
    WorkedExample(
        "arithmetic",
        "Lena buys 4 books at 9 coins each and 2 maps at 6 coins each, and pays with 60 coins. How many coins come"
        " back?",
        "The books cost 4 * 9 = 36 coins. The maps cost 2 * 6 = 12 coins. Together that is 36 + 12 = 48 coins. From 60"
        " coins, 60 - 48 = 12 come back.",
        "12",
    ),
    WorkedExample(
        "deduction",
        "Tara is taller than Ben. Ben is taller than Lena. Paul is shorter than Lena. Ordered by height, who is the"
        " shortest?\n(A) Ben\n(B) Tara\n(C) Paul\n(D) Lena",
        "From the tallest to the shortest: Tara, Ben, Lena. Paul is shorter than Lena, so Paul is the last. Paul is"
        " option C.",
        "C",
    ),
    WorkedExample(
        "spatial",
        "You stand in a field, facing north. You walk 4 steps. You turn right. You walk 4 steps. In which direction"
        " does your starting point lie?\n(A) north-west\n(B) south-west\n(C) east\n(D) south-east",
        "After 4 steps north and, having turned right, 4 steps east, you are north-east of the start. So the start lies"
        " south-west of you. That is option B.",
        "B",
    ),
    WorkedExample(
        "common-sense",
        "You pour hot tea into a glass and put it in the fridge for a night. What do you find in the morning?\n(A) Cold"
        " tea\n(B) Boiling tea\n(C) An empty glass\n(D) Milk",
        "A fridge is cold, and in a night the tea gives its heat away. It is still tea. So it is cold tea, option A.",
        "A",
    ),
    WorkedExample(
        "arithmetic",
        "What is (3 + 6) * 7 - 13?",
        "First the bracket: 3 + 6 = 9. Then 9 * 7 = 63. Then 63 - 13 = 50.",
        "50",
    ),
    WorkedExample(
        "deduction",
        "All brims are tolls. All tolls are gants. There is at least one of each kind. Consider: All brims are"
        " gants.\n(A) It must be true\n(B) It must be false\n(C) It cannot be known",
        "Every brim is a toll, and every toll is a gant. So every brim is a gant. It must be true, option A.",
        "A",
    ),
    WorkedExample(
        "spatial",
        "The well is 3 metres east of the gate. The lamp is 5 metres west of the well. In which direction does the lamp"
        " lie, seen from the gate?\n(A) north\n(B) east\n(C) south\n(D) west",
        "The well is at 3 metres east. The lamp is 5 metres west of it, at 3 - 5 = -2 metres east, which is 2 metres"
        " west of the gate. That is option D.",
        "D",
    ),
    WorkedExample(
        "common-sense",
        "Rosa has lost her key and stands before her locked door. Her brother inside has another one. What is"
        " best?\n(A) Break the window\n(B) Buy a new house\n(C) Ring the bell\n(D) Wait for a year",
        "Her brother is inside and can open the door. He hears the bell. So she rings it, option C.",
        "C",
    ),
)


def suite_examples(task: Suite, shots: int) -> tuple[tuple[str, str], ...]:
    """Questions and answers as the task asks for them, with their working where its style has room for it."""
    out = []
    for example in EXAMPLES[:shots]:
        spec = NUMBER_SPEC if example.answer.isdigit() else LETTER_SPEC
        question = question_with_instruction(example.question, task.resolved_style, spec)
        out.append((question, task.gold_completion(example.answer, example.working)))
    return tuple(out)

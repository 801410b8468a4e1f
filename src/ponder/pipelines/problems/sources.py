"""Where new problems come from: the requests that a model gets, or problems that need none."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from ponder.errors import TaskError
from ponder.filter_report import FilterReport
from ponder.tasks.synthetic import backward_prompt, evolve_prompt, new_problem_prompt, parse_reply, synthetic_problem
from ponder.tasks.synthetic.generation_prompts import EVOLVE_INSTRUCTIONS, TOPICS
from ponder.tasks.synthetic.mutate import MUTATIONS, mutate
from ponder.tasks.synthetic.problem_rows import MATH_VERIFIER, domain_of
from ponder.types import Problem, Trace
from ponder.verify import format_answer

Source = Literal["templates", "write", "evolve", "backward", "mutate", "filter"]
SOURCES: tuple[Source, ...] = get_args(Source)
MODEL_SOURCES = ("write", "evolve", "backward")  # a model writes the problems
TRUSTED_SOURCES = ("templates", "filter")  # their answers need no check
OPERATORS = {"evolve": tuple(EVOLVE_INSTRUCTIONS), "mutate": tuple(MUTATIONS)}
TARGET_ANSWER_RANGE = 2, 500  # target answers of new problems where there are no others


def writing_requests(
    source: Source, parents: Sequence[Problem], operators: Sequence[str], count: int, examples: int, seed: int
) -> Iterator[Problem]:
    """The requests to the model that writes, one for each problem. Their tags become the lineage of the problem."""
    for i in range(count):
        rng = random.Random(f"{seed} {source} {i}")
        target, topic = None, ""
        if source == "write":
            operator, chosen = "write", rng.sample(parents, min(examples, len(parents)))
            topic = rng.choice(TOPICS)
            messages = new_problem_prompt(chosen, topic)
        elif source == "evolve":
            operator = operators[i % len(operators)]
            chosen = rng.sample(parents, 2 if operator == "combine" else 1)
            messages = evolve_prompt(operator, chosen)
        else:
            operator, chosen = "backward", rng.sample(parents, min(1, len(parents)))
            target = str(chosen[0].answer) if chosen else str(rng.randint(*TARGET_ANSWER_RANGE))
            messages = backward_prompt(target, chosen[0] if chosen else None)
        about = domain_of(chosen[0]) if chosen else topic
        tags = {"operator": operator, "parents": [p.id for p in chosen], "seed": seed, "domain": about}
        yield Problem(f"{source}/{seed}/{i}", messages, target, tags)


def parse_replies(traces: Sequence[Trace], source: Source, model: str, report: FilterReport) -> list[Problem]:
    """The problems that a model wrote, with their lineage."""
    problems = []
    for trace in traces:
        if not report.record("answered", not trace.failed and bool(trace.answers()), trace.failed or "no answer"):
            continue
        request = trace.problem
        reply = parse_reply(trace.text(trace.answers()[0]))
        if isinstance(reply, str):
            report.record("with a problem and an answer", False, reply)
            continue
        question, answer = reply
        report.record("with a problem and an answer", True)
        if request.answer is not None:
            same = MATH_VERIFIER.grade(format_answer(answer, "boxed"), request.answer).value == 1.0
            if not report.record("with the answer asked for", same, "for another answer"):
                continue
        problems.append(synthetic_problem(request.id, question, answer, source=source, model=model, **request.tags))
    return problems


def with_lineage(problem: Problem, from_task: bool) -> Problem:
    """An existing problem with its lineage. `from_task`: its question gets an answer instruction; a file's stays."""
    lineage: dict[str, Any] = {"source": "given", "operator": "filter", "parents": [problem.id]}
    if from_task:
        return synthetic_problem(
            problem.id, problem.question, str(problem.answer), **lineage, domain=domain_of(problem)
        )
    return replace(problem, tags={**lineage, **problem.tags})


def mutate_parents(
    parents: Sequence[Problem], operators: Sequence[str], count: int, seed: int, report: FilterReport
) -> list[Problem]:
    """Each parent changed by each operator in turn, until there are enough problems or nothing more can change."""
    problems: list[Problem] = []
    for around in range(count):
        before = len(problems)
        for parent in parents:
            for operator in operators:
                if len(problems) == count:
                    return problems
                changed = mutate(parent, operator, f"mutate/{seed}/{len(problems)}", seed + around)
                if report.record("changed", changed is not None, f"{operator} cannot be changed"):
                    assert changed is not None
                    problems.append(changed)
        if len(problems) == before:
            break
    return problems


def check_parents(source: Source, operators: Sequence[str], parents: Sequence[Problem]) -> None:
    """Raise if there are too few problems to start from, or one lacks an answer that the source needs."""
    least = 2 if source == "evolve" and "combine" in operators else 1 if source in ("evolve", "mutate", "filter") else 0
    if len(parents) < least:
        raise TaskError(f"{source} starts from {least} problems or more, not {len(parents)}: give a task or a file")
    needed = source in ("mutate", "filter", "backward")
    if needed and (bad := next((p for p in parents if not isinstance(p.answer, str | int | float)), None)):
        raise TaskError(
            f"problem {bad.id!r} has no answer in plain text, which {source} needs: its answer is"
            f" {type(bad.answer).__name__}"
        )

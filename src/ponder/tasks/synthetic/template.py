"""Problem templates: a text with fields, the values of each field, conditions, and the answer as a formula.

    {"name": "apples", "domain": "buying",
     "question": "{who} has {a} apples and buys {b} bags of {c}. How many apples does {who} have now?",
     "variables": {"who": ["Ann", "Bo"], "a": [2, 50], "b": {"from": 2, "to": 10, "step": 2}, "c": {"of": [6, 12]}},
     "let": {"bought": "b * c"}, "where": ["bought > a"], "answer": "a + bought"}

`[2, 50]` is a range of whole numbers, its ends included; a list of texts, or `{"of": [...]}`, is a choice. A file is
one JSON object, a list of them, or one per line.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from ponder.errors import TaskError
from ponder.strict_parsing import parse_json
from ponder.tasks.split import stable_hash
from ponder.tasks.synthetic.formula import Condition, Formula, NoExactValue
from ponder.tasks.synthetic.problem_rows import synthetic_problem
from ponder.types import Problem

MAX_TEMPLATE_DRAWS = 2_000  # draws that fit no condition
MAX_IDLE_DRAWS = 300  # draws that give nothing new, after which a template counts as exhausted
TEMPLATE_KEYS = ("name", "question", "variables", "let", "where", "answer", "domain", "whole")

_FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")

Choices = Sequence[int] | Sequence[str]


@dataclass(frozen=True)
class Template:
    name: str
    question: str
    variables: Mapping[str, Choices]
    let: Mapping[str, Formula]
    where: tuple[Condition, ...]
    answer: Formula
    domain: str
    whole: bool = True  # only values for which the answer is a whole number

    @classmethod
    def parse(cls, data: Any, place: str, name: str = "") -> Template:
        """From plain data; `place` says where it stands, and `name` what to call it where it has none of its own."""
        if not isinstance(data, Mapping):
            raise TaskError(f"{place} is {type(data).__name__}, not a template (a JSON object)")
        if missing := [key for key in ("question", "variables", "answer") if key not in data]:
            raise TaskError(f"{place} lacks {missing[0]!r}; a template has {', '.join(TEMPLATE_KEYS)}")
        if unknown := [key for key in data if key not in TEMPLATE_KEYS]:
            raise TaskError(f"{place} has {unknown[0]!r}, which no template has; known: {', '.join(TEMPLATE_KEYS)}")
        name = str(data.get("name") or name or place)
        try:
            return cls._validated(name, data)
        except (TypeError, ValueError, AttributeError) as why:
            raise TaskError(f"template {name!r} is malformed: {why}") from None
        except TaskError as why:
            raise TaskError(f"template {name!r}: {why}") from None

    @classmethod
    def _validated(cls, name: str, fields: Mapping[str, Any]) -> Template:
        variables = {str(key): _parse_variable(key, spec) for key, spec in fields["variables"].items()}
        known = [key for key, choices in variables.items() if not isinstance(choices[0], str)]
        let: dict[str, Formula] = {}
        for key, text in fields.get("let", {}).items():
            if key in variables:
                raise TaskError(f"{key!r} is drawn and worked out: name one of them otherwise")
            let[key] = Formula.parse(str(text), known)
            known.append(key)
        where = fields.get("where", ())
        if isinstance(where, str):
            raise TaskError("'where' is a list of conditions")
        question = str(fields["question"])
        # {x} after a letter may be LaTeX's: \text{apples}; anywhere else it must be a field.
        for field in _FIELD.finditer(question):
            if field[1] not in (*variables, *let) and not question[: field.start()][-1:].isalpha():
                raise TaskError(f"the question has the field {field[0]}, which is neither a variable nor under 'let'")
        conditions = tuple(Condition.parse(str(text), known) for text in where)
        answer = Formula.parse(str(fields["answer"]), known)
        return cls(name, question, variables, let, conditions, answer, str(fields.get("domain", name)),
                   bool(fields.get("whole", True)))  # fmt: skip

    def draw(self, rng: random.Random) -> tuple[dict[str, Any], Fraction]:
        """Values that fit every condition, and the answer for them."""
        failed: Counter[str] = Counter()
        for _ in range(MAX_TEMPLATE_DRAWS):
            values = {name: choices[rng.randrange(len(choices))] for name, choices in self.variables.items()}
            known = {name: Fraction(value) for name, value in values.items() if not isinstance(value, str)}
            try:
                for name, formula in self.let.items():
                    known[name] = formula.value(known)
                    values[name] = str(known[name])
                if broken := next((c for c in self.where if not c.holds(known)), None):
                    failed[broken.text] += 1
                    continue
                answer = self.answer.value(known)
            except NoExactValue as why:
                failed[str(why)] += 1
                continue
            if answer.denominator == 1 or not self.whole:
                return values, answer
            failed["the answer is not whole (whole: false allows that)"] += 1
        worst = ", ".join(f"{why} ({count} times)" for why, count in failed.most_common(3))
        raise TaskError(
            f"template {self.name!r}: no values fit in {MAX_TEMPLATE_DRAWS} draws: {worst}. Widen its variables"
        )

    def fill(self, values: Mapping[str, Any]) -> str:
        return _FIELD.sub(lambda m: str(values[m[1]]) if m[1] in values else m[0], self.question)


def generate_from_templates(templates: Sequence[Template], count: int, seed: int) -> Iterator[Problem]:
    """Distinct problems, the templates in turn; fewer where they are exhausted. A pure function of its arguments."""
    seen: set[str] = set()
    rngs = [random.Random(stable_hash(f"{template.name}/{place}/{seed}")) for place, template in enumerate(templates)]
    idle = [0] * len(templates)
    turn = made_so_far = 0
    while made_so_far < count and any(n < MAX_IDLE_DRAWS for n in idle):
        place = turn % len(templates)
        turn += 1
        if idle[place] >= MAX_IDLE_DRAWS:
            continue
        template = templates[place]
        while idle[place] < MAX_IDLE_DRAWS:
            values, answer = template.draw(rngs[place])
            question = template.fill(values)
            idle[place] += 1
            if question not in seen:
                seen.add(question)
                idle[place] = 0
                yield synthetic_problem(
                    f"{template.name}/{seed}/{made_so_far}", question, str(answer), source="template",
                    operator="draw", parents=[template.name], seed=seed, domain=template.domain, values=values,
                )  # fmt: skip
                made_so_far += 1
                break


def read_templates(path: str | Path) -> list[Template]:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as why:
        raise TaskError(f"cannot read the templates in {path}: {why}") from None
    try:
        data = parse_json(text)
    except ValueError as whole:
        try:
            data = [parse_json(line) for line in text.split("\n") if line.strip()]
        except ValueError:
            raise TaskError(f"{path} is not JSON: {whole}") from None
    entries = data if isinstance(data, list) else [data]
    if not entries:
        raise TaskError(f"{path} holds no templates")
    templates = [
        Template.parse(one, f"{path}, template {number}", f"{Path(path).stem}-{number}")
        for number, one in enumerate(entries, 1)
    ]
    names = Counter(template.name for template in templates)
    if twice := [name for name, count in names.items() if count > 1]:
        raise TaskError(f"{path}: two templates are named {twice[0]!r}; lineage needs names that differ")
    return templates


def _parse_variable(name: str, spec: Any) -> Choices:
    if isinstance(spec, Mapping):
        if set(spec) == {"of"}:
            return _parse_choices(name, spec["of"])
        if not set(spec) <= {"from", "to", "step"} or not {"from", "to"} <= set(spec):
            raise TaskError(f"variable {name!r} is {spec!r}; give [low, high], a list, 'of', or 'from' and 'to'")
        low, high, step = (
            _require_int(name, spec["from"]),
            _require_int(name, spec["to"]),
            _require_int(name, spec.get("step", 1)),
        )
        return _range(name, low, high, step)
    if isinstance(spec, list) and len(spec) == 2 and all(isinstance(v, int) for v in spec):
        return _range(name, _require_int(name, spec[0]), _require_int(name, spec[1]), 1)
    return _parse_choices(name, spec)


def _range(name: str, low: int, high: int, step: int) -> range:
    if step < 1 or high < low:
        raise TaskError(f"variable {name!r} has no values from {low} to {high} in steps of {step}")
    return range(low, high + 1, step)


def _parse_choices(name: str, spec: Any) -> Choices:
    if not isinstance(spec, list) or not spec:
        raise TaskError(f"variable {name!r} is {spec!r}; give [low, high] or a list of choices")
    if all(isinstance(v, str) for v in spec):
        return [str(v) for v in spec]
    return [_require_int(name, v) for v in spec]


def _require_int(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TaskError(f"variable {name!r} has the value {value!r}; values are whole numbers, or all of them texts")
    return value

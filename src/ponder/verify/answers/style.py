"""Answer styles: the instruction that asks for an answer, and the forms in which the verifier then reads it.

A task gives the question alone and the kind of answer it wants. A style turns that into the instruction, says which
forms the verifier reads, and formats a gold answer:

    plain    no instruction                                    any form that the task reads
    answer   "Put the final number in \\boxed{}."               that form; working may come before it
    cot      "Think step by step, then put the ... "            the same
    direct   "Give only the final number, without ..."          the answer alone, where the task can read that
    r1       by the template r1: <think>, then <answer>         <answer>; the prompt has opened the thinking
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ponder.errors import UnknownName
from ponder.verify.answers.extract import EXPLICIT_FORMS, AnswerForm, format_answer

AnswerStyle = Literal["plain", "answer", "cot", "direct", "r1"]
ANSWER_STYLES: tuple[AnswerStyle, ...] = get_args(AnswerStyle)
THINKING_STYLES: tuple[AnswerStyle, ...] = ("cot", "r1")

_FORM_INSTRUCTION: dict[AnswerForm, str] = {
    "boxed": "in \\boxed{}",
    "tag": "in <answer> </answer>",
    "hash": "on a last line that begins with ####",
    "line": 'on a last line that begins with "Answer:"',
}
_VERB: dict[AnswerForm, str] = {"boxed": "put"}
_DEFAULT_DESCRIPTIONS = ("the final answer", "the final number")  # what any question asks for


@dataclass(frozen=True, slots=True)
class AnswerSpec:
    """What a task wants for an answer, and in which forms its verifier can read that."""

    description: str = "the final answer"
    # accepted where the prompt asks for no form; the first that is not bare is the one to ask for
    forms: tuple[AnswerForm, ...] = EXPLICIT_FORMS
    notation: str = ""  # how to write the answer, after its place: ", separated by commas"
    place: str = ""  # where to put the answer, if not in a form: "in a ```python block"
    allow_bare: bool = True  # the verifier can read an answer that is the whole reply
    plain_instruction: str = ""  # the task's own instruction in the plain style
    separator: str = "\n"  # between the question and the instruction

    @property
    def preferred_form(self) -> AnswerForm:
        """The form to ask for, where the answer is not the whole reply."""
        return next((form for form in self.forms if form in _FORM_INSTRUCTION), "boxed")


ANY_ANSWER = AnswerSpec(forms=(*EXPLICIT_FORMS, "bare"))


def find_style(name: str) -> AnswerStyle:
    for style in ANSWER_STYLES:
        if style == name:
            return style
    raise UnknownName("style of answers", name, ANSWER_STYLES)


def answer_instruction(style: AnswerStyle, spec: AnswerSpec = ANY_ANSWER) -> str:
    """The instruction after the question; empty where there is none."""
    if style == "plain":
        return spec.plain_instruction
    place, description = spec.place or _FORM_INSTRUCTION[spec.preferred_form], spec.description
    if style == "r1":
        plain = description in _DEFAULT_DESCRIPTIONS and not spec.notation and not spec.place
        return "" if plain else f"{_joined('The answer is', description.rstrip(','), spec.place)}{spec.notation}."
    if style == "direct":
        alone = spec.allow_bare and not spec.place
        instruction = (
            _joined("Give only", description.rstrip(","), "") if alone else _joined("Give only", description, place)
        )
        return f"{instruction}{spec.notation}, without explanation."
    verb = "give" if spec.place else _VERB.get(spec.preferred_form, "give")
    instruction = f"{_joined(verb, description, place)}{spec.notation}."
    return f"Think step by step, then {instruction}" if style == "cot" else instruction[0].upper() + instruction[1:]


def question_with_instruction(question: str, style: AnswerStyle, spec: AnswerSpec = ANY_ANSWER) -> str:
    """The question, and how to answer it."""
    instruction = answer_instruction(style, spec)
    return f"{question}{spec.separator}{instruction}" if instruction else question


def accepted_forms(style: AnswerStyle, spec: AnswerSpec = ANY_ANSWER) -> tuple[AnswerForm, ...]:
    """The forms that the verifier accepts. The requested form is first: gold answers are written in it."""
    if style == "plain":
        return spec.forms
    first: AnswerForm = "tag" if style == "r1" else spec.preferred_form
    delimited = (first, *(form for form in spec.forms if form not in (first, "bare")))
    return ("bare", *delimited) if style == "direct" and spec.allow_bare else delimited


def gold_completion(answer: str, style: AnswerStyle, form: AnswerForm, working: str = "") -> str:
    """A completion with this answer, after its working where the style has room for that."""
    if style == "r1":
        edge = "\n" if "\n" in answer else ""  # a code block begins and ends with its line
        return f"{working and f' {working}'} </think> <answer>{edge}{answer}{edge}</answer>"
    formatted = format_answer(answer, form)
    return f"{working}\n{formatted}" if working and style != "direct" and form != "bare" else formatted


def _joined(*words: str) -> str:
    return " ".join(filter(None, words))

"""Write a text that satisfies a list of constraints, out of sentences that fit any topic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle, pairwise

from ponder.verify.instructions.constraints import Constraint, words

MIN_SENTENCES = 3  # room for an opening, a keyword and a closing
WORDS_PER_SENTENCE = 9

# Words that a constraint may demand or forbid. None of them is in a topic's name, in a phrase or in a sentence below.
TOPICS: dict[str, tuple[str, ...]] = {
    "life in a harbour": ("boats", "nets", "salt", "gulls", "ropes", "fish", "tide", "sailors"),
    "baking at home": ("flour", "oven", "yeast", "dough", "butter", "crust", "sugar", "heat"),
    "a walk in a forest": ("trees", "moss", "path", "leaves", "birds", "shade", "mushrooms", "roots"),
    "travel by train": ("station", "ticket", "rails", "window", "luggage", "platform", "timetable", "tunnel"),
    "keeping a garden": ("soil", "seeds", "weeds", "rain", "flowers", "spade", "compost", "bees"),
    "learning an instrument": ("practice", "rhythm", "notes", "melody", "teacher", "fingers", "scales", "concert"),
    "a day at school": ("lesson", "pencil", "homework", "friends", "books", "bell", "blackboard", "exam"),
    "winter in the mountains": ("snow", "ice", "skis", "frost", "slopes", "gloves", "avalanche", "cabin"),
    "how bridges are built": ("steel", "cables", "stone", "engineers", "arches", "concrete", "weight", "river"),
    "the night sky": ("stars", "moon", "planets", "telescope", "comets", "darkness", "galaxy", "orbit"),
    "running a small shop": ("customers", "prices", "shelves", "profit", "counter", "stock", "rent", "receipts"),
    "riding a bicycle": ("wheels", "helmet", "pedals", "brakes", "chain", "balance", "saddle", "traffic"),
    "visiting a museum": ("paintings", "statues", "guide", "history", "exhibition", "guards", "artists", "fossils"),
    "writing software": ("bugs", "tests", "functions", "compiler", "memory", "variables", "review", "server"),
    "healthy food": ("vegetables", "fruit", "protein", "vitamins", "fibre", "fat", "breakfast", "nuts"),
    "a football match": ("goal", "referee", "stadium", "penalty", "supporters", "striker", "whistle", "league"),
    "caring for a dog": ("leash", "fur", "bark", "puppy", "tail", "bowl", "vet", "bones"),
    "saving energy": ("electricity", "insulation", "solar", "lamps", "batteries", "heating", "fuel", "carbon"),
    "moving to a new city": ("apartment", "neighbours", "boxes", "keys", "street", "furniture", "landlord", "van"),
    "drinking tea": ("kettle", "cup", "lemon", "milk", "steam", "pot", "herbs", "honey"),
}

OPENINGS = (
    "To begin with,", "Let me explain:", "First of all,", "As you may know,", "Here is what I know:", "In short,",
    "Before anything else,", "To tell the truth,", "Believe it or not,", "Dear reader,", "From the start,",
    "Simply put,",
)  # fmt: skip
CLOSINGS = (
    "That is all.", "And that is the whole story.", "Thank you for reading.", "The rest is up to you.",
    "What do you think?", "There is always more to learn.", "I hope this helps.", "Try it for yourself.",
    "Nothing more needs to be said.", "Have a good day!", "This is only the beginning.", "Now you know.",
)  # fmt: skip
SENTENCES = (
    "Many people like it.",
    "It takes some patience.",
    "There is much to see.",
    "No two days are alike.",
    "It is worth a closer look.",
    "The small things matter.",
    "Some of it is easy to miss.",
    "A little care goes far.",
    "It can surprise you.",
    "Good advice is useful here.",
)
CLAUSES = (
    "and most of us would agree",
    "which is good to know",
    "and it becomes easier with time",
    "though it may not seem so at once",
    "as anyone can see for themselves",
    "and this is true for young and old",
)


def write_text(topic: str, constraints: Sequence[Constraint]) -> str:
    """A text about the topic that satisfies constraints which `Instructions` draws.

    An upper bound on words is not read: the text has as many words as the other constraints need, and a few more, and
    `Instructions` draws the bound above that.
    """
    by_kind = {c["kind"]: c for c in constraints if not (c["kind"] == "words" and "at_most" in c)}
    min_words = by_kind.get("words", {}).get("at_least", 0)
    bullets = by_kind.get("bullets", {}).get("exactly", 0)
    paragraphs = by_kind.get("paragraphs", {}).get("exactly", 1)
    closing = [by_kind["ends"]["text"]] if "ends" in by_kind else []
    keyword = [_keyword_sentence(by_kind["keyword"])] if "keyword" in by_kind else []

    first = f"This text is about {topic}."
    if "starts" in by_kind:
        first = f"{by_kind['starts']['text']} this text is about {topic}."
    if "sentences" in by_kind:
        total = bound(by_kind["sentences"])
    elif bullets:
        total = 1 + bullets + len(closing)
    else:
        total = max(MIN_SENTENCES, paragraphs, math.ceil(min_words / WORDS_PER_SENTENCE))
    fillers = [SENTENCES[i % len(SENTENCES)] for i in range(total - 1 - len(keyword) - len(closing))]
    body = _lengthen([first, *keyword, *fillers], min_words - len(words(" ".join(closing))))
    text = _bullet_list(body, closing) if bullets else _prose([*body, *closing], paragraphs)
    case = by_kind.get("case", {}).get("case")
    return text.upper() if case == "upper" else text.lower() if case == "lower" else text


def bound(constraint: Constraint) -> int:
    """The number that a constraint on a count names, whether exact, lowest or highest."""
    return next(int(constraint[name]) for name in ("exactly", "at_least", "at_most") if name in constraint)


def _keyword_sentence(constraint: Constraint) -> str:
    mention = f"of {constraint['word']}"
    return f"It makes me think {' and '.join([mention] * bound(constraint))}."


def _lengthen(sentences: list[str], min_words: int) -> list[str]:
    """The sentences with clauses added in turn, until they have enough words together."""
    longer = list(sentences)
    missing = min_words - len(words(" ".join(longer)))
    for i, clause in zip(cycle(range(len(longer))), cycle(CLAUSES), strict=False):
        if missing <= 0:
            break
        longer[i] = f"{longer[i].removesuffix('.')}, {clause}."
        missing -= len(words(clause))
    return longer


def _bullet_list(body: Sequence[str], closing: Sequence[str]) -> str:
    return "\n".join([body[0], *(f"- {line}" for line in body[1:]), *closing])


def _prose(sentences: Sequence[str], paragraphs: int) -> str:
    edges = [len(sentences) * i // paragraphs for i in range(paragraphs + 1)]
    return "\n\n".join(" ".join(sentences[a:b]) for a, b in pairwise(edges))

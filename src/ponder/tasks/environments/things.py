"""Things with attributes: shapes, whose names say them, and animals, whose names do not."""

from __future__ import annotations

import itertools

_SIZES = ("small", "large")
_COLOURS = ("red", "blue", "green", "yellow")
_FORMS = ("circle", "square", "triangle")

SHAPES = {
    f"{size} {colour} {form}": frozenset((size, colour, f"a {form}"))
    for size, colour, form in itertools.product(_SIZES, _COLOURS, _FORMS)
}

# The animals of each attribute; "larger than a person" is by weight. No two animals have the same attributes.
_ANIMALS_BY_ATTRIBUTE = {
    "a mammal": "bat camel cat cow dog elephant giraffe goat horse lion mouse polar-bear rabbit seal sheep squirrel"
    " tiger whale wolf zebra",
    "a bird": "chicken crow duck ostrich owl parrot penguin swan",
    "a fish": "salmon shark",
    "a reptile": "cobra crocodile turtle",
    "an insect": "ant bee butterfly",
    "able to fly": "bat bee butterfly crow duck owl parrot swan",
    "four-legged": "camel cat cow crocodile dog elephant giraffe goat horse lion mouse polar-bear rabbit sheep squirrel"
    " tiger turtle wolf zebra",
    "larger than a person": "camel cow crocodile elephant giraffe horse lion ostrich polar-bear seal shark tiger whale"
    " zebra",
    "at home in the sea": "penguin salmon seal shark whale",
    "at home on ice": "penguin polar-bear seal",
    "a farm animal": "chicken cow duck goat horse sheep",
    "kept as a pet": "cat dog mouse parrot rabbit turtle",
    "kept as a guard": "dog",
    "a hunter": "bat cat cobra crocodile dog lion owl penguin polar-bear salmon seal shark tiger whale wolf",
    "striped": "bee tiger zebra",
    "venomous": "bee cobra",
    "woolly": "sheep",
    "ridden by people": "camel horse",
    "long-necked": "camel giraffe ostrich swan",
    "long-eared": "rabbit",
    "colourful": "butterfly parrot",
}

ANIMALS: dict[str, frozenset[str]] = {
    animal: frozenset(a for a, names in _ANIMALS_BY_ATTRIBUTE.items() if animal in names.split())
    for animal in sorted({name for names in _ANIMALS_BY_ATTRIBUTE.values() for name in names.split()})
}

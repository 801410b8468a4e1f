"""Things with attributes: shapes, whose names say them, and animals, whose names do not."""

from __future__ import annotations

import itertools

_SIZES = ("small", "large")
_COLOURS = ("red", "blue", "green", "yellow")
_FORMS = ("circle", "square", "triangle")

SHAPES = {" ".join(words): frozenset(words) for words in itertools.product(_SIZES, _COLOURS, _FORMS)}

# One line for each attribute; "larger than a person" is by weight.
_ANIMALS_BY_ATTRIBUTE = {
    "a mammal": "bat beaver camel cat cow dog dolphin elephant fox giraffe goat horse lion mouse polar-bear rabbit"
    " seal sheep squirrel tiger whale wolf zebra",
    "a bird": "chicken crow duck eagle ostrich owl parrot penguin swan",
    "a fish": "salmon shark tuna",
    "a reptile": "cobra crocodile turtle",
    "an insect": "ant bee butterfly grasshopper",
    "able to fly": "bat bee butterfly crow duck eagle owl parrot swan",
    "four-legged": "beaver camel cat cow crocodile dog elephant fox giraffe goat horse lion mouse polar-bear rabbit"
    " sheep squirrel tiger turtle wolf zebra",
    "larger than a person": "camel cow crocodile dolphin elephant giraffe horse lion ostrich polar-bear seal shark"
    " tiger tuna whale zebra",
    "at home in the sea": "dolphin salmon seal shark tuna whale penguin",
    "kept on farms": "bee camel chicken cow duck goat horse rabbit sheep",
    "kept as a pet": "cat dog mouse parrot rabbit turtle",
    "striped": "bee tiger zebra",
    "a hunter": "bat cat cobra crocodile dog dolphin eagle fox lion owl penguin polar-bear salmon seal shark tiger tuna"
    " whale wolf",
    "active at night": "bat beaver fox mouse owl",
    "found in Africa": "camel crocodile elephant giraffe lion ostrich zebra",
    "venomous": "bee cobra",
    "a singer of songs": "whale",
    "a builder": "ant beaver bee",
    "horned": "cow goat",
    "white": "polar-bear swan",
    "a climber of trees": "cat squirrel",
    "colourful": "butterfly parrot",
}

ANIMALS: dict[str, frozenset[str]] = {
    animal: frozenset(a for a, names in _ANIMALS_BY_ATTRIBUTE.items() if animal in names.split())
    for animal in sorted({name for names in _ANIMALS_BY_ATTRIBUTE.values() for name in names.split()})
}

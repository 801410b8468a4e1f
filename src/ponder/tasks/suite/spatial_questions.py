"""Spatial: walks, rooms, turned letters, rolling dice and mirrors, each acted out."""

from __future__ import annotations

import itertools
import random

from ponder.tasks.suite.question import SuiteQuestion, number_question, shuffled_choice_question

DIRECTIONS = ("north", "east", "south", "west")
STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))
COMPASS = {
    (0, 1): "north", (1, 1): "north-east", (1, 0): "east", (1, -1): "south-east", (0, -1): "south",
    (-1, -1): "south-west", (-1, 0): "west", (-1, 1): "north-west",
}  # fmt: skip
THINGS = ("bench", "bush", "fountain", "gate", "lantern", "oak", "statue", "well")


def walk(rng: random.Random) -> SuiteQuestion:
    """Turns and steps: in which direction does the start lie?"""
    facing = rng.randrange(4)
    x = y = 0
    sentences = [f"You stand in a field, facing {DIRECTIONS[facing]}."]
    for i in range(rng.randint(3, 4)):
        if i:
            turn = rng.choice((("left", 3), ("right", 1), ("around", 2)))
            facing = (facing + turn[1]) % 4
            sentences.append(f"You turn {turn[0]}.")
        far = rng.randint(1, 9)
        x, y = x + far * STEPS[facing][0], y + far * STEPS[facing][1]
        sentences.append(f"You walk {far} step{'s' * (far > 1)}.")
    if (x, y) == (0, 0):
        return walk(rng)
    way = COMPASS[(_sign(-x), _sign(-y))]
    wrong = _wrong_ways(rng, way, -x, -y)
    return shuffled_choice_question(
        "walk", f"{' '.join(sentences)} In which direction does your starting point lie?", way, wrong, rng
    )


def layout(rng: random.Random) -> SuiteQuestion:
    """Things placed from one another: how does the last lie from the first?"""
    names = rng.sample(THINGS, 4)
    x = y = 0
    sentences = []
    for before, name in itertools.pairwise(names):
        (dx, dy), wind = rng.choice(list(COMPASS.items()))
        far = rng.randint(1, 6)
        x, y = x + far * dx, y + far * dy
        parts = " and ".join(f"{far} metre{'s' * (far > 1)} {w}" for w in wind.split("-"))
        sentences.append(f"The {name} is {parts} of the {before}.")
    if (x, y) == (0, 0):
        return layout(rng)
    way = COMPASS[(_sign(x), _sign(y))]
    wrong = _wrong_ways(rng, way, x, y)
    question = f"{' '.join(sentences)} In which direction does the {names[-1]} lie, seen from the {names[0]}?"
    return shuffled_choice_question("layout", question, way, wrong, rng)


def _wrong_ways(rng: random.Random, way: str, x: int, y: int) -> list[str]:
    """Three other winds, but not the one that lies nearest: eight metres north and one west may be called north."""
    scale = max(abs(x), abs(y))
    nearest = COMPASS[(round(x / scale / 0.83), round(y / scale / 0.83))]  # half of 0.83 is tan(22.5 degrees)
    others = [w for w in COMPASS.values() if w != way]
    wrong = rng.sample(others, 3)
    while nearest in wrong:
        wrong = rng.sample(others, 3)
    return wrong


def turning(rng: random.Random) -> SuiteQuestion:
    """A square of letters, turned and mirrored: which one stands where?"""
    letters = rng.sample("ABCDEFGHKLMNPRSTUVWXYZ", 9)
    grid = [letters[0:3], letters[3:6], letters[6:9]]
    shown = "\n".join(" ".join(row) for row in grid)
    sentences = []
    for _ in range(rng.randint(2, 3)):
        name, act = rng.choice((
            ("turned a quarter clockwise", lambda g: [list(r) for r in zip(*g[::-1], strict=True)]),
            ("turned a quarter anticlockwise", lambda g: [list(r) for r in zip(*g, strict=True)][::-1]),
            ("turned by half", lambda g: [r[::-1] for r in g[::-1]]),
            ("mirrored left to right", lambda g: [r[::-1] for r in g]),
        ))  # fmt: skip
        grid = act(grid)
        sentences.append(name)
    places = {
        "top left": (0, 0),
        "top middle": (0, 1),
        "top right": (0, 2),
        "bottom left": (2, 0),
        "bottom right": (2, 2),
    }
    place, (i, j) = rng.choice(list(places.items()))
    right = grid[i][j]
    wrong = rng.sample([x for x in letters if x != right], 3)
    question = f"This square of letters is {', then '.join(sentences)}:\n{shown}\nWhich letter is then at the {place}?"
    return shuffled_choice_question("turning", question, right, wrong, rng)


def rolling(rng: random.Random) -> SuiteQuestion:
    """A die whose opposite faces add up to 7 is rolled over its edges."""
    top, north = rng.sample(range(1, 7), 2)
    if top + north == 7:
        return rolling(rng)
    east = rng.choice([f for f in range(1, 7) if f not in (top, 7 - top, north, 7 - north)])
    faces = f"On top is {top}, {north} faces north and {east} faces east."
    start = f"A die lies on a table; opposite faces add up to 7. {faces}"
    rolls = [rng.choice(DIRECTIONS) for _ in range(rng.randint(3, 5))]
    for wind in rolls:
        if wind == "north":  # the top goes north, the south face comes up
            top, north = 7 - north, top
        elif wind == "south":
            top, north = north, 7 - top
        elif wind == "east":
            top, east = 7 - east, top
        else:
            top, east = east, 7 - top
    question = f"{start} It is tipped over, one face at a time, to the {', '.join(rolls)}. Which number is on top?"
    return number_question("rolling", question, top)


def mirror(rng: random.Random) -> SuiteQuestion:
    """A clock without figures, seen in a mirror."""
    hour, minute = rng.randint(1, 12), 5 * rng.randint(1, 11)
    true = (12 * 60 - (hour % 12 * 60 + minute)) % (12 * 60)
    wrong = {(hour % 12 * 60 + minute), (true + 60) % 720, (true + 360) % 720} - {true}
    if len(wrong) < 3:
        return mirror(rng)
    question = f"In a mirror, a clock with hands and no figures seems to show {hour}:{minute:02d}. What time is it?"
    return shuffled_choice_question("mirror", question, _time(true), [_time(t) for t in sorted(wrong)], rng)


def _time(minutes: int) -> str:
    return f"{minutes // 60 or 12}:{minutes % 60:02d}"


def _sign(x: int) -> int:
    return (x > 0) - (x < 0)


GENERATORS = (walk, layout, turning, rolling, mirror)

"""Rewards of Visual-RFT, Seg-Zero and VisionReasoner: the published formulas on honest answers, nothing for others.

The references below are the formulas, written out a second time, from what the papers and their code compute.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re

import pytest

import bad_answers
from ponder.verify import REWARDS, SegZero, VisionReasoner, VisualRFTClass, VisualRFTDetection, VisualRFTGrounding
from processor_time import processor_time_below

HONEST = 2_000  # answers of each reward
SIZE = [640, 480]
THINK = "<think>I see it</think>"


def tag(value):
    return f"{THINK}<answer>{value if isinstance(value, str) else json.dumps(value)}</answer>"


def grade(reward, text, gold):
    return reward.grade(text, gold).value


def cells(box):
    return (box[2] - box[0]) * (box[3] - box[1])


def overlap(a, b, edge=0):
    """IoU; edge=1 counts pixels on both edges."""
    wide = min(a[2], b[2]) - max(a[0], b[0])
    high = min(a[3], b[3]) - max(a[1], b[1])
    shared = (wide + edge) * (high + edge) if min(wide, high) + edge > 0 else 0
    total = sum((c[2] - c[0] + edge) * (c[3] - c[1] + edge) for c in (a, b))
    return shared / (total - shared)


def a_box(rng):
    x, y = rng.randint(0, 500), rng.randint(0, 350)
    return [x, y, x + rng.randint(20, 640 - x - 1), y + rng.randint(20, 480 - y - 1)]


def near(rng, box, spread):
    while True:
        x1, y1, x2, y2 = (n + rng.randint(-spread, spread) for n in box)
        if 0 <= x1 < x2 <= 640 and 0 <= y1 < y2 <= 480:
            return [x1, y1, x2, y2]


def with_or_without_thinking(rng, answer):
    """An honest answer may lack its thinking, which costs the format."""
    if rng.random() < 0.2:
        return f"<answer>{answer}</answer>", 0.0
    return f"<think>{rng.choice(['left', 'I look. I see'])}</think>\n<answer>{answer}</answer>", 1.0


def test_detection_equals_the_formula():
    rng = random.Random(0)
    reward = VisualRFTDetection()
    for _ in range(HONEST):
        gold = [a_box(rng) for _ in range(rng.randint(1, 4))]
        given = [near(rng, gold[0], 4), *(near(rng, rng.choice(gold), 60) for _ in range(rng.randint(0, 3)))]
        answer = [{"Position": box, "Confidence": round(rng.random(), 2)} for box in given]
        text, form = with_or_without_thinking(rng, str(answer))
        unique = [item for i, item in enumerate(answer) if item["Position"] not in given[:i]]
        free, rows = dict(enumerate(gold)), []
        for item in sorted(unique, key=lambda item: -item["Confidence"]):
            best = max(free, key=lambda i: overlap(free[i], item["Position"]), default=None)
            value = overlap(free[best], item["Position"]) if free else 0
            if value > 0.5:
                del free[best]
            rows.append((value if value > 0.5 else 0, item["Confidence"]))
        expected = sum(v for v, _ in rows) / max(len(gold), len(rows))
        expected += sum(c if v else 1 - c for v, c in rows) / len(rows)
        truth = {"boxes": gold, "size": SIZE}
        if any(v for v, _ in rows):
            assert grade(reward, text, truth) == pytest.approx(expected + form)
        assert grade(VisualRFTDetection(faithful=True), text, truth) == pytest.approx(expected + form)


def test_class_equals_the_formula():
    rng = random.Random(1)
    names = ["Boeing 737", "Airbus_A320", "Cessna 172", "Fokker 50", "DHC-8", "golden retriever", "pug"]
    for _ in range(HONEST):
        gold, given = rng.choice(names), rng.choice(names)
        text, form = with_or_without_thinking(rng, rng.choice([given, given.upper(), given.replace(" ", "_")]))
        for faithful in (False, True):
            assert grade(VisualRFTClass(faithful), text, gold) == (given == gold) + form


def test_grounding_equals_the_formula():
    rng = random.Random(2)
    for _ in range(HONEST):
        gold = a_box(rng)
        x1, y1, x2, y2 = given = rng.choice([gold, near(rng, gold, 40), a_box(rng)])
        text, form = with_or_without_thinking(rng, f"({x1},{y1}),({x2}, {y2})")
        hull = (max(gold[2], x2) - min(gold[0], x1)) * (max(gold[3], y2) - min(gold[1], y1))
        value = overlap(gold, given)
        union = (cells(gold) + cells(given)) / (1 + value)
        for faithful in (False, True):
            expected = value - (hull - union) / hull + 1 + form
            assert grade(VisualRFTGrounding(faithful), text, {"box": gold}) == pytest.approx(expected)


def test_seg_zero_equals_the_formula():
    rng = random.Random(3)
    for _ in range(HONEST):
        gold = a_box(rng)
        given = near(rng, gold, rng.choice([4, 15, 80]))
        gold_points, points = (
            [[rng.randint(box[0], box[2]), rng.randint(box[1], box[3])] for _ in range(2)] for box in (gold, given)
        )
        if rng.random() < 0.1:
            points[1] = [0, 0]
        answer = {"bbox": given, "points_1": points[0], "points_2": points[1]}
        text, form = with_or_without_thinking(rng, json.dumps(answer))
        inside = all(given[0] <= x <= given[2] and given[1] <= y <= given[3] for x, y in points)
        pairings = [sum(math.dist(p, g) for p, g in zip(points, order, strict=True)) / 2
                    for order in itertools.permutations(gold_points)]  # fmt: skip
        expected = form + 1 + (overlap(gold, given, 1) > 0.5) + (inside and min(pairings) < 100)
        expected += sum(abs(a - b) for a, b in zip(gold, given, strict=True)) / 4 < 10
        for faithful in (False, True):
            truth = {"box": gold, "points": gold_points, "size": SIZE}
            assert grade(SegZero(faithful), text, truth) == expected


def test_vision_reasoner_equals_the_formula():
    rng = random.Random(4)

    def earned(given, gold):
        box, point = given["bbox_2d"], given["point_2d"]
        inside = box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]
        edges = sum(abs(a - b) for a, b in zip(box, gold["box"], strict=True)) / 4
        return (overlap(box, gold["box"], 1) > 0.5) + (edges < 10) + (inside and math.dist(point, gold["point"]) < 30)

    for _ in range(HONEST):
        gold = [{"box": box, "point": [(box[0] + box[2]) // 2, (box[1] + box[3]) // 2]}
                for box in (a_box(rng) for _ in range(rng.randint(1, 3)))]  # fmt: skip
        given = []
        for _ in range(rng.randint(1, 3)):
            box = near(rng, rng.choice(gold)["box"], rng.choice([5, 30]))
            point = [rng.randint(box[0], box[2]), rng.randint(box[1], box[3])]
            given.append({"bbox_2d": box, "point_2d": rng.choice([point, [0, 0]])})
        text, form = with_or_without_thinking(rng, json.dumps(given))
        few, many = sorted([given, gold], key=len)
        best = max(
            sum(earned(*((a, b) if few is given else (b, a))) for a, b in zip(few, order, strict=False))
            for order in itertools.permutations(many)
        )
        expected = form + 2 + best / max(len(gold), len(given)) + 1
        for faithful in (False, True):
            assert grade(VisionReasoner(faithful), text, {"objects": gold, "size": SIZE}) == pytest.approx(expected)


@pytest.mark.parametrize(("sentences", "expected"), [("a. b. c", 1), ("a. a. b", 1), ("a. a. a", 0), ("a. a. b. b", 0)])
def test_sentences_that_come_again_cost_one_point(sentences, expected):
    text = f"<think>Look. {sentences}. Now</think><answer>{json.dumps([ITEM])}</answer>"
    assert grade(VisionReasoner(), text, GOLD["vision_reasoner"]) == 6 + expected


BOX = [200, 100, 400, 300]
GOLD = {
    "visual_rft_detection": {"boxes": [BOX, [10, 10, 60, 90]], "size": SIZE},
    "visual_rft_class": "golden retriever",
    "visual_rft_grounding": {"box": BOX},
    "seg_zero": {"box": BOX, "points": [[250, 200], [350, 250]], "size": SIZE},
    "vision_reasoner": {"objects": [{"box": BOX, "point": [300, 200]}], "size": SIZE},
}
HONEST_MISS = 1.0  # a sound answer that is wrong in everything earns its format
POINTS = {"points_1": [250, 200], "points_2": [350, 250]}
ANSWERED = json.dumps({"bbox": BOX, **POINTS})
ITEM = {"bbox_2d": BOX, "point_2d": [300, 200]}


def detected(box, confidence=1.0):
    return {"Position": box, "Confidence": confidence}


# What earns nothing at all: the answer is none, or cannot be.
FARMING = {
    "visual_rft_detection": [
        tag([]), tag("[]"), tag([detected(BOX, -5)]), tag([detected(BOX, 7)]), tag([detected([0, 0, 5, 5], -5)]),
        tag([detected([400, 300, 200, 100], 0)]), tag([detected([0, 0, 0, 0], 0)]), tag([detected([0, 0, 9999, 9999])]),
        tag([detected(["a", "b", "c", "d"], 0)]), tag([{"Position": BOX}]), tag([{"Confidence": 0}]), tag([BOX]),
        tag([detected([x, y, x + 30, y + 30], 0) for x in range(0, 600, 20) for y in range(0, 440, 20)]),
        tag([detected(BOX, math.inf)]), f"{THINK}<answer>{[detected(BOX)]}</answer><answer>[]</answer>",
        f"<think>{tag([detected(BOX)])}</think><answer>none</answer>", str([detected(BOX)]),
        "<think></think><answer></answer>",
    ],
    "visual_rft_class": [
        "<think></think><answer></answer>", f"{THINK}<answer></answer>", f"{THINK}<answer> </answer>",
        "golden retriever", f"{THINK}golden retriever", f"{THINK}<answer>_</answer><answer>golden retriever</answer>",
        "<think><answer>golden retriever</answer></think>", "",
        f"{THINK}<answer>pug</answer><answer>golden retriever</answer>",
        "<answer>golden retriever</answer> or <answer>pug</answer>",
    ],
    "visual_rft_grounding": [
        tag(corners) for corners in
        ["(999,999),(0,0)", "(400,500),(0,0)", "(400,100),(200,300)", "(200,300),(400,100)", "(200,100),(200,300)",
         "(0,0),(0,0)", "(0,0),(5000,5000)", "(-1,0),(400,300)", "(200,100)", "", "200,100,400,300 maybe",
         "(200,100),(400,300),(0,0),(5,5)", "(200,100),(400,300)(200,100),(400,300)", "(1e3,1),(2,2)"]
    ],
    "seg_zero": [
        f"<think>{ANSWERED}</think><answer>no idea</answer>", f"{ANSWERED}{THINK}<answer>no idea</answer>",
        ANSWERED, tag("{}"), tag("[]"), tag({"bbox": BOX}), tag({"bbox": BOX, "points_1": [250, 200]}),
        tag({"bbox": ["a", "b", "c", "d"], "points_1": ["x", "y"], "points_2": ["x", "y"]}),
        tag({"bbox": BOX[::-1], **POINTS}), tag({"bbox": [0, 0, 0, 0], **POINTS}),
        tag({"bbox": [-9000, -9000, 9000, 9000], **POINTS}),
        tag({"bbox": BOX, "points_1": [1, 1, 1], "points_2": [1, 1]}),
        tag({"my bbox": BOX, "point": [1, 1], "points": [2, 2]}),
        tag({"bbox": "abcd", "points_1": "ab", "points_2": "cd"}),
        f"{THINK}<answer>{ANSWERED}</answer><answer>{ANSWERED}</answer>",
    ],
    "vision_reasoner": [
        tag("[]"), tag("{}"), tag([{"bbox_2d": ["a", "b", "c", "d"], "point_2d": ["x", "y"]}]), tag([{"bbox_2d": BOX}]),
        tag([{"point_2d": [300, 200]}]), tag([{"bbox_2d": [0, 0, 0, 0], "point_2d": [0, 0]}]),
        tag([{"bbox_2d": BOX[::-1], "point_2d": [300, 200]}]), tag([ITEM] * 121),
        tag([{"bbox_2d": [[]] * 4, "point_2d": [[]] * 2}]),
        tag([{"bbox_2d": [None] * 4, "point_2d": [None] * 2}]), tag([[], []]), tag([None]), tag("no idea"), tag(7),
        f"<think>{tag([ITEM])}</think><answer>no idea</answer>",
        tag([{"bbox_2d": [0, 0, 1e9, 1e9], "point_2d": [300, 200]}]),
        f"{THINK}<answer>[]</answer><answer>{json.dumps([ITEM])}</answer>", "I say nothing. Nothing at all",
    ],
}  # fmt: skip


def test_farming_answers_earn_nothing():
    paid = [
        (name, text, value)
        for name, texts in FARMING.items()
        for text in texts
        if (value := grade(REWARDS[name](), text, GOLD[name])) != 0
    ]
    assert sum(map(len, FARMING.values())) >= 60 and paid == []


def test_published_formulas_pay_for_farming():
    """What the closed rules are for: most of these answers earn something from the formulas as they are."""
    paid = {
        name: sum((grade(type(REWARDS[name]())(faithful=True), text, GOLD[name]) or 0) > 0 for text in texts)
        for name, texts in FARMING.items()
    }
    assert all(paid[name] >= 5 for name in FARMING), paid


@pytest.mark.parametrize(
    ("name", "text", "faithful", "closed"),
    [
        ("visual_rft_grounding", tag("(999,999),(0,0)"), 26.95, 0.0),
        ("visual_rft_grounding", tag("(400,500),(0,0)"), 7.0, 0.0),
        ("visual_rft_detection", tag([detected([0, 0, 9, 9], 0)]), 2.0, HONEST_MISS),
        ("visual_rft_detection", tag([detected([0, 0, 9, 9], -5)]), 2.0, 0.0),
        ("visual_rft_class", tag("a"), 1.0, HONEST_MISS),  # "golden retriever" has no a
        ("visual_rft_class", tag("e"), 2.0, HONEST_MISS),
        ("visual_rft_class", tag("pug, golden retriever, poodle"), 2.0, HONEST_MISS),
        ("seg_zero", FARMING["seg_zero"][0], 5.0, 0.0),
        ("vision_reasoner", tag([{"bbox_2d": ["a"] * 4, "point_2d": ["x", "y"]}]), 4.0, 0.0),
        ("vision_reasoner", tag("[]"), 2.0, 0.0),
    ],
)
def test_known_holes_are_open_only_where_faithful(name, text, faithful, closed):
    kind, gold = type(REWARDS[name]()), GOLD[name]
    assert grade(kind(faithful=True), text, gold) == pytest.approx(faithful, abs=1e-4)
    assert grade(kind(), text, gold) == closed


@pytest.mark.parametrize("name", GOLD)
def test_perfect_answer_earns_the_maximum(name):
    answers = {
        "visual_rft_detection": (tag([detected(BOX), detected([10, 10, 60, 90])]), 3),
        "visual_rft_class": (tag("Golden_Retriever"), 2),
        "visual_rft_grounding": (tag("(200,100),(400,300)"), 3),
        "seg_zero": (tag(ANSWERED), 5),
        "vision_reasoner": (tag([ITEM]), 7),
    }
    text, best = answers[name]
    for faithful in (False, True):
        assert grade(type(REWARDS[name]())(faithful), text, GOLD[name]) == pytest.approx(best)
    assert REWARDS[name]().name == name


@pytest.mark.parametrize("name", GOLD)
@pytest.mark.parametrize("gold", [None, {}, 7, {"box": [1, 1, 0, 0]}, {"boxes": []}, {"objects": [{}]}, ""])
def test_bad_gold_is_undecided(name, gold):
    assert grade(REWARDS[name](), tag("x"), gold) is None


@pytest.mark.parametrize("name", GOLD)
@pytest.mark.parametrize("faithful", [False, True])
def test_hostile_answers_are_decided(name, faithful):
    reward = type(REWARDS[name]())(faithful)
    for text in [*bad_answers.texts(), *(t for texts in FARMING.values() for t in texts)]:
        with processor_time_below(2.0, text[:60]):
            score = reward.grade(text, GOLD[name])
        assert score.value is not None, (text[:100], score)


def test_reasons_name_the_terms():
    assert re.fullmatch("IoU 1, confidence 1, format 1", VisualRFTDetection().grade(
        tag([detected(BOX), detected([10, 10, 60, 90])]), GOLD["visual_rft_detection"]).reason)  # fmt: skip

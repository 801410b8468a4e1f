"""Jobs on pictures, end to end at the smallest size: imitation, GRPO on overlap, evaluation, and their checks."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ponder.cli import recipe_files
from ponder.errors import TaskError
from ponder.models.load import load_policy
from ponder.pictures.message_parts import data_url
from ponder.pictures.picture import Picture
from ponder.pipelines.preflight.checks import PreflightError
from ponder.pipelines.stages import Stages
from ponder.runs import read_metrics, read_traces


@pytest.fixture(scope="module")
def visual_rft():
    recipe_files.add_to_import_path(recipe_files.recipe_folders())
    import visual_rft

    return visual_rft


@pytest.fixture(scope="module")
def done(visual_rft, tmp_path_factory: pytest.TempPathFactory) -> tuple[Stages, Path]:
    job = visual_rft.recipe(cold_start_steps=3, steps=2, problems_per_step=2, group_size=4, limit=3)
    folder = tmp_path_factory.mktemp("run") / "visual_rft"
    job(folder)
    return job, folder


def test_recipe_runs_to_its_end(done):
    _, folder = done
    rows = read_metrics(folder / "grpo")
    assert len(rows) == 2
    assert {len(list(read_traces(folder / name))) for name in ("start-overlap", "overlap", "blind-overlap")} == {3}


def test_demo_shows_the_same_pictures_before_and_after(done, tmp_path):
    _, folder = done
    place = Path(__file__).parents[2] / "docs" / "picture_recipes.py"
    spec = importlib.util.spec_from_file_location("picture_recipes_of_docs", place)
    assert spec is not None and spec.loader is not None
    docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docs)
    shown = docs.sampled_boxes(folder)
    stages = [{t.problem.id: t for _, t in read_traces(folder / name)} for name in ("start-overlap", "overlap")]
    assert len(shown) == len(stages[0]) == 3
    for row, problem in zip(shown, sorted(stages[0]), strict=True):
        pair = [traces[problem] for traces in stages]
        assert all(t.problem.messages[-1]["content"][0] == row["image"] for t in pair)
        assert all(t.problem.answer["box"] == row["box"] for t in pair)
        assert [text for text, _ in row["answers"]] == [t.text(1) for t in pair]
    docs.draw_boxes(shown, tmp_path / "boxes.png")
    assert (tmp_path / "boxes.png").stat().st_size > 1000


def test_stored_traces_keep_pictures_and_their_ids(done):
    _, folder = done
    policy = load_policy(str(folder / "grpo"))
    assert policy.net.config.vision is not None
    for _, trace in read_traces(folder / "grpo"):
        assert np.array_equal(policy.encode(trace.problem.messages), trace.steps[0].token_ids)
        assert (trace.steps[0].token_ids < 0).sum() == policy.net.config.vision.tokens


def test_same_command_goes_on_with_nothing_left_to_do(done):
    job, folder = done
    before = (folder / "grpo" / "traces.bin").read_bytes()
    job(folder)
    assert (folder / "grpo" / "traces.bin").read_bytes() == before


def test_run_is_the_same_to_the_bit(visual_rft, done, tmp_path):
    _, folder = done
    rl = visual_rft.recipe(cold_start_steps=3, steps=2, problems_per_step=2, group_size=4, limit=3).stages[2].job
    replace(rl, model=str(folder / "start"))(tmp_path / "again")
    one, other = ([t.steps for _, t in read_traces(f)] for f in (folder / "grpo", tmp_path / "again"))
    pairs = [(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)]
    assert all(np.array_equal(a.token_ids, b.token_ids) for a, b in pairs)
    assert all(a.logprobs is None or np.array_equal(a.logprobs, b.logprobs) for a, b in pairs)


def test_preflight_fails_for_a_model_that_does_not_see(visual_rft, done, tmp_path, monkeypatch):
    """As if training left the pictures out: every place gets the same vector."""
    _, folder = done
    rl = replace(visual_rft.recipe(steps=1, problems_per_step=2).stages[2].job, model=str(folder / "start"))
    from ponder.nets import decoder

    monkeypatch.setattr(decoder, "embed_pictures", lambda x_TE, *_: x_TE)
    with pytest.raises(PreflightError, match="pictures: a grey picture changes"):
        rl(tmp_path / "blind")


def test_preflight_passes_for_a_model_that_sees(done):
    job, folder = done
    fine_tune = job.stages[0].job
    policy = load_policy(str(folder / "start"))
    named = {check.name: check for check in fine_tune.preflight_report(policy).checks}
    assert named["pictures"].passed and "nats" in named["pictures"].value


def test_blind_task_shows_grey_pictures(visual_rft, done):
    job, folder = done
    blind, seen = job.stages[4].job.task, job.stages[3].job.task
    assert blind.test[0].answer == seen.test[0].answer and blind.test[0].messages != seen.test[0].messages
    policy = load_policy(str(folder / "grpo"))
    prompts = {policy.encode(p.messages)[policy.encode(p.messages) < 0].tobytes() for p in blind.test[:5]}
    assert len(prompts) == 1
    assert visual_rft.SAMPLING.max_tokens > len(policy.tokens(seen.gold(seen.test[0])))


def picture_row(url: str) -> dict:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "red circle"}]
    return {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "[1,2,3,4]"}]}


def test_conversations_in_a_file_may_show_pictures(visual_rft, done, tmp_path):
    _, folder = done
    url = data_url(Picture(64, 64, bytes(64 * 64 * 3)))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(picture_row(url)) + "\n" for _ in range(4)))
    fine_tune = visual_rft.recipe(cold_start_steps=1).stages[0].job
    job = replace(
        fine_tune, data=str(tmp_path / "rows.jsonl"), model=str(folder / "start"), template=None, batch_size=2
    )
    assert job(tmp_path / "run").net.config.vision is not None
    (tmp_path / "rows.jsonl").write_text(json.dumps(picture_row("https://example.org/cat.png")))
    with pytest.raises(TaskError, match=r"line 1 is not a conversation .*nothing is fetched"):
        job(tmp_path / "other")


@pytest.mark.nightly
def test_other_recipes_run_to_their_end(visual_rft, tmp_path):
    import visual_counting
    import visual_segmentation

    for recipe, stage in ((visual_counting, "accuracy"), (visual_segmentation, "overlap")):
        job = recipe.recipe(cold_start_steps=2, steps=1, problems_per_step=2, group_size=2, limit=2)
        job(tmp_path / recipe.__name__)
        assert len(list(read_traces(tmp_path / recipe.__name__ / stage))) == 2
        task = job.stages[2].job.task
        gold = task.gold(task.train[0])
        assert len(gold) < recipe.SAMPLING.max_tokens  # one token for each character


def test_reported_pictures_are_neither_trained_on_nor_those_of_validation(visual_rft):
    train, test, validation = (
        {p.messages[-1]["content"][0]["image_url"]["url"] for p in problems[:150]}
        for problems in (
            visual_rft.recipe().stages[2].job.task.train,
            visual_rft.recipe().stages[3].job.task.test,
            visual_rft.recipe(pictures="validation").stages[3].job.task.test,
        )
    )
    assert not test & train and not test & validation and not validation & train


def test_noisy_teacher_errs_as_far_as_it_says_and_grading_does_not(visual_rft):
    from _shapes import CountAlike, FindBox, FindMask

    task, noisy = FindBox(), FindBox(teacher_noise=6)
    problems = task.train[:60]
    assert [noisy.verifier.grade(task.gold(p), p.answer).value for p in problems] == [1.0] * 60
    boxes = [noisy.teacher_box(p) for p in problems]
    assert boxes == [noisy.teacher_box(p) for p in problems]  # the same whenever the problem comes
    errors = np.array([np.subtract(box, p.answer["box"]) for box, p in zip(boxes, problems, strict=True)])
    assert np.abs(errors).max() == 6 and (errors != 0).mean() > 0.7
    assert all(0 <= x1 < x2 <= 64 and 0 <= y1 < y2 <= 64 for x1, y1, x2, y2 in boxes)
    overlaps = [noisy.verifier.grade(noisy.gold(p), p.answer).value for p in problems]
    assert 0.3 < np.mean(overlaps) < 0.9 and min(overlaps) > 0
    counted, guessed = CountAlike(), CountAlike(teacher_noise=0.5)
    right = [guessed.gold(p) == counted.gold(p) for p in counted.train[:200]]
    assert 0.5 < np.mean(right) < 0.7  # a half, and a fifth of the other half
    masks = FindMask(teacher_noise=6)
    for p in masks.train[:20]:
        answer = json.loads(masks.gold(p).partition("<answer>")[2].removesuffix("</answer>"))
        x1, y1, x2, y2 = answer["bbox"]
        assert answer["bbox"] == masks.teacher_box(p)
        assert all(x1 <= x <= x2 and y1 <= y <= y2 for x, y in (answer["points_1"], answer["points_2"]))

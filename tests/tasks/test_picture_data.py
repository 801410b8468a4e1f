"""Rows, COCO-style and RefCOCO-style files with pictures: what they become, and what is wrong with bad ones."""

from __future__ import annotations

import base64
import io
import json
import pickle
import struct
import zlib

import numpy as np
import pytest

from ponder.errors import PonderError, TaskError, UsageError
from ponder.pictures.message_parts import content_pictures, data_url, place_pictures
from ponder.pictures.picture import InvalidPicture, Picture
from ponder.pictures.picture_files import picture_size, read_picture
from ponder.pictures.png import SIGNATURE, write_png
from ponder.pipelines.problems.conversations import read_conversations
from ponder.tasks import CocoTask, CustomTask, HubDataset, QuestionFile, RefCocoTask
from ponder.tasks.datasets.box_frames import pixel_box

RNG = np.random.default_rng(0)


def picture(width=40, height=30):
    return Picture.from_pixels(RNG.integers(0, 255, (height, width, 3)).astype(np.uint8))


def bomb():
    """A PNG whose header promises 10^10 pixels."""
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    return SIGNATURE + chunk


def shown(problem):
    return [p for message in problem.messages for p in content_pictures(message["content"])]


def rows_file(folder, rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("form", ["path", "base64", "data_url", "hf_bytes", "hf_path", "list"])
def test_questions_read_a_picture_in_every_form(tmp_path, form):
    given = picture()
    data = write_png(given)
    (tmp_path / "a.png").write_bytes(data)
    encoded = base64.b64encode(data).decode()
    value = {
        "path": "a.png", "base64": encoded, "data_url": data_url(given), "hf_bytes": {"bytes": encoded, "path": None},
        "hf_path": {"bytes": None, "path": "a.png"}, "list": ["a.png"],
    }[form]  # fmt: skip
    task = QuestionFile(data=rows_file(tmp_path, [{"q": "How many?", "answer": 3, "image": value}]), question="q",
                        image="image", answer_type="number")  # fmt: skip
    (problem,) = task.test
    assert shown(problem) == [given] and "How many?" in problem.question
    assert task.verifier.grade(task.gold(problem), problem.answer).value == 1


def test_parquet_and_shards_with_hugging_face_images_are_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    from ponder.tasks.datasets.dataset_sources import parquet_as_json_lines

    given = picture()
    table = pyarrow.Table.from_pylist(
        [{"image": {"bytes": write_png(given), "path": "x.png"}, "q": "a", "answer": "b"}]
    )
    parquet.write_table(table, tmp_path / "rows.parquet")
    (tmp_path / "joined.jsonl").write_text(parquet_as_json_lines(tmp_path / "rows.parquet"))
    for name in ("rows.parquet", "joined.jsonl"):
        task = QuestionFile(data=str(tmp_path / name), question="q", image="image", answer_type="text")
        assert shown(task.test[0]) == [given]


def test_hub_data_set_passes_the_columns_on():
    task = HubDataset(repo="a/b", image_column="image", answer_type="box", box_format="xywh", box_frame="fractions")
    questions = task._questions_in("", "")
    assert (questions.image, questions.box_format, questions.box_frame) == ("image", "xywh", "fractions")
    assert task.answer_spec == questions.answer_spec


def test_pillow_images_and_bytes_are_read(tmp_path):
    image = pytest.importorskip("PIL.Image")
    given = picture()
    rows = [{"prompt": f"What is {i}?", "image": value, "kind": "x"}
            for i, value in enumerate([image.fromarray(given.pixels), write_png(given)] * 10)]  # fmt: skip
    task = CustomTask(data=rows, rewards=lambda completions, **_: [1.0] * len(completions), image_column="image")
    problems = [*task.train, *task.test]
    assert len(problems) == 20 and all(shown(p) == [given] for p in problems)
    assert problems[0].answer["columns"] == {"kind": "x"}


def test_jpeg_is_read_through_pillow_and_without_it_the_package_is_named(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    smooth = np.add.outer(np.arange(30), np.arange(40))[..., None].repeat(3, 2).astype(np.uint8)
    image.fromarray(smooth).save(buffer, "JPEG", quality=95)
    data = buffer.getvalue()
    read = read_picture(data)
    assert read.size == picture_size(data) == (40, 30)
    assert np.abs(read.pixels.astype(int) - smooth).max() < 8
    for cut in (30, len(data) // 2):
        with pytest.raises(InvalidPicture, match=r"ends too early|header cannot be read"):
            read_picture(data[:cut])
    url = "data:image/jpeg;base64," + base64.b64encode(data).decode()
    part = {"type": "image_url", "image_url": {"url": url}}
    assert content_pictures([part])[0] == read
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(UsageError, match=r"needs the package 'pillow': pip install 'ponder\[pictures\]'"):
        read_picture(data)


def test_trl_places_take_the_pictures_in_order():
    a, b = picture(), picture()
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"}]}]
    placed = place_pictures(messages, [a, b])
    assert content_pictures(placed[0]["content"]) == [a, b] and messages[0]["content"][0] == {"type": "image"}
    with pytest.raises(UsageError, match="2 places for 1 pictures"):
        place_pictures(messages, [a])
    with pytest.raises(UsageError, match="no message of the user"):
        place_pictures([{"role": "system", "content": "x"}], [a])


def test_same_question_about_another_picture_is_another_problem(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.png").write_bytes(write_png(picture()))
    test = rows_file(tmp_path, [{"question": "Count.", "answer": 1, "image": "a.png"}])
    train = tmp_path / "train.jsonl"
    train.write_text(
        "".join(json.dumps({"question": "Count.", "answer": 1, "image": f"{n}.png"}) + "\n" for n in "abc")
    )
    task = QuestionFile(data=test, train_data=str(train), image="image", answer_type="number")
    assert len(task.train) == 2


@pytest.mark.parametrize(
    ("value", "form", "frame", "expected"),
    [
        ([4, 6, 10, 9], "xyxy", "pixels", [4, 6, 10, 9]),
        ([4, 6, 10, 9], "xywh", "pixels", [4, 6, 14, 15]),
        ([100, 200, 500, 1000], "xyxy", "thousandths", [4, 6, 20, 30]),
        ([0.1, 0.2, 0.4, 0.8], "xywh", "fractions", [4, 6, 20, 30]),
        ([-0.4, 0, 40.6, 30], "xyxy", "pixels", [0, 0, 40, 30]),  # rounded by its file
    ],
)
def test_boxes_become_pixels(value, form, frame, expected):
    assert pixel_box(value, (40, 30), form, frame) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ([100, 200, 500, 900], "leaves its picture of 40 x 30 pixels .* another frame; name it with box_frame"),
        ([0.1, 0.2, 0.4, 0.8], "give box_frame=fractions"),
        ([10, 5, 4, 9], "empty or inside out"),
        ([1, 2, 3], "not 4 numbers"),
        ("x", "not 4 numbers"),
        ([1, 2, float("nan"), 4], "finite"),
    ],
)
def test_boxes_in_another_frame_are_refused(value, match):
    with pytest.raises(TaskError, match=match):
        pixel_box(value, (40, 30))


@pytest.mark.parametrize(
    ("image", "match"),
    [
        ("none.png", "none.png is missing; paths are relative to"),
        ("https://example.org/a.png", "download it"),
        ("cut.png", "ends too early|no header"),
        ("bomb.png", "100,000 x 100,000 pixels, more than"),
        ("text.png", "neither PNG nor JPEG"),
        ("!" * 200, "not valid base64"),
        (None, "give a path, bytes, base64 or a data URL"),
    ],
)
def test_bad_pictures_are_named_with_their_row(tmp_path, image, match):
    (tmp_path / "cut.png").write_bytes(write_png(picture())[:20])
    (tmp_path / "bomb.png").write_bytes(bomb())
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "good.png").write_bytes(write_png(picture()))
    rows = [{"question": "a?", "answer": 1, "image": "good.png"}, {"question": "b?", "answer": 1, "image": image}]
    task = QuestionFile(data=rows_file(tmp_path, rows), image="image", answer_type="number")
    with pytest.raises(TaskError, match=rf"line 2: .*({match})"):
        _ = task.test


def test_a_picture_truncated_after_its_header_is_named_when_its_problem_is_read(tmp_path):
    (tmp_path / "cut.png").write_bytes(write_png(picture())[:-30])
    task = QuestionFile(data=rows_file(tmp_path, [{"question": "a?", "answer": 1, "image": "cut.png"}]), image="image",
                        answer_type="number")  # fmt: skip
    with pytest.raises(TaskError, match=r"cut.png: the PNG ends too early"):
        _ = task.test[0]


def coco(folder, number=6, **changes):
    """Images 1 to n with two cats and a dog each; a crowd of dogs in the last."""
    folder.mkdir(exist_ok=True)
    for i in range(1, number + 1):
        (folder / f"{i}.png").write_bytes(write_png(picture()))
    boxes = [(7, [1, 2, 10, 8]), (7, [20.5, 4, 12, 20]), (9, [5, 5, 30, 20])]
    annotations = [
        {"id": 10 * i + j, "image_id": i, "category_id": category, "bbox": box, "iscrowd": 0}
        for i in range(1, number + 1) for j, (category, box) in enumerate(boxes)
    ]  # fmt: skip
    annotations.append({"id": 999, "image_id": number, "category_id": 9, "bbox": [0, 0, 40, 30], "iscrowd": 1})
    content = {
        "images": [{"id": i, "file_name": f"{i}.png", "width": 40, "height": 30} for i in range(1, number + 1)],
        "annotations": annotations,
        "categories": [{"id": 7, "name": "cat"}, {"id": 9, "name": "dog"}],
    }
    for key, change in changes.items():
        change(content[key])
    (folder / "instances.json").write_text(json.dumps(content))
    return {"data": str(folder / "instances.json"), "images": str(folder), "held_out_tenths": 5}


def test_coco_boxes_and_counts(tmp_path):
    files = coco(tmp_path / "coco")
    task = CocoTask(**files)
    problems = [*task.train, *task.test]
    assert len(problems) == 11  # cats in six images, dogs in the five without a crowd of them
    cats = next(p for p in problems if p.tags["category"] == "cat")
    assert cats.answer == {"boxes": [[1, 2, 11, 10], [20.5, 4, 32.5, 24]], "size": [40, 30]}
    assert shown(cats)[0].size == (40, 30) and "40 pixels wide and 30 pixels high" in cats.question
    assert task.verifier.grade(task.gold(cats), cats.answer).value == 1
    assert task.verifier.grade("<answer>[[1, 2, 11, 10]]</answer>", cats.answer).value == 0.5
    sides = [{p.id.split("/")[2] for p in side} for side in (task.train, task.test)]
    assert not sides[0] & sides[1]
    count = CocoTask(**files, ask="count", categories=("cat",))
    assert {p.answer for p in [*count.train, *count.test]} == {2}
    assert count.verifier.grade(count.gold(count.test[0]), 2).value == 1


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"annotations": lambda a: a[0].update(bbox=[500, 10, 60, 20])}, "annotation 1: .*another frame"),
        ({"annotations": lambda a: a[1].update(image_id=77)}, "annotation 2: its image 77"),
        ({"annotations": lambda a: a[1].pop("bbox")}, "annotation 2: malformed"),
        ({"images": lambda i: i[0].update(file_name="gone.png")}, "gone.png is missing"),
        ({"images": lambda i: i[0].pop("width")}, "images or categories is malformed"),
    ],
)
def test_coco_faults_are_one_sentence(tmp_path, changes, match):
    with pytest.raises(TaskError, match=match):
        _ = CocoTask(**coco(tmp_path / "coco", **changes)).test


def test_coco_picture_of_another_size_is_refused(tmp_path):
    files = coco(tmp_path / "coco")
    for i in range(1, 7):
        (tmp_path / "coco" / f"{i}.png").write_bytes(write_png(picture(20, 15)))
    with pytest.raises(
        TaskError, match="has 20 x 15 pixels, but its file says 40 x 30: boxes would be in another frame"
    ):
        _ = CocoTask(**files).test[0]


@pytest.mark.parametrize("text", ["[]", "{", '{"images": []}'])
def test_coco_file_of_another_form_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(TaskError, match=r"no COCO-style file|not JSON"):
        _ = CocoTask(data=str(tmp_path / "x.json"), images=str(tmp_path)).test


def references(folder):
    return [
        {"ref_id": i, "ann_id": 10 * i, "image_id": i, "split": "train" if i < 5 else "val", "category_id": 7,
         "sentences": [{"sent": "left cat", "raw": "Left cat"}, {"raw": "the small one"}]}
        for i in range(1, 7)
    ]  # fmt: skip


@pytest.mark.parametrize("protocol", [None, 0, 2])
def test_refcoco_references_from_json_and_pickle(tmp_path, protocol):
    files = coco(tmp_path / "coco")
    path = tmp_path / ("refs.json" if protocol is None else "refs(unc).p")
    rows = references(tmp_path)
    path.write_bytes(json.dumps(rows).encode() if protocol is None else pickle.dumps(rows, protocol))
    task = RefCocoTask(data=str(path), instances=files["data"], images=files["images"], threshold=0.5)
    assert (len(task.train), len(task.test)) == (8, 4)
    problem = task.test[0]
    assert (
        problem.answer == {"box": [1, 2, 11, 10], "size": [40, 30]} and "Where is this: left cat?" in problem.question
    )
    assert task.verifier.grade(task.gold(problem), problem.answer).value == 1
    assert task.verifier.grade("<answer>[20, 4, 32, 24]</answer>", problem.answer).value == 0
    assert len(shown(problem)) == 1


class Evil:
    def __reduce__(self):
        return print, ("code ran",)


def test_refcoco_pickle_that_names_code_is_refused(tmp_path, capsys):
    files = coco(tmp_path / "coco")
    path = tmp_path / "refs.p"
    for data in (pickle.dumps([Evil()]), b"\x80\x04junk", b""):
        path.write_bytes(data)
        with pytest.raises(TaskError, match="no pickle of plain data"):
            _ = RefCocoTask(data=str(path), instances=files["data"], images=files["images"]).test
    assert "code ran" not in capsys.readouterr().out


def test_refcoco_faults_and_missing_splits_are_one_sentence(tmp_path):
    files = coco(tmp_path / "coco")
    rows = references(tmp_path)
    rows[0]["ann_id"] = 12345
    path = tmp_path / "refs.json"
    path.write_text(json.dumps(rows))
    settings = {"data": str(path), "instances": files["data"], "images": files["images"]}
    with pytest.raises(TaskError, match=r"reference 1: .*annotation 12345 is not in"):
        _ = RefCocoTask(**settings).test
    with pytest.warns(UserWarning, match="were left out"), pytest.raises(TaskError, match="its splits: train, val"):
        _ = RefCocoTask(**settings, bad_rows="skip", test_split="testA").test


def test_settings_that_cannot_be_are_refused(tmp_path):
    for make in (
        lambda: QuestionFile(data="x", answer_type="box"),
        lambda: QuestionFile(data="x", image="i", answer_type="box", box_format="xx"),
        lambda: CocoTask(data="x", images="y", ask="masks"),
        lambda: RefCocoTask(data="x", instances="y", images="z", test_split="train"),
    ):
        with pytest.raises(PonderError):
            make()


def test_rows_in_memory_are_kept_as_text():
    """A job that holds them is saved as JSON."""
    given = picture()
    rows = [{"prompt": f"What is {i}?", "image": [{"bytes": write_png(given)}, "a.png"]} for i in range(3)]
    task = CustomTask(data=rows, rewards=lambda completions, **_: [1.0] * len(completions), image_column="image")
    assert json.loads(json.dumps(task.data))[0]["image"] == [data_url(given), "a.png"]


@pytest.mark.parametrize("form", ["messages", "prompt", "pair", "places"])
def test_conversations_with_a_column_of_pictures(tmp_path, form):
    given = picture()
    (tmp_path / "a.png").write_bytes(write_png(given))
    said = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "There."}]
    row = {
        "messages": {"messages": said, "images": ["a.png"]},
        "prompt": {"prompt": "Where?", "completion": "There.", "image": "a.png"},
        "pair": {"prompt": "Where?", "chosen": "a", "rejected": "b", "images": ["a.png"]},
        "places": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Where?"}, {"type": "image"}]},
                                said[1]], "images": ["a.png"]},
    }[form]  # fmt: skip
    (problem,) = read_conversations(rows_file(tmp_path, [row]), pairs=form == "pair")
    assert shown(problem) == [given] and problem.question == "Where?"
    places = [part["type"] for part in problem.messages[0]["content"]]
    assert places == (["text", "image_url"] if form == "places" else ["image_url", "text"])
    with pytest.raises(TaskError, match=r"line 1 is not a conversation .*gone.png is missing"):
        read_conversations(rows_file(tmp_path, [{"prompt": "?", "completion": "!", "image": "gone.png"}]))

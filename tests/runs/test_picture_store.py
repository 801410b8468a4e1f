"""Pictures of a run are kept once, and readers get the messages as they were."""

from __future__ import annotations

import numpy as np
import pytest

from ponder.errors import RunError
from ponder.pictures.message_parts import content_pictures, image_part, text_part
from ponder.pictures.picture import Picture
from ponder.runs.picture_store import MIN_FILE_BYTES
from ponder.runs.trace_store import index_traces, read_record, read_traces
from ponder.runs.trace_writer import TraceWriter
from ponder.types import Problem, Step, Trace, prompt_trace


def picture(seed: int, side: int = 128) -> Picture:
    """Noise, which does not compress."""
    return Picture.from_pixels(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))


def trace(number: int, *pictures: Picture) -> Trace:
    content = [*map(image_part, pictures), text_part("Where?")]
    problem = Problem(f"p{number}", ({"role": "system", "content": "Look."}, {"role": "user", "content": content}), 3)
    made = prompt_trace(problem, np.array([1, 2], np.int32))
    made.add(Step(0, "here", np.array([3], np.int32)))
    return made


def write(folder, *steps):
    writer = TraceWriter(folder / "traces.bin")
    for step, traces in enumerate(steps):
        writer.append(step, traces)
    assert writer.close() == ""


def test_large_pictures_are_kept_once_and_come_back(tmp_path):
    large, other, small = picture(0), picture(1), picture(2, side=8)
    traces = [trace(0, large), trace(1, large, other), trace(2, small), trace(3)]
    before = [t.problem.messages for t in traces]
    write(tmp_path, traces[:2], traces[2:], traces[:1])
    assert len(list((tmp_path / "pictures").iterdir())) == 2
    assert (tmp_path / "traces.bin").stat().st_size < MIN_FILE_BYTES
    read = [t for _, t in read_traces(tmp_path)]
    assert [t.problem.messages for t in read] == [*before, before[0]]
    assert [t.problem.messages for t in traces] == before  # the caller's are left alone
    assert content_pictures(read[1].problem.messages[-1]["content"]) == [large, other]


def test_records_hold_the_pictures_too(tmp_path):
    write(tmp_path, [trace(0, picture(0))])
    (entry,) = index_traces(tmp_path)
    part = read_record(tmp_path, entry)["problem"]["messages"][-1]["content"][0]
    assert part == image_part(picture(0))


@pytest.mark.parametrize(("harm", "match"), [
    (lambda file: file.unlink(), "restore it from a copy"),
    (lambda file: file.write_bytes(b"other"), "damaged"),
])  # fmt: skip
def test_missing_or_damaged_picture_is_one_sentence(tmp_path, harm, match):
    write(tmp_path, [trace(0, picture(0))])
    (file,) = (tmp_path / "pictures").iterdir()
    harm(file)
    with pytest.raises(RunError, match=match):
        list(read_traces(tmp_path))


def test_address_that_only_looks_like_a_reference_is_left_alone(tmp_path):
    made = trace(0)
    for url in ("pictures/../../secret.png", "pictures/" + "a" * 63 + ".png", "https://example.org/a.png"):
        part = {"type": "image_url", "image_url": {"url": url}}
        made.problem.messages[-1]["content"].append(part)
    write(tmp_path, [made])
    ((_, read),) = read_traces(tmp_path)
    assert read.problem.messages == made.problem.messages
    assert not (tmp_path / "pictures").exists()

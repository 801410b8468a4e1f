"""`serve.stored_responses`: bounded, and each key by itself."""

from __future__ import annotations

from ponder.serve.stored_responses import StoredResponse, StoredResponses


def stored(name, text="", history=()):
    item = {"type": "message", "role": "user", "content": text}
    return StoredResponse({"id": name, "output": [{"id": "msg_" + name}]}, (item,), tuple(history))


def test_get_returns_what_put_stored_for_the_same_owner_only():
    responses, one = StoredResponses(), stored("r1")
    assert responses.put("alice", one)
    assert responses.get("alice", "r1") is one
    assert responses.get("bob", "r1") is None
    assert not responses.delete("bob", "r1")
    assert responses.delete("alice", "r1") and not responses.delete("alice", "r1")
    assert responses.get("alice", "r1") is None


def test_oldest_response_goes_first_and_never_another_owners():
    responses = StoredResponses(max_responses=2)
    responses.put("bob", stored("b"))
    for name in ("r1", "r2", "r3"):
        responses.put("alice", stored(name))
    assert [responses.get("alice", n) is not None for n in ("r1", "r2", "r3")] == [False, True, True]
    assert responses.get("bob", "b") is not None


def test_bytes_are_bounded():
    responses = StoredResponses(max_bytes=2500)
    assert not responses.put("alice", stored("huge", "x" * 3000))
    for i in range(50):
        assert responses.put("alice", stored(f"r{i}", "x" * 1000))
    left = [i for i in range(50) if responses.get("alice", f"r{i}")]
    assert left == [48, 49]
    responses.delete("alice", "r48")
    responses.put("alice", stored("r50", "x" * 1000))
    assert [i for i in range(51) if responses.get("alice", f"r{i}")] == [49, 50]


def test_same_id_is_replaced():
    responses = StoredResponses(max_responses=2)
    for _ in range(3):
        responses.put("alice", stored("r1"))
    responses.put("alice", stored("r2"))
    assert responses.get("alice", "r1") and responses.get("alice", "r2")


def test_conversation_is_history_input_and_output():
    one = stored("r2", "and now?", [{"id": "before"}])
    assert [item.get("id", item.get("content")) for item in one.conversation] == ["before", "and now?", "msg_r2"]

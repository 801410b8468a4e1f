"""Requests that arrive at once begin a few at a time, in order, and let the loop do other things in between."""

import asyncio

from ponder.serve.request_turns import RequestTurns


def test_few_begin_in_each_turn_and_in_order():
    async def main() -> list[tuple[int, int]]:
        turns, begun, turn = RequestTurns(per_turn=2), [], 0

        async def request(number: int) -> None:
            await turns.wait()
            begun.append((number, turn))

        tasks = [asyncio.ensure_future(request(number)) for number in range(7)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            turn += 1
            assert turn < 50
        return begun

    begun = asyncio.run(main())
    assert [number for number, _ in begun] == list(range(7))
    in_turn = [turn for _, turn in begun]
    assert max(in_turn.count(turn) for turn in set(in_turn)) == 2


def test_a_request_alone_begins_at_once():
    async def main() -> None:
        turns = RequestTurns(per_turn=1)
        for _ in range(3):
            coroutine = turns.wait()
            try:
                coroutine.send(None)
            except StopIteration:
                pass
            else:
                raise AssertionError("it waited")
            await asyncio.sleep(0)  # the turn ends
            await asyncio.sleep(0)

    asyncio.run(main())


def test_a_cancelled_request_takes_no_turn():
    async def main() -> list[int]:
        turns, begun = RequestTurns(per_turn=1), []

        async def request(number: int) -> None:
            await turns.wait()
            begun.append(number)

        tasks = [asyncio.ensure_future(request(number)) for number in range(4)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        async with asyncio.timeout(10):
            await asyncio.wait(tasks)
        return begun

    assert asyncio.run(main()) == [0, 1, 3]

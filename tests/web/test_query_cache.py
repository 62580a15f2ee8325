"""The number of database queries is bounded, however many viewers there are."""

from __future__ import annotations

import asyncio

from horsies.web.state import Broadcaster, QueryCache


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_fifty_pages_that_all_differ_ask_the_database_a_few_times_a_second() -> None:
    clock = Clock()
    asked: list[tuple[float, int]] = []

    async def watch() -> None:
        answers = QueryCache(per_second=15, clock=clock)

        async def look(page: int) -> float:
            asked.append((clock.now, page))
            return clock.now

        for _ in range(100):
            for page in range(50):
                await answers.get(page, 1.0, lambda page=page: look(page), queries=2)
            clock.now += 0.25

    asyncio.run(watch())
    later = [page for at, page in asked if at >= 5]

    assert 2 * len(later) <= 15 * 20
    assert set(later) == set(range(50)), "every page comes to its turn"


def test_who_asks_the_same_at_the_same_time_shares_one_answer() -> None:
    asked: list[int] = []

    async def watch() -> list[int]:
        answers = QueryCache()

        async def look() -> int:
            asked.append(1)
            await asyncio.sleep(0)
            return len(asked)

        return await asyncio.gather(*(answers.get("overview", 1.0, look) for _ in range(50)))

    assert asyncio.run(watch()) == [1] * 50


def test_after_an_action_everything_is_asked_anew_and_what_was_on_its_way_is_not_kept() -> None:
    async def watch() -> list[str]:
        answers, gate = QueryCache(), asyncio.Event()

        async def look_long() -> str:
            await gate.wait()
            return "before"

        async def look() -> str:
            return "after"

        under_way = asyncio.create_task(answers.get("queues", 60.0, look_long))
        await asyncio.sleep(0)
        answers.clear()
        first = await answers.get("queues", 60.0, look)
        gate.set()
        return [first, await under_way, await answers.get("queues", 60.0, look)]

    assert asyncio.run(watch()) == ["after", "before", "after"]


def test_no_query_outlives_the_cache() -> None:
    ended: list[str] = []

    async def watch() -> list[str]:
        answers = QueryCache()

        async def look(name: str) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(name)

        requests = [asyncio.create_task(answers.get("queues", 1.0, lambda: look("cleared")))]
        await asyncio.sleep(0)
        answers.clear()
        requests.append(asyncio.create_task(answers.get("queues", 1.0, lambda: look("shared"))))
        await asyncio.sleep(0)
        for request in requests:
            request.cancel()
        await asyncio.sleep(0)
        before = list(ended)
        await answers.close()
        return before

    assert asyncio.run(watch()) == [], "a query outlives its request"
    assert sorted(ended) == ["cleared", "shared"]


def test_no_poll_outlives_the_dashboard() -> None:
    ended: list[str] = []

    async def watch() -> None:
        begun = asyncio.Event()

        async def pulse() -> str:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("poll")
            return "never"

        broadcaster = Broadcaster(pulse)
        assert broadcaster.join() is not None
        await begun.wait()
        await broadcaster.close()
        assert ended == ["poll"]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(watch())


def test_one_look_at_the_database_serves_all_who_follow_and_none_is_made_without_them() -> None:
    looks: list[int] = []

    async def pulse() -> str:
        looks.append(1)
        return "same"

    async def watch() -> tuple[list[list[str]], int]:
        broadcaster = Broadcaster(pulse)
        joined = [news for _ in range(20) if (news := broadcaster.join()) is not None]
        streams = [broadcaster.stream(news) for news in joined]
        heard = [[await anext(stream), await anext(stream)] for stream in streams]
        await asyncio.sleep(0)
        seen = len(looks)
        broadcaster.hang_up()
        for stream in streams:
            async for _ in stream:
                pass
        for news in joined:
            broadcaster.leave(news)
        await asyncio.sleep(0)
        return heard, seen

    heard, seen = asyncio.run(watch())

    assert heard == [["retry: 1000\n\n", "event: changed\ndata: {}\n\n"]] * 20
    assert seen == 1

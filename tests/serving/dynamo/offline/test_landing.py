"""Landing rows: lent to one borrower at a time, and given back in every case."""

import asyncio
from contextlib import suppress

import pytest

from snapexport.serving.dynamo.handover import Landing, LandingRows

pytestmark = pytest.mark.anyio


async def nothing() -> None: ...


async def turns() -> None:
    """Let every task go on as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def hold(rows: LandingRows, lent: list[Landing], until: asyncio.Event) -> None:
    async with rows.borrow(60, nothing) as loan:
        lent.append(loan.row)
        await until.wait()


async def test_rows_are_lent_to_one_borrower_at_a_time() -> None:
    rows, lent, end = LandingRows([Landing(()), Landing(())]), [], asyncio.Event()
    tasks = [asyncio.create_task(hold(rows, lent, end)) for _ in range(3)]
    await turns()
    assert len(lent) == 2 and lent[0] is not lent[1]
    end.set()
    await asyncio.gather(*tasks)
    assert len(lent) == 3


async def test_cancelled_borrower_gives_its_row_back_once() -> None:
    rows, lent = LandingRows([Landing(())]), []
    task = asyncio.create_task(hold(rows, lent, asyncio.Event()))
    await turns()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    async with rows.borrow(60, nothing) as loan:
        loan.give_back()
    assert [loan.row] == lent
    async with rows.borrow(60, nothing):
        assert await waited(rows)  # the second return added no second row


async def waited(rows: LandingRows) -> bool:
    """Whether a borrower has to wait; it is asked what it does meanwhile."""

    async def stop() -> None:
        raise TimeoutError("still waiting")

    with suppress(TimeoutError):
        async with rows.borrow(0.01, stop):
            return False
    return True


async def test_replaced_row_is_lent_no_more() -> None:
    rows, fresh = LandingRows([Landing(())]), Landing(())
    async with rows.borrow(60, nothing) as loan:
        loan.replace(fresh)
    async with rows.borrow(60, nothing) as loan:
        assert loan.row is fresh

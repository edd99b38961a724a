"""A loop that Ctrl-C and SIGTERM end, at whatever moment and however often they come."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading

import pytest

from pgtrunk_gateway.demo.interrupts import run


def test_what_it_returns() -> None:
    async def main() -> int:
        await asyncio.sleep(0)
        return 7

    assert run(main()) == 7


def test_what_it_raises() -> None:
    async def main() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run(main())


def test_a_second_signal_loses_no_callback() -> None:
    """As asyncio.TaskGroup does, the end waits for a callback, and is not cancelled out of that."""
    ended = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        over = loop.create_future()

        def end() -> None:
            signal.raise_signal(signal.SIGINT)
            over.set_result(None)

        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            loop.call_soon(end)
            while not over.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(over)
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        run(main())
    assert ended == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_wakes_a_loop_that_waits() -> None:
    async def main() -> None:
        threading.Thread(target=signal.pthread_kill, args=(threading.main_thread().ident, signal.SIGINT)).start()
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        run(main())


def test_sigterm_is_raised_by_its_own_handler() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, _: came.append(signum))

    async def main() -> None:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.Event().wait()

    try:
        with pytest.raises(asyncio.CancelledError):
            run(main())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == [signal.SIGTERM]


def test_one_that_does_not_end_is_left() -> None:
    cancelled = []

    async def main() -> None:
        signal.raise_signal(signal.SIGINT)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
                if len(cancelled) > 1:
                    raise

    coroutine = main()
    with pytest.raises(KeyboardInterrupt):
        run(coroutine, patience=0.05)
    assert cancelled == [True]
    with pytest.raises(asyncio.CancelledError):
        coroutine.throw(asyncio.CancelledError())

"""Run `async def` tests, each in its own event loop, and disable Hypothesis deadlines."""

import asyncio
import inspect
import signal

import pytest
from hypothesis import settings

settings.register_profile("everthread", deadline=None)
settings.load_profile("everthread")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # SIGINT is ignored in a background job of a shell. Processes started by tests would inherit this and ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True

"""Counting what JAX compiles: a program that is compiled again for every call would cost seconds each time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Lists the names of the programs that are compiled within the block."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("jax")
    logger.addHandler(handler)
    names: list[str] = []
    try:
        with jax.log_compiles():
            yield names
    finally:
        logger.removeHandler(handler)
        names += [message.split()[1] for message in messages if message.startswith("Compiling")]

"""Many fits in one process: programs are compiled once per shape, and memory does not grow with the number of fits."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest

import bats
from bats.model.fit import fit_model
from tests.compilations import compilations
from tests.small_runs import SMALL, small_log


def test_a_second_fit_of_the_same_log_compiles_nothing() -> None:
    bats.fit(small_log(), SMALL, seed=0)
    with compilations() as names:
        bats.fit(small_log(), SMALL, seed=0)
    assert names == []


@pytest.mark.slow
@pytest.mark.parametrize("passes", [0.0, 11.0])  # the second one decides how many updates there are
def test_a_log_of_nearly_the_same_size_is_trained_on_by_the_same_program(passes: float) -> None:
    config = replace(SMALL.model, passes=passes)
    first = fit_model(small_log(20), config, seed=0)
    with compilations() as names:
        second = fit_model(small_log(21), config, seed=1)
    assert names == []
    needed = passes * 21 * 20 / config.batch_size
    assert first.config.updates == second.config.updates >= max(needed, config.updates)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not list memory maps")
def test_two_hundred_fits_in_one_process_take_no_more_memory_than_three() -> None:
    maps, memory = [], []
    for _ in range(200):
        bats.fit(small_log(), SMALL, seed=0)
        gc.collect()
        maps.append(len(Path("/proc/self/maps").read_text().splitlines()))
        memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
    assert max(maps[3:]) <= maps[2] + 20
    assert max(memory[3:]) <= memory[2] + 50e6

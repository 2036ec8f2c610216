"""A learned metric on disk: one safetensors file. Reading it back never runs code, and it embeds as before."""

from __future__ import annotations

from pathlib import Path

from bats.errors import DataError
from bats.metric.bisimulation import BisimulationMetric
from bats.metric.policy_steps import Split
from bats.policy.cloning import Network
from bats.storage.tensors import read_arrays, write_arrays

_METRIC = "bats-bisimulation"
_OTHERS = ("mean", "deviation", "scale", "margin")


def save_metric(metric: BisimulationMetric, path: Path | str, *, overwrite: bool = False) -> None:
    """Writes the metric, with what it needs to go on learning or be calibrated: which states it has not seen."""
    network = metric.network
    arrays = {name: getattr(metric, name) for name in _OTHERS}
    for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        arrays |= {f"weight.{layer}": weight, f"bias.{layer}": bias}
    facts = {"layers": len(network.weights), "seed": metric.split.seed, "held_out": metric.split.held_out}
    write_arrays(Path(path), _METRIC, arrays, facts, overwrite=overwrite)


def load_metric(path: Path | str) -> BisimulationMetric:
    """The metric that was saved; `DataError` if the file is another, damaged or not there."""
    arrays, facts = read_arrays(Path(path), _METRIC)
    try:
        layers = range(facts["layers"])
        network = Network(
            tuple(arrays[f"weight.{layer}"] for layer in layers), tuple(arrays[f"bias.{layer}"] for layer in layers)
        )
        split = Split(seed=int(facts["seed"]), held_out=float(facts["held_out"]))
        mean, deviation, scale, margin = (arrays[name] for name in _OTHERS)
        return BisimulationMetric(network, mean, deviation, scale, margin, split)
    except (KeyError, TypeError, ValueError) as error:  # a checksum can be right all the same
        raise DataError("a whole metric", str(error), file=str(path)) from error

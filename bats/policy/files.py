"""A policy on disk: one safetensors file with a human-readable summary (JSON). Reading it back runs no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from bats.config import FilePath, checked
from bats.errors import DataError, OutputError, SettingError
from bats.policy.policy import Policy
from bats.policy.support import Support
from bats.storage.atomic import refuse_existing, write_text
from bats.storage.tensors import read_tensors, tensor_facts, write_tensors

_KIND = "bats-policy"
_ARRAYS = ("mean", "std", "low", "high")
_USUAL = {"activation": "silu", "squashed": False}
_OLD_NAMES = {
    "std": "deviation",
    "support.sample": "familiar.sample",
    "support.weight": "familiar.weight",
    "support_limit": "familiar_limit",
    "threshold": "cut",
    "threshold_measure": "cut_by",
}
"""earlier names of arrays, facts and entries of the card"""


def save_policy(policy: Policy, path: Path | str, *, overwrite: bool = False) -> None:
    """Writes the summary, the same name with `.json`, and then the policy.

    An existing policy is refused unless `overwrite`; a summary without a policy is replaced.
    """
    policy, overwrite = checked("policy", Policy, policy), checked("overwrite", bool, overwrite)
    path, summary = policy_paths(checked("path", FilePath, path))
    refuse_existing(path, overwrite=overwrite)
    write_text(summary, json.dumps(description(policy), indent=2) + "\n")
    write_tensors(path, _KIND, *_contents(policy), overwrite=overwrite)


def policy_checksum(policy: Policy) -> str:
    """The checksum that the file of a policy has."""
    return str(tensor_facts(_KIND, *_contents(policy))["checksum"])


def _contents(policy: Policy) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """The arrays and facts of a policy's file."""
    arrays = {name: getattr(policy, name) for name in _ARRAYS}
    for layer, (weight, bias) in enumerate(zip(policy.weights, policy.biases, strict=True)):
        arrays |= {f"weight.{layer}": weight, f"bias.{layer}": bias}
    layers, card = len(policy.weights), dict(policy.card)
    facts: dict[str, object] = {"layers": layers, "action_count": policy.action_count, "card": card}
    # written only where they are not the usual ones, which older files do not name
    facts |= {name: getattr(policy, name) for name, usual in _USUAL.items() if getattr(policy, name) != usual}
    if policy.support is not None:
        arrays |= {"support.sample": policy.support.sample, "support.weight": policy.support.weight}
        facts["support_limit"] = policy.support.limit
    return arrays, facts


def policy_paths(path: Path) -> tuple[Path, Path]:
    """The files that `save_policy` writes: the policy and its summary."""
    if path.suffix != ".safetensors":  # a policy named .json would be its own summary
        hint = "`bats-rl export` converts it to .onnx"
        raise OutputError(f"{path}: a policy can only be written to a .safetensors file; {hint}.")
    return path, path.with_suffix(".json")


def load_policy(path: Path | str) -> Policy:
    """The policy that was saved; `DataError` if the file is another, damaged or missing. Needs NumPy alone."""
    path = Path(checked("path", FilePath, path))
    arrays, facts = read_tensors(path, _KIND)
    card = facts.get("card")
    tables: tuple[dict[str, Any], ...] = (arrays, facts, card if isinstance(card, dict) else {})
    for table in tables:
        table.update({name: table.pop(old) for name, old in _OLD_NAMES.items() if old in table})
    try:
        layers = range(facts["layers"])
        limit = facts.get("support_limit")
        return Policy(
            weights=tuple(arrays[f"weight.{layer}"] for layer in layers),
            biases=tuple(arrays[f"bias.{layer}"] for layer in layers),
            mean=arrays["mean"],
            std=arrays["std"],
            low=arrays["low"],
            high=arrays["high"],
            action_count=facts["action_count"],
            support=None if limit is None else Support(arrays["support.sample"], arrays["support.weight"], limit),
            card=facts["card"],
            activation=facts.get("activation", "silu"),
            squashed=facts.get("squashed", False),
        )
    except KeyError as error:  # a checksum can be right all the same
        raise DataError("a complete policy", f"no entry {error}", file=str(path)) from error
    except (TypeError, SettingError) as error:
        raise DataError("a valid policy", str(error).rstrip("."), file=str(path)) from error


def description(policy: Policy) -> dict[str, object]:
    """The human-readable summary of a policy, in plain values."""
    discrete = policy.action_count is not None
    bounded = "brought by tanh between" if policy.squashed else "clipped to"
    bounds = {"numbers": len(policy.low), "low": policy.low.tolist(), "high": policy.high.tolist()}
    return {
        "observation": {"numbers": len(policy.mean), "mean": policy.mean.tolist(), "std": policy.std.tolist()},
        "action": {"count": policy.action_count} if discrete else bounds,
        "hidden": [len(bias) for bias in policy.biases[:-1]],
        "answers": "the most likely action" if discrete else f"the mean of a Gaussian, {bounded} the bounds",
        "support_limit": None if policy.support is None else policy.support.limit,
        **policy.card,
    }

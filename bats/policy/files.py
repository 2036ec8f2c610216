"""A policy on disk: one safetensors file, and a JSON card for people beside it. Reading it back never runs code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from bats.errors import DataError, OutputError, SettingError
from bats.policy.policy import Familiar, Policy
from bats.storage.atomic import atomic_path
from bats.storage.tensors import read_arrays, write_arrays

_POLICY = "bats-policy"


def save_policy(policy: Policy, path: Path | str, *, overwrite: bool = False) -> None:
    """Writes the policy and, before that, its card, the same name with `.json`.

    A policy is not overwritten unless asked; a card alone is, as one whose policy was never written.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise OutputError(f"{path} exists already; choose another name.")
    arrays = {name: getattr(policy, name) for name in ("mean", "deviation", "low", "high")}
    for layer, (weight, bias) in enumerate(zip(policy.weights, policy.biases, strict=True)):
        arrays |= {f"weight.{layer}": weight, f"bias.{layer}": bias}
    facts: dict[str, object] = {
        "layers": len(policy.weights),
        "action_count": policy.action_count,
        "card": dict(policy.card),
    }
    if policy.familiar is not None:
        arrays |= {"familiar.sample": policy.familiar.sample, "familiar.weight": policy.familiar.weight}
        facts["familiar_limit"] = policy.familiar.limit
    with atomic_path(policy_paths(path)[1], overwrite=True) as temporary:
        temporary.write_text(json.dumps(described(policy), indent=2) + "\n", encoding="utf-8")
    write_arrays(path, _POLICY, arrays, facts, overwrite=overwrite)


def policy_paths(path: Path) -> tuple[Path, Path]:
    """The files that `save_policy` writes: the policy and its card."""
    return path, path.with_suffix(".json")


def load_policy(path: Path | str) -> Policy:
    """The policy that was saved; `DataError` if the file is another, damaged or not there. Needs no JAX."""
    path = Path(path)
    arrays, facts = read_arrays(path, _POLICY)
    try:
        layers = range(facts["layers"])
        return Policy(
            weights=tuple(arrays[f"weight.{layer}"] for layer in layers),
            biases=tuple(arrays[f"bias.{layer}"] for layer in layers),
            mean=arrays["mean"],
            deviation=arrays["deviation"],
            low=arrays["low"],
            high=arrays["high"],
            action_count=facts["action_count"],
            familiar=_familiar(arrays, facts),
            card=facts["card"],
        )
    except (KeyError, TypeError, SettingError) as error:  # a checksum can be right all the same
        raise DataError("a whole policy", str(error), file=str(path)) from error


def described(policy: Policy) -> dict[str, object]:
    """What people may want to know of a policy, in plain values."""
    discrete = policy.action_count is not None
    return {
        "observation": {
            "numbers": len(policy.mean),
            "mean": policy.mean.tolist(),
            "deviation": policy.deviation.tolist(),
        },
        "action": {"count": policy.action_count}
        if discrete
        else {"numbers": len(policy.low), "low": policy.low.tolist(), "high": policy.high.tolist()},
        "hidden": [len(bias) for bias in policy.biases[:-1]],
        "answers": "the likeliest action" if discrete else "the mean of a Gaussian, clipped to the limits",
        "familiar_limit": None if policy.familiar is None else policy.familiar.limit,
        **policy.card,
    }


def _familiar(arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> Familiar | None:
    if "familiar_limit" not in facts:
        return None
    return Familiar(arrays["familiar.sample"], arrays["familiar.weight"], facts["familiar_limit"])

"""The methods by name."""

from __future__ import annotations

from bats.baselines.core import Method
from bats.baselines.methods import awac, bc, bear, brac_v, combo, cql, iql, rebrac, sac, td3_bc

METHODS: dict[str, Method] = {
    module.METHOD.name: module.METHOD for module in (bc, sac, brac_v, bear, cql, combo, td3_bc, iql, rebrac, awac)
}

"""The paper's experiments, which `bats-rl benchmark` repeats."""

"""The paper's experiments, each as one function that measures and one that draws; `bats-rl benchmark` runs them."""

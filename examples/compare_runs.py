"""Two runs of one log compared, by their bounds: python examples/compare_runs.py run1 run2

A run is certified to be better if its lower bound exceeds the other's upper bound. Nothing is played.
"""

import sys

import bats

first, second = (bats.load_result(folder) for folder in sys.argv[1:3])
for result in (first, second):
    clone = result.certificate.clone
    print(f"{result.folder}: value between {clone.lower:.3g} and {clone.upper:.3g}; {result.verdict}")

gain = second.certificate.gain_over(first.certificate)
if gain is None:
    print("the two logs have different starts and cannot be compared")
elif second.certificate.is_better_than(first.certificate):
    print(f"the second policy is better by at least {gain:.3g}")
elif first.certificate.is_better_than(second.certificate):
    print(f"the first policy is better by at least {first.certificate.gain_over(second.certificate):.3g}")
else:
    print("the bounds overlap: neither is certified to be better")

bats.compare_reports(sys.argv[1:3], "comparison.html", overwrite=True)

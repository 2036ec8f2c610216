"""From a CSV file of your own to a verdict: python examples/own_csv.py log.csv

The file has a header line and one line per step, here with the columns run, x, y, push_x, push_y and reward.
"""

import sys

import bats

COLUMNS = "observations=x,y actions=push_x,push_y rewards=reward episode=run"

log = bats.load_dataset(sys.argv[1], columns=COLUMNS)
for note in bats.validate(log).notes:  # what was found in the log, and what was decided in reading it
    print(f"{note.kind}: {note.text}")

result = bats.fit(log, "demo", seed=0, folder="run")  # continues where it was, if it was interrupted
print(f"value of the log {result.logged_value:.3g}, optimal value with stitches {result.value:.3g}")

certificate = result.certificate
print(f"the policy's value is between {certificate.clone.lower:.3g} and {certificate.clone.upper:.3g}")
print(certificate.verdict)

bats.write_report("run")  # run/report.html opens offline

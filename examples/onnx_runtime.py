"""The policy in onnxruntime, as any other program would run it: python examples/onnx_runtime.py run

Needs pip install 'bats-rl[onnx]' for writing the file; running it takes onnxruntime alone.
"""

import sys

import numpy as np
import onnxruntime

import bats

result = bats.load_result(sys.argv[1])
difference = bats.export_onnx(result.policy, "policy.onnx", overwrite=True)
print(f"policy.onnx differs from the policy by at most {difference:.1e}")

session = onnxruntime.InferenceSession("policy.onnx", providers=["CPUExecutionProvider"])
observations = result.mdp.states[result.mdp.starts].astype(np.float32)
outputs = session.run(None, {"observation": observations})
for output, values in zip(session.get_outputs(), outputs, strict=True):
    print(output.name, values.shape, "first:", values[0])
# act on an action only where `valid` is true: for any other observation, such as NaN, it is a stand-in

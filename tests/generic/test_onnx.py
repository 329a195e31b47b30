"""ONNX export in standard operators equals eager in ONNX Runtime, with every size but D dynamic."""

import numpy as np
import onnxruntime
import pytest
import torch

from pairloom.export import module_to_onnx
from tests.generic.common import Call, dynamic_shapes, every_sample, outputs_of, sample_named, tensors_of

SHAPES = [(7, 10, 5), (2, 3, 5), (40, 33, 5)]


@pytest.mark.parametrize(("record", "name"), every_sample(onnx=True, quick=2, most=5))
def test_equals_eager_at_other_sizes(record, name, tmp_path):
    sample = sample_named(record, name)
    module = Call(record, sample)
    path = module_to_onnx(
        module, tensors_of(sample), tmp_path / "call.onnx", dynamic_batch=False, dynamic_shapes=dynamic_shapes(sample)
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for shape in SHAPES:
        other = sample_named(record, name, shape=shape, seed=1)
        feed = {i.name: x.numpy() for i, x in zip(session.get_inputs(), tensors_of(other), strict=True)}
        expected = outputs_of(module(*tensors_of(other)))
        for value, wanted in zip(session.run(None, feed), expected, strict=True):
            if wanted.is_floating_point():
                np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=2e-5)
            else:
                assert torch.equal(torch.as_tensor(value), wanted)

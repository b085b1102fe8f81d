"""`encode` and `predict` of sentence-transformers call the module: on a compiled module, the compiled one."""

import inspect

import pytest
import torch

import staticrt


class Encoder(torch.nn.Module):
    """As `SentenceTransformer` does: texts (here: lists of numbers) by length, in batches, through `self.forward`."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 8)
        self.batches = 0

    def forward(self, features, scale=1.0):
        hidden = self.embedding(features["ids"]) * features["mask"][..., None]
        total = self.head(torch.tanh(hidden)).sum(1) * scale
        return {**features, "embedding": total / features["mask"].sum(1, keepdim=True)}

    @torch.inference_mode()
    def encode(self, texts, batch_size=2, scale=1.0):
        self.eval()
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        rows = [None] * len(texts)
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            longest = max(len(texts[i]) for i in batch)
            ids = torch.tensor([texts[i] + [0] * (longest - len(texts[i])) for i in batch])
            answer = self.forward({"ids": ids, "mask": (ids > 0).float()}, scale=scale)
            self.batches += 1
            for i, row in zip(batch, answer["embedding"], strict=True):
                rows[i] = row
        return torch.stack(rows)

    def encode_query(self, texts):
        assert list(inspect.signature(self.forward).parameters) == ["features", "scale"]
        return self.encode(texts, scale=2.0)

    @torch.inference_mode()
    def predict(self, texts):
        """As `CrossEncoder` does: through the module's call."""
        found = [self({"ids": torch.tensor([text]), "mask": torch.ones(1, len(text))}) for text in texts]
        return torch.cat([each["embedding"] for each in found])

    def rank(self, texts):
        return self.predict(texts).sum(1).sort(descending=True).indices


TEXTS = [[1], [2, 3, 4, 5, 6], [7, 8], [9, 10, 11], [12] * 9]


@pytest.fixture
def model():
    return Encoder()


@pytest.mark.parametrize("method", ["encode", "encode_query", "predict", "rank"])
def test_encode_runs_compiled_and_equals_eager(model, method):
    fast = staticrt.compile(model)
    expected = getattr(model, method)(TEXTS)
    before = fast._executor.fast.calls
    for texts in (TEXTS, TEXTS[:1], TEXTS[1:], TEXTS):
        torch.testing.assert_close(getattr(fast, method)(texts), getattr(model, method)(texts))
    torch.testing.assert_close(getattr(fast, method)(TEXTS), expected)
    assert fast._executor.fast.calls > before, "no call ran on the compiled module"
    assert not fast.explain().eager
    assert fast.batches == model.batches, "what the method sets is the module's"


def test_hooks_run_as_often_as_in_eager(model):
    """`self.forward(...)` runs no hooks, a call runs them."""
    fast = staticrt.compile(model)
    seen = []
    model.register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(fast.encode(TEXTS), model.encode(TEXTS))
    assert not seen


def test_a_forward_given_to_the_object_is_called(model):
    fast = staticrt.compile(model)
    own = model.forward
    model.forward = lambda *args, **kwargs: {"embedding": own(*args, **kwargs)["embedding"] + 1}
    torch.testing.assert_close(fast.encode(TEXTS), model.encode(TEXTS))

"""What a tokenizer returns holds records of its own beside tensors, made anew for each call."""

import copy
import json

import pytest
import torch

import staticrt

tokenizers = pytest.importorskip("tokenizers")
BatchEncoding = pytest.importorskip("transformers").BatchEncoding
WORDS = ["[PAD]", "the", "film", "was", "not", "very", "good", "bad"]


@pytest.fixture
def encode():
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(WORDS)}, "[PAD]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_padding()

    def encoded(*texts):
        encodings = made.encode_batch(list(texts))
        ids = torch.tensor([each.ids for each in encodings])
        return BatchEncoding({"input_ids": ids, "scale": torch.ones(())}, encodings)

    return encoded


TEXTS = [("the film",), ("the film was good",), ("not bad", "very good film"), ("film", "good", "very bad")]


def scaled(features):
    features["embedding"] = features["input_ids"] * features["scale"] + 1
    return features


def test_one_trace_serves_all_texts(encode):
    fast = staticrt.compile(scaled)
    with torch.no_grad():
        for texts in TEXTS * 3:
            features, other = encode(*texts), encode(*texts)
            result = fast(features)
            assert result is features
            assert list(result) == list(scaled(other))
            assert torch.equal(result["embedding"], other["embedding"])
            assert [each.tokens for each in result.encodings] == [each.tokens for each in other.encodings]
    assert str(fast.explain()).count("(whole") <= 2  # with and without rows of 1
    assert not fast.explain().eager


READS = {
    "attribute": lambda f: f.encodings[0].n_sequences + len(f.encodings[0].tokens),
    "length": lambda f: len(f.encodings),
    "length of one": lambda f: len(f[0]),
    "method": lambda f: len(f.tokens(0)),
    "loop": lambda f: sum(len(each.ids) for each in f.encodings),
    "truth": lambda f: 2 if f.encodings else 1,
    "text": lambda f: len(repr(f.encodings)),
    "comparison": lambda f: int(f.encodings[0] == f.encodings[-1]),
    "copy": lambda f: len(copy.copy(f.encodings)),
    "caught": lambda f: _caught(f),
    "in C": lambda f: len(json.dumps([each.ids for each in list(f.encodings)])),
    "sorted": lambda f: len(sorted(f.encodings, key=lambda each: each.ids)),
    "joined": lambda f: len([*f.encodings, 1]),
}


def _caught(features):
    try:
        return len(features.encodings[0].ids)
    except Exception:
        return 1000


@pytest.mark.parametrize("read", READS)
def test_what_a_model_reads_is_the_calls_own(read, encode):
    def function(features):
        return features["input_ids"] * READS[read](features)

    fast = staticrt.compile(function)
    with torch.no_grad():
        for texts in TEXTS * 2:
            features = encode(*texts)
            assert torch.equal(fast(features), function(features)), texts


@pytest.mark.parametrize(
    "handed_out",
    [
        lambda f: f.encodings,
        lambda f: f.encodings[0],
        lambda f: {"of": f.encodings},
        lambda f: type(f.encodings),
        lambda f: isinstance(f.encodings, list),
        lambda f: f.encodings is None,
    ],
)
def test_results_hold_the_calls_own(handed_out, encode):
    def function(features):
        return features["input_ids"] + 1, handed_out(features)

    fast = staticrt.compile(function)
    with torch.no_grad():
        for texts in TEXTS * 2:
            features = encode(*texts)
            ours, eager = fast(features), function(features)
            assert torch.equal(ours[0], eager[0])
            held = [value["of"] if isinstance(value, dict) else value for value in (ours[1], eager[1])]
            assert held[0] is held[1] or held[0] == held[1]


def test_an_argument_without_records_is_another_call(encode):
    def function(features):
        return features["input_ids"] * (1 if features.encodings is None else 2)

    fast = staticrt.compile(function)
    with torch.no_grad():
        for with_records in (True, False, True, False):
            features = encode("the film")
            if not with_records:
                features = BatchEncoding(dict(features))
            assert torch.equal(fast(features), function(features))


def test_the_model_may_keep_or_drop_them(encode):
    kept = []

    class Net(torch.nn.Module):
        def forward(self, features):
            kept.append(features.encodings)
            features._encodings = None
            return features["input_ids"] + 1

    fast = staticrt.compile(Net())
    with torch.no_grad():
        for texts in TEXTS:
            features = encode(*texts)
            records = features.encodings
            assert torch.equal(fast(features), features["input_ids"] + 1)
            assert features.encodings is None
            assert kept[-1] is records
    assert len(kept) == len(TEXTS)

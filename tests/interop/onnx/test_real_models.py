"""Trained models from published packages give ONNX Runtime's results."""

import numpy as np
import onnxruntime
import pytest
import torch

import staticrt
from tests.support import real_onnx_models as real_models

VAD, OCR = "silero_vad/data/", "rapidocr_onnxruntime/models/"


def random(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def speech(batch, rate, samples):
    return {
        "input": random(batch, samples) * 0.1,
        "state": random(2, batch, 128) * 0.1,
        "sr": np.array(rate, np.int64),
    }


def files(count):
    return {"bytes": np.random.default_rng(count).integers(0, 256, (count, 2048)).astype(np.int32)}


def image(*shape):
    return {"x": random(*shape)}


SPEECH = [speech(1, 16000, 576), speech(2, 16000, 576), speech(1, 8000, 288), speech(3, 16000, 576)]
WIDE = [speech(1, 16000, 576), speech(2, 16000, 576)]
CASES = [
    ("silero-vad", VAD + "silero_vad.onnx", SPEECH),
    ("silero-vad", VAD + "silero_vad_16k_op15.onnx", WIDE),
    ("silero-vad", VAD + "silero_vad_half.onnx", WIDE),
    ("silero-vad", VAD + "silero_vad_op18_ifless.onnx", SPEECH),
    ("magika", "magika/models/standard_v3_3/model.onnx", [files(1), files(3)]),
    ("rapidocr-onnxruntime", OCR + "ch_ppocr_mobile_v2.0_cls_infer.onnx", [image(1, 3, 48, 192), image(2, 3, 48, 192)]),
    ("rapidocr-onnxruntime", OCR + "ch_PP-OCRv4_rec_infer.onnx", [image(1, 3, 48, 96)]),
    ("rapidocr-onnxruntime", OCR + "ch_PP-OCRv4_det_infer.onnx", [image(1, 3, 96, 160), image(1, 3, 64, 96)]),
]  # fmt: skip


@pytest.mark.parametrize(("package", "inside", "calls"), CASES, ids=[c[1].rsplit("/", 1)[-1] for c in CASES])
def test_equals_onnx_runtime(package, inside, calls):
    data = real_models.model_bytes(package, inside)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    compiled = staticrt.from_onnx(data)
    for feeds in calls:
        feeds = {name: value for name, value in feeds.items() if name in names}
        expected = session.run(None, feeds)
        with torch.no_grad():
            for found in (compiled(**feeds), compiled(**feeds)):
                found = found if isinstance(found, tuple) else (found,)
                for have, want in zip(found, expected, strict=True):
                    np.testing.assert_allclose(have.numpy(), want, rtol=1e-3, atol=1e-4)
    report = compiled.explain()
    assert not report.eager, report

"""What Hugging Face's Trainer does in a step, over compiled models: eager's parameters, and one trace for all steps."""

import copy
import logging
import types

import pytest
import torch
import transformers

import staticrt
from tests.support.joint_traces import joint_calls

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}


def _bert():
    config = transformers.BertConfig(
        **SMALL,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        problem_type="single_label_classification",
    )
    return transformers.BertForSequenceClassification(config), lambda ids: ids[:, 0] % 2


def _gpt2():
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=2, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), lambda ids: ids


def _mixed(model):
    """As accelerate prepares a model for `bf16=True`."""
    model.forward = types.MethodType(
        torch.autocast("cpu", dtype=torch.bfloat16)(model.forward.__func__), model
    )


def _train(run, model, labels_of, accumulated, counted):
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    torch.manual_seed(1)
    for step in range(6):
        ids = torch.randint(50, (4, 12))
        more = {"num_items_in_batch": torch.tensor(4.0 + step)} if counted else {}
        loss = run(input_ids=ids, labels=labels_of(ids), **more).loss
        (loss / accumulated).backward()
        if (step + 1) % accumulated == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            model.zero_grad()


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("make", [_bert, _gpt2])
@pytest.mark.parametrize("way", ["model", "forward"])
def test_steps_are_eagers_and_traced_once(way, make, accumulated, mixed):
    torch.manual_seed(0)
    eager, labels_of = make()
    model = copy.deepcopy(eager)
    if way == "model":
        compiled = run = staticrt.compile(model)
    else:
        compiled = model.forward = staticrt.compile(model.forward)
        run = model
    if mixed and way == "forward":  # a wrapper around what is compiled
        autocast = torch.autocast("cpu", dtype=torch.bfloat16)
        _mixed(eager)
        model.forward = autocast(compiled)
    elif mixed:
        _mixed(eager)
        _mixed(compiled)
    counted = make is _gpt2
    _train(run, model, labels_of, accumulated, counted)
    _train(eager, eager, labels_of, accumulated, counted)
    close = {"rtol": 1e-2, "atol": 5e-3} if mixed else {"rtol": 1e-4, "atol": 1e-5}
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p, q, **close)
    # A model may warn in the first call of a process, which eager runs then.
    warned = sum(report.calls for report in compiled.explain().eager)
    assert warned <= 1
    assert joint_calls(compiled) == 6 - warned, str(compiled.explain())
    assert [trace.route for trace in compiled.explain().traces] == ["training"]


def test_a_warning_in_the_first_call_costs_one_eager_call():
    logger = logging.getLogger("tests.training.first_call")
    warned = []

    class Warns(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = torch.nn.Linear(4, 2)

        def forward(self, x):
            if not warned:
                logger.warning("once")
                warned.append(True)
            return self.lin(x)

    model = Warns()
    compiled = staticrt.compile(model)
    for _call in range(3):
        compiled(torch.ones(3, 4)).sum().backward()
    assert torch.equal(model.lin.bias.grad, torch.full((2,), 9.0))
    assert joint_calls(compiled) == 2
    assert compiled._executor._splits.regions == []

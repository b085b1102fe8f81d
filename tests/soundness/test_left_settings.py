"""Settings of the process and of loggers that a model leaves changed are changed by every call."""

import logging
import sys

import pytest
import torch

import staticrt
from tests.support.compilers import COMPILERS

SETTINGS = {
    "threads": (torch.set_num_threads, torch.get_num_threads, 3),
    "deterministic": (
        lambda on: torch.use_deterministic_algorithms(on, warn_only=on),
        torch.are_deterministic_algorithms_enabled,
        True,
    ),
    "warn always": (torch.set_warn_always, torch.is_warn_always_enabled, True),
    "mkldnn": (torch.backends.mkldnn.set_flags, lambda: torch.backends.mkldnn.enabled, False),
    "flash attention": (torch.backends.cuda.enable_flash_sdp, torch.backends.cuda.flash_sdp_enabled, False),
    "attention layers": (
        torch.backends.mha.set_fastpath_enabled,
        torch.backends.mha.get_fastpath_enabled,
        False,
    ),
    "autocast": (
        lambda on: torch.set_autocast_enabled("cpu", on),
        lambda: torch.is_autocast_enabled("cpu"),
        True,
    ),
    "threads of backwards": (
        torch.autograd.set_multithreading_enabled,
        torch._C._is_multithreading_enabled,
        False,
    ),
    "digits of integers": (sys.set_int_max_str_digits, sys.get_int_max_str_digits, 5000),
}
DROPPED_BY_DYNAMO = ("autocast", "digits of integers")


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "gradients"])
@pytest.mark.parametrize(
    ("name", "way"),
    [(n, way) for n in SETTINGS for way in COMPILERS if way != "backend" or n not in DROPPED_BY_DYNAMO],
)
def test_a_setting_that_the_model_leaves_is_left_by_every_call(name, way, gradients, fresh_dynamo):
    change, read, other = SETTINGS[name]
    usual = read()

    def model(x):
        change(other)
        return x * 2

    compiled = COMPILERS[way](model)
    try:
        with torch.set_grad_enabled(gradients):
            for _call in range(3):
                compiled(torch.ones(2, requires_grad=gradients))
                assert read() == other
                change(usual)
    finally:
        change(usual)


def test_a_setting_that_the_model_puts_back_leaves_it_compiled():
    def model(x):
        with torch.backends.mkldnn.flags(enabled=False):
            return x @ x

    compiled = torch.no_grad()(staticrt.compile(model))
    compiled(torch.ones(2, 2))
    assert not compiled.__wrapped__.explain().eager


def _disable(logger):
    logger.disabled = not logger.disabled


def _set_level(logger):
    logger.level = logging.ERROR if logger.level == logging.INFO else logging.INFO
    logger._cache.clear()


def _disable_all(_logger):
    logging.disable(logging.ERROR if logging.root.manager.disable < logging.INFO else logging.NOTSET)


@pytest.mark.parametrize("change", [_disable, _set_level, _disable_all])
@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_what_a_model_changes_of_a_logger_is_changed_in_each_call(change):
    def run(compile):
        logger = logging.Logger("effects.changed", logging.INFO)
        logger.parent, logger.manager = logging.root, logging.root.manager

        def function(x):
            y = x * 2 if logger.isEnabledFor(logging.INFO) else x * 3
            change(logger)
            return y

        compiled = compile(function)
        try:
            return [compiled(torch.ones(2)).tolist() for _call in range(5)]
        finally:
            logging.disable(logging.NOTSET)

    with torch.no_grad():
        assert run(staticrt.compile) == run(lambda function: function)


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "gradients"])
def test_a_model_without_a_logger_disables_them_in_each_call(gradients):
    def model(x):
        logging.disable(logging.ERROR)
        return x * 2

    compiled = staticrt.compile(model)
    try:
        for _call in range(5):
            compiled(torch.ones(2, requires_grad=gradients))
            assert logging.root.manager.disable == logging.ERROR
            logging.disable(logging.NOTSET)
    finally:
        logging.disable(logging.NOTSET)

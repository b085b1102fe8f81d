"""Every flag of `staticrt.frontend.guards.process_state`: flipped between two calls, no trace of the other value is used."""

import contextlib
import threading
import time
import types

import pytest
import torch
import torch.distributed as dist
from torch import nn

import staticrt
from staticrt.frontend.guards import process_state
from staticrt.frontend.tracing import fake_run
from staticrt.native import _C


@contextlib.contextmanager
def _put(read, write, value):
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def _attribute(owner, name, value):
    return _put(lambda: getattr(owner, name), lambda new: setattr(owner, name, new), value)


def _precision(backend, op):
    getter, setter = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    # A switch that was never set inherits; "none" puts that back.
    return _put(lambda: getter(backend, op), lambda new: setter(backend, op, new), "ieee")


@contextlib.contextmanager
def _flushing():
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormals")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def _sdpa_priority():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        yield


def _private(name, value):
    """A flag with `torch._C._get_<name>` and `_set_<name>`."""
    write = getattr(torch._C, f"_set_{name}", None)
    return lambda: _put(
        getattr(torch._C, f"_get_{name}"),
        lambda new: write(*new) if isinstance(new, tuple) else write(new),
        value,
    )


def _sdp(name, value=False):
    return lambda: _put(
        getattr(torch._C, f"_get_{name}_sdp_enabled"), getattr(torch._C, f"_set_sdp_use_{name}"), value
    )


FLIPS = {
    "grad_mode": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast_cpu": lambda: torch.autocast("cpu"),
    "autocast_cpu_dtype": lambda: _put(
        lambda: torch.get_autocast_dtype("cpu"),
        lambda new: torch.set_autocast_dtype("cpu", new),
        torch.float16,
    ),
    "autocast_cuda": lambda: _put(
        lambda: torch.is_autocast_enabled("cuda"), lambda new: torch.set_autocast_enabled("cuda", new), True
    ),
    "autocast_cuda_dtype": lambda: _put(
        lambda: torch.get_autocast_dtype("cuda"),
        lambda new: torch.set_autocast_dtype("cuda", new),
        torch.bfloat16,
    ),
    "autocast_other": lambda: _put(
        lambda: torch.is_autocast_enabled("privateuseone"),
        lambda new: torch.set_autocast_enabled("privateuseone", new),
        True,
    ),
    "autocast_cache": lambda: _put(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, False),
    "flush_denormal": _flushing,
    "default_dtype": lambda: _put(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "anomaly_mode": lambda: torch.autograd.set_detect_anomaly(True),
    "anomaly_check_nan": lambda: torch.autograd.set_detect_anomaly(False, check_nan=False),
    "deterministic": lambda: _put(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 2),
    "deterministic_warn_only": lambda: _put(
        torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 1
    ),
    "deterministic_fill": lambda: _attribute(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "fp32_precision": lambda: _precision("generic", "all"),
    "fp32_mkldnn": lambda: _precision("mkldnn", "all"),
    "fp32_mkldnn_conv": lambda: _precision("mkldnn", "conv"),
    "fp32_mkldnn_rnn": lambda: _precision("mkldnn", "rnn"),
    "fp32_mkldnn_matmul": lambda: _precision("mkldnn", "matmul"),
    "fp32_cuda": lambda: _precision("cuda", "all"),
    "fp32_cuda_conv": lambda: _precision("cuda", "conv"),
    "fp32_cuda_rnn": lambda: _precision("cuda", "rnn"),
    "fp32_cuda_matmul": lambda: _precision("cuda", "matmul"),
    "mkldnn": _private("mkldnn_enabled", False),
    "mkldnn_deterministic": _private("mkldnn_deterministic", True),
    "nnpack": _private("nnpack_enabled", False),
    "cudnn": _private("cudnn_enabled", False),
    "cudnn_benchmark": _private("cudnn_benchmark", True),
    "cudnn_deterministic": _private("cudnn_deterministic", True),
    "cudnn_depthwise": _private("cudnn_depthwise_kernel", "native"),
    "miopen_immediate": _private("miopen_immediate", True),
    "cublas_fp16_accumulation": _private("cublas_allow_fp16_accumulation", True),
    "sm_carveout": _private("sm_carveout_experimental", 5),
    "sdpa_flash": _sdp("flash"),
    "sdpa_fa3": _sdp("fa3", True),
    "sdpa_mem_efficient": _sdp("mem_efficient"),
    "sdpa_math": _sdp("math"),
    "sdpa_cudnn": _sdp("cudnn"),
    "sdpa_overrideable": _sdp("overrideable"),
    "sdpa_math_reduction": _private("math_sdp_allow_fp16_bf16_reduction", True),
    "sdpa_priority": _sdpa_priority,
    "cublas_fp16_reduction": _private("cublas_allow_fp16_reduced_precision_reduction", (False, True)),
    "cublas_bf16_reduction": _private("cublas_allow_bf16_reduced_precision_reduction", (False, True)),
    "quantized_engine": lambda: _attribute(torch.backends.quantized, "engine", "onednn"),
    "sparse_invariants": torch.sparse.check_sparse_tensor_invariants,
    "mha_fastpath": lambda: _attribute(torch.backends.mha, "_is_fastpath_enabled", False),
    "opt_einsum": lambda: _attribute(
        torch.backends.opt_einsum, "enabled", not torch.backends.opt_einsum.enabled
    ),
    "opt_einsum_strategy": lambda: _attribute(torch.backends.opt_einsum, "strategy", "optimal"),
}
# Only torch for CUDA, Intel GPUs or Arm CPUs lets these be set.
NOT_SETTABLE = {
    "cudnn_benchmark_limit",
    "linalg_library",
    "blas_library",
    "mkldnn_tf32",
    "cpu_fp16_reduction",
}
if not hasattr(torch._C, "_set_cudnn_depthwise_kernel"):  # older releases have no such setting
    del FLIPS["cudnn_depthwise"]
    NOT_SETTABLE.add("cudnn_depthwise")


def test_every_flag_of_the_table_is_flipped_here():
    names = [name for name, _of_thread in _C.process_flags()]
    assert len(set(names)) == len(names)
    assert set(FLIPS) | NOT_SETTABLE == set(names)


@pytest.mark.parametrize("name", FLIPS)
def test_a_flip_shows_in_the_key_and_in_the_fast_path(name):
    state, environment, numbers = process_state.process_state(), _C.environment(), process_state.named_state()
    with FLIPS[name]():
        flipped = process_state.named_state()
        assert flipped[name] != numbers[name]
        assert process_state.process_state() != state
        assert _C.environment() != environment
    assert process_state.named_state() == numbers
    assert process_state.process_state() == state
    assert _C.environment() == environment


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.linear(x)) + torch.ones(8)


@pytest.mark.parametrize("name", FLIPS)
def test_a_flip_between_two_calls_uses_no_trace_of_the_other_value(name):
    torch.manual_seed(0)
    model = Layers().eval().requires_grad_(False)
    compiled = staticrt.compile(model)
    x = torch.randn(2, 8)

    def check(traces):
        for _ in range(3):  # the later calls are served without Python
            got, want = compiled(x), model(x)
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want)
        assert len(compiled.explain().traces) == traces

    check(1)
    traces = 1 if name == "autocast_other" else 2  # calls under it are eager
    with FLIPS[name]():
        check(traces)
    check(traces)
    before = compiled._executor.fast.calls
    check(traces)
    assert compiled._executor.fast.calls > before


READS = {
    "mkldnn": lambda: torch.backends.mkldnn.enabled,
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
    "deterministic_fill": lambda: torch.utils.deterministic.fill_uninitialized_memory,
    "autocast_cpu_dtype": lambda: torch.get_autocast_dtype("cpu") == torch.bfloat16,
    "anomaly_mode": torch.is_anomaly_enabled,
    "anomaly_check_nan": torch.is_anomaly_check_nan_enabled,
    "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
    "sdpa_flash": torch.backends.cuda.flash_sdp_enabled,
    "fp32_mkldnn_matmul": lambda: torch.backends.mkldnn.matmul.fp32_precision == "none",
    "mha_fastpath": torch.backends.mha.get_fastpath_enabled,
    "opt_einsum": lambda: torch.backends.opt_einsum.enabled,
    "default_dtype": lambda: torch.get_default_dtype() == torch.float32,
}


@torch.no_grad()
@pytest.mark.parametrize("name", READS)
def test_a_model_that_reads_a_flag_follows_it(name):
    read = READS[name]

    def function(x):
        return x * (2.0 if read() else 3.0)

    compiled = staticrt.compile(function)
    x = torch.ones(3)
    for _ in range(2):
        first = function(x)
        for _ in range(3):
            assert torch.equal(compiled(x), function(x))
        with FLIPS[name]():
            assert not torch.equal(function(x), first)
            for _ in range(3):
                assert torch.equal(compiled(x), function(x))


def _of_c(read, write):
    read = getattr(torch._C, read)
    return read, getattr(torch._C, write), read(), not read()


@contextlib.contextmanager
def _group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


_future, _files = torch.__future__, torch.serialization
# What decides no result of an operator: its reader, its writer, torch's value, another one.
SETTINGS = {
    "multithreading": _of_c("_is_multithreading_enabled", "_set_multithreading_enabled"),
    "forward gradients": _of_c("_is_fwd_grad_enabled", "_set_fwd_grad_enabled"),
    "view replay": _of_c("_is_view_replay_enabled", "_set_view_replay_enabled"),
    "saved tensors' hooks": (
        torch._C._autograd._saved_tensors_hooks_is_enabled,
        lambda on: (
            torch._C._autograd._saved_tensors_hooks_enable()
            if on
            else torch._C._autograd._saved_tensors_hooks_disable("", False)
        ),
        *(True, False),
    ),
    "warnings": (torch.is_warn_always_enabled, torch.set_warn_always, False, True),
    "swapping": (
        _future.get_swap_module_params_on_conversion,
        _future.set_swap_module_params_on_conversion,
        *(False, True),
    ),
    "overwriting": (
        lambda: _future._overwrite_module_params_on_conversion,
        _future.set_overwrite_module_params_on_conversion,
        *(False, True),
    ),
    "digits": (
        lambda: torch._tensor_str.get_printoptions()["precision"],
        lambda digits: torch.set_printoptions(precision=digits),
        *(4, 7),
    ),
    "autocast's cache": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, True, False),
    "checksums": (_files.get_crc32_options, _files.set_crc32_options, True, False),
    "byte order": (
        lambda: len(str(_files.get_default_load_endianness())),
        _files.set_default_load_endianness,
        *(None, _files.LoadEndianness.BIG),
    ),
    "hub": (lambda: len(torch.hub.get_dir()), torch.hub.set_dir, torch.hub.get_dir(), "/others"),
    "process group": (
        lambda: dist.get_world_size() if dist.is_initialized() else 3,
        None,
        *(None, None),
    ),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_model_that_reads_a_setting_follows_it(name, gradients):
    asks, write, first, second = SETTINGS[name]
    holder = types.SimpleNamespace(asks=asks)
    compiled = staticrt.compile(lambda x: x * (2.0 + holder.asks()))
    x = torch.ones(3, requires_grad=gradients)
    if write is not None:
        write(first)
    for _ in range(2):
        want = 2.0 + asks()
        for _ in range(3):
            assert compiled(x).tolist() == [want] * 3
        with _group() if write is None else _put(lambda: first, write, second):
            assert want != 2.0 + asks()
            for _ in range(3):
                assert compiled(x).tolist() == [2.0 + asks()] * 3
    asks_the_trace = name in ("saved tensors' hooks", "autocast's cache")
    assert bool(compiled.explain().eager) is asks_the_trace


@pytest.mark.usefixtures("num_threads_stays")
@torch.no_grad()
def test_a_model_that_reads_the_number_of_threads_follows_it():
    def function(x):
        return x * torch.get_num_threads()

    compiled = staticrt.compile(function)
    x = torch.ones(3)
    for threads in (1, 2, 1, 2):
        torch.set_num_threads(threads)
        for _ in range(3):
            assert torch.equal(compiled(x), x * threads)


@pytest.mark.usefixtures("num_threads_stays")
@torch.no_grad()
def test_other_models_keep_their_trace_when_the_number_of_threads_changes():
    compiled = staticrt.compile(lambda x: x * 2)
    x = torch.ones(3)
    for threads in (1, 2, 1, 2):
        torch.set_num_threads(threads)
        for _ in range(3):
            assert torch.equal(compiled(x), x * 2)
    served = compiled._executor.fast.calls
    compiled(x)
    assert compiled._executor.fast.calls == served + 1
    assert len(compiled.explain().traces) == 1


@torch.no_grad()
def test_precision_set_by_new_and_old_switches_does_not_raise():
    """`torch.get_float32_matmul_precision()` does, after such a mix."""
    model = nn.Linear(4, 4)
    compiled = staticrt.compile(model)
    x = torch.ones(1, 4)
    compiled(x)
    with FLIPS["fp32_cuda_matmul"](), FLIPS["fp32_mkldnn_matmul"]():
        torch.testing.assert_close(compiled(x), model(x))
        with _put(lambda: "highest", torch.set_float32_matmul_precision, "medium"):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", [name for name, of_thread in _C.process_flags() if of_thread])
def test_work_in_other_threads_gets_the_flags_of_the_thread_that_forks(name):
    with FLIPS[name]():
        assert _in_worker(process_state.named_state) == process_state.named_state()
    assert _in_worker(process_state.named_state) == process_state.named_state()


def _in_worker(function):
    """Its result in a thread of `fork`; `wait` in this thread would call it here."""
    future = staticrt.fork(lambda: (threading.get_ident(), function()))
    while not future.done():
        time.sleep(0.001)
    ident, result = future.result()
    assert ident != threading.get_ident()
    return result


@pytest.mark.filterwarnings("ignore:.*runs eagerly")
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("times", [1, 9])
def test_a_flag_that_another_thread_sets_during_a_trace_costs_a_bounded_number_of_traces(
    times, gradients, monkeypatch
):
    left = iter(range(2 * times))
    asked = []

    def settings():
        asked.append(1)
        return {**process_state.settings(), "deterministic": next(left, -1)}

    monkeypatch.setattr(fake_run, "settings", settings)
    compiled = staticrt.compile(lambda x: x * 2)
    for _ in range(9):
        assert compiled(torch.ones(2, requires_grad=gradients)).tolist() == [2.0, 2.0]
    (item,) = compiled.explain().eager
    assert item.reason == "the model leaves another deterministic than it found"
    if times == 1:
        assert item.calls == 1
        assert sum(trace.calls for trace in compiled.explain().traces) == 8
    else:
        assert item.calls == 9
        assert len(asked) <= 6

#include "kernels/prepared_util.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "test.h"

namespace staticrt::test {

std::vector<at::Tensor> run_eager(const std::string& op, std::vector<c10::IValue> args) {
  const size_t dot = op.find('.');
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(
      op.substr(0, dot).c_str(), dot == std::string::npos ? "" : op.substr(dot + 1).c_str());
  const auto& schema = handle.schema();
  for (size_t i = args.size(); i < schema.arguments().size(); ++i)
    args.push_back(*schema.arguments()[i].default_value());
  torch::jit::Stack stack(args.begin(), args.end());
  handle.callBoxed(&stack);
  std::vector<at::Tensor> outs;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) outs.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) outs.push_back(t);
    }
  }
  return outs;
}

TensorMeta meta_of(const at::Tensor& t) {
  TensorMeta meta;
  if (!t.defined()) return meta;
  meta.dtype = t.scalar_type();
  meta.sizes.append(t.sizes().begin(), t.sizes().end());
  meta.strides.append(t.strides().begin(), t.strides().end());
  return meta;
}

namespace {

constexpr int64_t kGuardBytes = 128;
constexpr unsigned char kGuard = 0xA5;

// Bytes from the first to past the last element.
int64_t span_bytes(const at::Tensor& t) {
  if (t.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return (last + 1) * t.element_size();
}

}  // namespace

PreparedRun run_prepared(const std::string& op, const std::vector<c10::IValue>& given,
                         const std::vector<at::Tensor>& like, const RunOptions& options) {
  PreparedRun result;
  const PrepareFn prepare = options.prepare ? options.prepare : find_prepare(op);
  if (prepare == nullptr) fail(__FILE__, __LINE__, op + " has no prepare function");
  const size_t dot = op.find('.');
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(
      op.substr(0, dot).c_str(), dot == std::string::npos ? "" : op.substr(dot + 1).c_str());
  std::vector<c10::IValue> args = given;
  const auto& schema = handle.schema();
  for (size_t i = args.size(); i < schema.arguments().size(); ++i)
    args.push_back(*schema.arguments()[i].default_value());

  std::vector<char*> bases;
  PrepareRequest request;
  request.op = op;
  request.num_threads = options.num_threads;
  request.deterministic = options.deterministic;
  const auto operand = [&](const at::Tensor& t, bool constant) {
    TensorOperand o;
    o.meta = meta_of(t);
    if (!t.defined()) return o;
    o.where = {static_cast<uint32_t>(bases.size()), 0};
    bases.push_back(static_cast<char*>(const_cast<void*>(t.const_data_ptr())));
    o.is_fixed = constant;
    return o;
  };
  for (size_t i = 0; i < args.size(); ++i) {
    const bool constant = std::count(options.constants.begin(), options.constants.end(), i) > 0;
    PrepareRequest::Argument argument;
    const c10::IValue& value = args[i];
    if (value.isTensor()) {
      argument.tensors.push_back(operand(value.toTensor(), constant));
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) argument.tensors.push_back(operand(t, constant));
    } else if (value.isList() && !value.toListRef().empty() && value.toListRef()[0].isTensor()) {
      for (const c10::IValue& t : value.toListRef())
        argument.tensors.push_back(operand(t.toTensor(), constant));
    } else {
      argument.value = value;
    }
    request.args.push_back(std::move(argument));
  }
  std::vector<std::vector<unsigned char>> blocks;
  std::vector<unsigned char*> starts;
  for (const at::Tensor& t : like) {
    const int64_t bytes = span_bytes(t);
    blocks.emplace_back(static_cast<size_t>(bytes + 2 * kGuardBytes + 64 + options.misalign), kGuard);
    const auto address = reinterpret_cast<uintptr_t>(blocks.back().data()) + kGuardBytes;
    auto* start =
        reinterpret_cast<unsigned char*>((address + 63) / 64 * 64 + static_cast<uintptr_t>(options.misalign));
    std::memset(start, 0xFF, static_cast<size_t>(bytes));  // NaN
    starts.push_back(start);
    TensorOperand out;
    out.meta = meta_of(t);
    out.where = {static_cast<uint32_t>(bases.size()), 0};
    bases.push_back(reinterpret_cast<char*>(start));
    request.outs.push_back(std::move(out));
  }
  request.first_derived = static_cast<uint32_t>(bases.size());
  const auto call = prepare(request);
  if (!call) return result;
  std::vector<std::vector<char>> derived;
  for (const Derivation& derivation : request.derivations) {
    std::vector<const char*> sources;
    for (const TensorOperand& source : derivation.sources) sources.push_back(source.where.at(bases.data()));
    derived.emplace_back(static_cast<size_t>(derivation.size_bytes) + 64);
    char* start = derived.back().data();
    start += (64 - reinterpret_cast<uintptr_t>(start) % 64) % 64;
    derivation.make(sources.data(), start);
    bases.push_back(start);
  }
  result.prepared = true;
  result.route = call->route;
  result.grids = call->grids;
  std::vector<unsigned char> workspace(static_cast<size_t>(request.workspace_bytes) + 64 + kGuardBytes,
                                       kGuard);
  auto* scratch =
      reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64);
  for (int run = 0; run < 2; ++run) {  // twice: nothing may be left behind that changes the next run
    result.status = call->run(call->params.get(), bases.data(), reinterpret_cast<char*>(scratch));
  }
  for (int64_t k = 0; k < kGuardBytes; ++k) {
    if (scratch[request.workspace_bytes + k] != kGuard)
      fail(__FILE__, __LINE__, op + " wrote past its workspace");
    if (scratch + request.workspace_bytes + k + 1 == workspace.data() + workspace.size()) break;
  }
  for (size_t i = 0; i < like.size(); ++i) {
    const int64_t bytes = span_bytes(like[i]);
    for (int64_t k = 1; k <= kGuardBytes; ++k) {
      if (starts[i][-k] != kGuard) fail(__FILE__, __LINE__, op + " wrote before output " + std::to_string(i));
      if (starts[i][bytes + k - 1] != kGuard)
        fail(__FILE__, __LINE__, op + " wrote past output " + std::to_string(i));
    }
    at::Tensor out = at::empty_strided(like[i].sizes(), like[i].strides(), like[i].options());
    if (bytes > 0) std::memcpy(out.mutable_data_ptr(), starts[i], static_cast<size_t>(bytes));
    result.outs.push_back(out);
  }
  return result;
}

namespace {

template <class T>
double element(const at::Tensor& t, int64_t i) {
  return static_cast<double>(t.const_data_ptr<T>()[i]);
}

double element(const at::Tensor& t, int64_t i) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return element<float>(t, i);
    case at::kDouble:
      return element<double>(t, i);
    case at::kHalf:
      return element<at::Half>(t, i);
    case at::kBFloat16:
      return element<at::BFloat16>(t, i);
    default:
      return 0;
  }
}

}  // namespace

void expect_close(const at::Tensor& got_any, const at::Tensor& want_any, const Tolerance& tolerance,
                  const std::string& what) {
  const at::Tensor got = got_any.contiguous();
  const at::Tensor want = want_any.contiguous();
  if (got.scalar_type() != want.scalar_type() || got.sizes() != want.sizes()) {
    fail(__FILE__, __LINE__, what + ": dtype or sizes differ");
  }
  const auto bytes = static_cast<size_t>(got.element_size());
  const auto* x = static_cast<const char*>(got.const_data_ptr());
  const auto* y = static_cast<const char*>(want.const_data_ptr());
  const double unit = got.scalar_type() == at::kHalf       ? 0x1p-10
                      : got.scalar_type() == at::kBFloat16 ? 0x1p-7
                                                           : 0;
  for (int64_t i = 0; i < got.numel(); ++i) {
    if (std::memcmp(x + static_cast<size_t>(i) * bytes, y + static_cast<size_t>(i) * bytes, bytes) == 0)
      continue;
    if (got.is_floating_point()) {
      const double a = element(got, i);
      const double b = element(want, i);
      if (std::isnan(a) && std::isnan(b)) continue;
      if (!tolerance.bitwise() && std::isfinite(a) && std::isfinite(b) &&
          std::abs(a - b) <= tolerance.absolute + (tolerance.relative + unit) * std::abs(b)) {
        continue;
      }
      std::ostringstream out;
      out.precision(17);
      out << what << ": element " << i << " of " << got.numel() << " is " << a << ", want " << b;
      fail(__FILE__, __LINE__, out.str());
    }
    std::ostringstream out;
    out << what << ": element " << i << " of " << got.numel() << " differs";
    fail(__FILE__, __LINE__, out.str());
  }
}

static bool reads_narrow_integers_only(const std::vector<c10::IValue>& args) {
  return std::ranges::all_of(args, [](const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) return !value.isTensorList();
    const at::ScalarType dtype = value.toTensor().scalar_type();
    return c10::isIntegralType(dtype, /*includeBool=*/false) && dtype != at::kLong;
  });
}

void expect_prepared(const std::string& op, const std::vector<c10::IValue>& args, const RunOptions& options,
                     bool exact) {
  std::vector<at::Tensor> before;
  for (const c10::IValue& value : args) {
    if (value.isTensor() && value.toTensor().defined()) before.push_back(value.toTensor().clone());
  }
  const auto want = run_eager(op, args);
  const auto got = run_prepared(op, args, want, options);
  std::string what = op;
  for (const c10::IValue& value : args) {
    std::ostringstream out;
    if (value.isTensor() && value.toTensor().defined()) {
      const at::Tensor& t = value.toTensor();
      out << " " << t.scalar_type() << t.sizes() << "/" << t.strides();
    } else if (!value.isTensor() && !value.isTensorList()) {
      out << " " << value;
    }
    what += out.str();
  }
  if (!got.prepared && reads_narrow_integers_only(args))
    return;  // torch is faster; chains test such operators
  if (!got.prepared) fail(__FILE__, __LINE__, what + ": prepare declined");
  if (got.status != kRan) fail(__FILE__, __LINE__, what + ": asked for a redo");
  for (size_t i = 0; i < want.size(); ++i) {
    expect_close(got.outs[i], want[i], exact ? Tolerance{} : prepared_tolerance(op),
                 what + " (" + got.route + "), output " + std::to_string(i));
  }
  size_t k = 0;
  for (const c10::IValue& value : args) {
    if (value.isTensor() && value.toTensor().defined()) {
      expect_close(value.toTensor(), before[k++], {}, what + ": an input was modified");
    }
  }
}

at::Tensor random_tensor(std::mt19937& rng, at::IntArrayRef sizes, at::ScalarType dtype, bool special) {
  at::Tensor wide = at::empty(sizes, at::kDouble);
  auto* data = wide.mutable_data_ptr<double>();
  std::normal_distribution<double> normal(0, 2);
  std::uniform_int_distribution<int> integer(-6, 6);
  std::uniform_int_distribution<int> kind(0, 15);
  const double specials[] = {NAN,    INFINITY, -INFINITY, 0.0,  -0.0, 1e-41,
                             -1e-41, 88.5,     -103.0,    1e38, 1.0,  -1.0};
  for (int64_t i = 0; i < wide.numel(); ++i) {
    if (!at::isFloatingType(dtype)) {
      data[i] = dtype == at::kByte   ? std::abs(integer(rng))
                : dtype == at::kBool ? integer(rng) > 0
                                     : integer(rng);
    } else if (special && kind(rng) == 0) {
      data[i] = specials[std::uniform_int_distribution<size_t>(0, std::size(specials) - 1)(rng)];
    } else {
      data[i] = normal(rng) * (kind(rng) < 2 ? 10 : 1);
    }
  }
  return wide.to(dtype);
}

c10::IValue ints(std::vector<int64_t> values) {
  return c10::List<int64_t>(at::ArrayRef<int64_t>(values));
}

at::Tensor unit(std::mt19937& rng, at::IntArrayRef sizes, at::ScalarType dtype, double scale) {
  return random_tensor(rng, sizes, dtype).clamp(-2, 2).mul(scale);
}

at::Tensor with_random_layout(std::mt19937& rng, const at::Tensor& t) {
  const int64_t rank = t.dim();
  switch (std::uniform_int_distribution<int>(0, 4)(rng)) {
    case 0:
      return t;
    case 1: {  // permuted in memory
      std::vector<int64_t> order(static_cast<size_t>(rank));
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), rng);
      std::vector<int64_t> back(order.size());
      for (size_t d = 0; d < order.size(); ++d) back[static_cast<size_t>(order[d])] = static_cast<int64_t>(d);
      return t.permute(order).contiguous().permute(back);
    }
    case 2: {  // every second element of a larger tensor
      if (rank == 0) return t;
      std::vector<int64_t> sizes = t.sizes().vec();
      const int64_t d = std::uniform_int_distribution<int64_t>(0, rank - 1)(rng);
      sizes[static_cast<size_t>(d)] = 2 * sizes[static_cast<size_t>(d)] + 1;
      at::Tensor larger = at::empty(sizes, t.options());
      at::Tensor view = larger.slice(d, 1, sizes[static_cast<size_t>(d)], 2);
      view.copy_(t);
      return view;
    }
    case 3: {  // unaligned base
      at::Tensor flat = at::empty({t.numel() + 1}, t.options());
      at::Tensor view = flat.slice(0, 1).view(t.sizes());
      view.copy_(t);
      return view;
    }
    default: {  // a dimension expanded from one element
      if (rank == 0 || t.numel() == 0) return t;
      const int64_t d = std::uniform_int_distribution<int64_t>(0, rank - 1)(rng);
      return t.slice(d, 0, 1).contiguous().expand(t.sizes());
    }
  }
}

}  // namespace staticrt::test

#include "driver.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <cstring>
#include <optional>

#include "kernels/registry/registry.h"
#include "test.h"

namespace staticrt::test {
namespace {

c10::OperatorHandle handle_of(const std::string& op) {
  const size_t dot = op.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      op.substr(0, dot).c_str(), dot == std::string::npos ? "" : op.substr(dot + 1).c_str());
}

std::vector<char> bytes_of(const at::Tensor& t) {
  const at::Tensor dense = t.resolve_conj().resolve_neg().contiguous();
  const auto* data = static_cast<const char*>(dense.data_ptr());
  return data ? std::vector<char>(data, data + dense.nbytes()) : std::vector<char>();
}

std::string shape_text(const at::Tensor& t) {
  std::ostringstream text;
  text << t.scalar_type() << t.sizes() << " strides " << t.strides();
  return text.str();
}

void expect_same(const at::Tensor& got, const at::Tensor& want, double relative, const std::string& when) {
  if (got.scalar_type() != want.scalar_type() || got.sizes() != want.sizes() ||
      got.strides() != want.strides() || got.is_conj() != want.is_conj() || got.is_neg() != want.is_neg()) {
    fail(__FILE__, __LINE__, when + ": got " + shape_text(got) + ", want " + shape_text(want));
  }
  if (relative > 0 ? !at::allclose(got, want, relative, relative, true) : bytes_of(got) != bytes_of(want)) {
    std::ostringstream text;
    text << when << ": values differ: got\n" << got << "\nwant\n" << want;
    fail(__FILE__, __LINE__, text.str());
  }
}

// The slots and argument table of one node.
class Node {
 public:
  // spans: lists of tensors or ints become operand spans, one slot per element.
  Node(const std::vector<c10::IValue>& args, size_t num_outputs, bool spans) {
    for (const c10::IValue& value : args) {
      Arg arg{static_cast<uint32_t>(ids_.size()), 1, false};
      if (spans && value.isList() && value.toListRef().size() > 0) {
        arg.count = static_cast<uint32_t>(value.toListRef().size());
        arg.is_list = true;
        for (const c10::IValue& element : value.toListRef()) add(element);
      } else {
        add(value);
      }
      args_.push_back(arg);
    }
    first_output_ = static_cast<uint32_t>(slots_.size());
    slots_.resize(slots_.size() + num_outputs);
    num_outputs_ = static_cast<uint32_t>(num_outputs);
  }
  c10::IValue& output(size_t k) { return slots_[first_output_ + k]; }
  void run(const Kernel& kernel) {
    Operands op(slots_.data(), ids_.data(), args_.data(), static_cast<uint32_t>(args_.size()), first_output_,
                num_outputs_);
    kernel.run(op);
  }

 private:
  void add(const c10::IValue& value) {
    ids_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.push_back(value);
  }
  std::vector<c10::IValue> slots_;
  std::vector<ValueId> ids_;
  std::vector<Arg> args_;
  uint32_t first_output_ = 0;
  uint32_t num_outputs_ = 0;
};

void poison(const at::Tensor& t) {
  if (t.storage().nbytes() > 0) std::memset(t.storage().mutable_data(), 0x7f, t.storage().nbytes());
}

void set_empty(const at::Tensor& t) {
  t.unsafeGetTensorImpl()->set_sizes_contiguous({0});
}

// What the op itself gives, lists flattened; nullopt if it throws.
std::optional<std::vector<c10::IValue>> eager(const OpCall& c) {
  torch::jit::Stack stack = c.args;
  try {
    handle_of(c.op).callBoxed(stack);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  std::vector<c10::IValue> results;
  for (const c10::IValue& value : stack) {
    if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) results.push_back(element);
    } else {
      results.push_back(value);
    }
  }
  return results;
}

void expect_throw(const OpCall& c, const Kernel& kernel, bool spans) {
  if (kernel.kind == KernelKind::kOut) return;  // the dtype of the output is unknown
  Node node(c.args, 1, spans);
  try {
    node.run(kernel);
  } catch (const std::exception&) {
    return;
  }
  fail(__FILE__, __LINE__, "the op throws, the kernel does not");
}

void check_out(const OpCall& c, const Kernel& kernel, const std::vector<c10::IValue>& want, double relative,
               bool spans, size_t compared_outputs) {
  Node node(c.args, want.size(), spans);
  std::vector<at::Tensor> outs;
  for (size_t k = 0; k < want.size(); ++k) {
    if (!want[k].isTensor()) fail(__FILE__, __LINE__, "an out variant gives tensors only");
    outs.push_back(at::empty({0}, want[k].toTensor().options()));
    node.output(k) = outs[k];
  }
  const auto run = [&](const std::string& when) {
    node.run(kernel);
    for (size_t k = 0; k < want.size(); ++k) {
      if (!node.output(k).toTensor().is_same(outs[k])) fail(__FILE__, __LINE__, when + ": output replaced");
      if (k >= compared_outputs) continue;
      expect_same(outs[k], want[k].toTensor(), relative, when + ", output " + std::to_string(k));
    }
  };
  run("fresh output");
  std::vector<const void*> storages;
  for (const at::Tensor& out : outs) {
    poison(out);
    set_empty(out);
    storages.push_back(out.storage().data());
  }
  run("emptied output");
  for (size_t k = 0; k < outs.size(); ++k) {
    if (outs[k].storage().data() != storages[k])
      fail(__FILE__, __LINE__, "a storage large enough was replaced");
    outs[k].resize_({want[k].toTensor().numel() + 37});
    poison(outs[k]);
    set_empty(outs[k]);
  }
  run("larger output");
  for (size_t k = 0; k < outs.size(); ++k) {
    const at::Tensor& w = want[k].toTensor();
    outs[k] = at::empty_strided(w.sizes(), w.strides(), w.options());
    poison(outs[k]);
    node.output(k) = outs[k];
  }
  run("output of final size");
}

void check_native(const OpCall& c, const Kernel& kernel, const std::vector<c10::IValue>& want, bool spans) {
  Node node(c.args, want.size(), spans);
  for (int call = 0; call < 3; ++call) {
    node.run(kernel);
    for (size_t k = 0; k < want.size(); ++k) {
      const c10::IValue& got = node.output(k);
      if (want[k].isTensor()) {
        expect_same(got.toTensor(), want[k].toTensor(), 0, "view " + std::to_string(k));
        for (const c10::IValue& arg : c.args) {
          if (!arg.isTensor() || !want[k].toTensor().is_alias_of(arg.toTensor())) continue;
          if (!got.toTensor().is_alias_of(arg.toTensor()) ||
              got.toTensor().storage_offset() != want[k].toTensor().storage_offset()) {
            fail(__FILE__, __LINE__, "eager gives a view here, the kernel other bytes");
          }
        }
      } else if (got.tagKind() != want[k].tagKind() || !got.equals(want[k]).toBool()) {
        std::ostringstream text;
        text << "number " << k << ": got " << got << ", want " << want[k];
        fail(__FILE__, __LINE__, text.str());
      }
    }
  }
}

}  // namespace

bool check_case(const OpCall& c, double relative, size_t compared_outputs) {
  const Kernel* kernel = find_kernel(c.op);
  if (!kernel) fail(__FILE__, __LINE__, "no kernel for " + c.op);
  const at::AutoDispatchBelowADInplaceOrView guard;
  std::vector<std::vector<char>> before;
  for (const c10::IValue& arg : c.args) {
    if (arg.isTensor()) before.push_back(bytes_of(arg.toTensor()));
  }
  const auto want = eager(c);
  for (const bool spans : {false, true}) {
    if (!want) {
      expect_throw(c, *kernel, spans);
    } else if (kernel->kind == KernelKind::kOut) {
      check_out(c, *kernel, *want, relative, spans, compared_outputs);
    } else {
      check_native(c, *kernel, *want, spans);
    }
  }
  size_t index = 0;
  for (const c10::IValue& arg : c.args) {
    if (arg.isTensor() && bytes_of(arg.toTensor()) != before[index++]) {
      fail(__FILE__, __LINE__, "an argument was changed");
    }
  }
  return want.has_value();
}

void check_cases(const std::vector<std::string>& lines, double relative) {
  std::string failures;
  for (const std::string& full : lines) {
    const size_t start = full.find_first_not_of("=?");
    const bool plain_only = full.find('=') < start;
    const bool may_refuse = full.find('?') < start;
    const std::string line = full.substr(start);
    for (const char layout : {'\0', 't', 's', 'e', 'n'}) {
      if (plain_only && layout) break;
      at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
      generator.set_current_seed(17);
      try {
        const bool accepted = check_case(parse_case(line, layout), relative);
        if (!accepted && !layout && !may_refuse) fail(__FILE__, __LINE__, "the op refuses this case");
      } catch (const std::exception& error) {
        failures.append("\n  ").append(line).append(layout ? std::string(" layout ") + layout : "");
        failures.append(": ").append(std::string(error.what()).substr(0, 600));
      }
    }
  }
  if (!failures.empty()) fail(__FILE__, __LINE__, failures);
}

std::vector<std::string> cross(const std::vector<std::string>& ops,
                               const std::vector<std::string>& arguments) {
  std::vector<std::string> lines;
  for (const std::string& op : ops) {
    for (const std::string& args : arguments) {
      const size_t start = args.find_first_not_of("=?");
      std::string line = args.substr(0, start);
      line.append("aten::").append(op).append(" ").append(args.substr(start));
      lines.push_back(line);
    }
  }
  return lines;
}

namespace {
std::vector<std::string>& mutable_grouped_lines() {
  static std::vector<std::string> lines;
  return lines;
}
}  // namespace

CaseGroup::CaseGroup(const char* test_name, std::vector<std::string> lines, double relative) {
  mutable_grouped_lines().insert(mutable_grouped_lines().end(), lines.begin(), lines.end());
  Register(test_name, [lines = std::move(lines), relative] { check_cases(lines, relative); });
}

const std::vector<std::string>& grouped_lines() {
  return mutable_grouped_lines();
}

}  // namespace staticrt::test

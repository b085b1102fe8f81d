// Archives loaded on another device than they were saved on.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <torch/library.h>

#include "archive/archive.h"
#include "archive/moved_program.h"
#include "common/error.h"
#include "kernels/registry/torch_version.h"
#include "programs.h"
#include "simulated/enable.h"
#include "staticrt/staticrt.h"
#include "test.h"
#include "zip_writer.h"

namespace staticrt::test {
namespace {

const at::Device kXla(at::kXLA, 0);  // a device that no test process has

at::Device sim(int index) {
  static const bool made = [] {
    simulated::DevicesConfig config;
    config.count = 2;
    config.total_bytes = 64 * alloc::kMiB;
    simulated::enable(config);
    return true;
  }();
  (void)made;
  return {simulated::kDeviceType, static_cast<c10::DeviceIndex>(index)};
}

// x * weight + 0.5 at each place of a constant tensor. `said`: where the program says that its inputs are.
std::string make_archive_on(at::Device device, std::optional<at::Device> said = std::nullopt) {
  ProgramBuilder builder;
  ValueInfo info = tensor_info("");
  info.device = device;
  const auto named = [&](const char* name) {
    ValueInfo input = info;
    input.name = name;
    input.device = said.value_or(device);
    return input;
  };
  const ValueId weight = builder.add_input(named("weight"));
  const ValueId x = builder.add_input(named("x"));
  const ValueId half = builder.add_constant(at::full({3}, 0.5).to(device));
  const ValueId alpha = builder.add_constant(1);
  const auto add = [&](const char* op, const char* overload, std::vector<ProgramBuilder::ArgSpec> args) {
    Node node;
    node.op = std::string(op) + "." + overload;
    node.handle = c10::Dispatcher::singleton().findSchemaOrThrow(op, overload);
    node.name = op;
    return builder.add_node(std::move(node), args, {info})[0];
  };
  const ValueId product = add("aten::mul", "Tensor", {one(x), one(weight)});
  builder.set_outputs({add("aten::add", "Tensor", {one(product), one(half), one(alpha)})});
  ArchiveBuilder archive;
  TraceSpec spec;
  spec.program = builder.build();
  spec.model_tensors = {archive.add_tensor(at::full({1}, 2.0).to(device))};
  LeafSpec leaf;
  leaf.name = "x";
  leaf.dim = 1;
  leaf.input = 0;
  leaf.device = device;
  spec.leaves = {leaf};
  spec.outputs = {0};
  archive.add_trace(spec);
  archive.add_weight({"weight", WeightKind::kParameter, 0});
  std::vector<std::pair<std::string, std::string>> records;
  std::vector<std::string> names;
  for (const at::Tensor& storage : archive.storages()) {
    names.push_back("weights/" + std::to_string(names.size()));
    records.emplace_back(names.back(), std::string(static_cast<const char*>(storage.const_data_ptr()),
                                                   static_cast<size_t>(storage.numel())));
  }
  const ArchiveFacts facts{"0.1.0", torch_version(), "AVX2", "AVX2, a processor", {}, "Model", "[]"};
  records.emplace_back(kProgramRecord, archive.finish(facts, names));
  return make_zip(records);
}

at::Tensor plus_one(const at::Tensor& x) {
  return x + 1;
}

Module load_on(const std::string& bytes, std::optional<at::Device> device) {
  LoadOptions options;
  options.device = device;
  return load(bytes.data(), bytes.size(), options);
}

// One operator on constants, whose result is said to be on the device.
std::shared_ptr<const Program> program_of(const std::string& op, const std::vector<c10::IValue>& constants,
                                          at::Device device) {
  ProgramBuilder builder;
  std::vector<ProgramBuilder::ArgSpec> args;
  for (const c10::IValue& constant : constants) args.push_back(one(builder.add_constant(constant)));
  ValueInfo info = tensor_info("made");
  info.device = device;
  Node node;
  node.op = op;
  node.name = "made";
  node.handle = c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), "");
  builder.set_outputs({builder.add_node(std::move(node), args, {info})[0]});
  return builder.build();
}

}  // namespace

TEST(placement_a_module_is_loaded_on_a_device) {
  for (const at::Device saved : {at::Device(at::kCPU), sim(0)}) {
    const std::string bytes = make_archive_on(saved);
    for (const at::Device here : {at::Device(at::kCPU), sim(0), sim(1)}) {
      const Module model = load_on(bytes, here);
      EXPECT(model.weights().at(0).second.device() == here);
      for (int call = 0; call < 3; ++call) {
        const at::Tensor x = at::randn({3});
        const at::Tensor y = model.run({x.to(here)})[0];
        EXPECT(y.device() == here);
        EXPECT(y.cpu().allclose(x * 2 + 0.5));
      }
      const at::Device other = here.is_cpu() ? sim(0) : at::Device(at::kCPU);
      EXPECT_THROW(model.run({at::randn({3}).to(other)}), CallError, "expected on " + here.str());
    }
    EXPECT(load_on(bytes, std::nullopt).weights().at(0).second.device() == saved);
  }
}

TEST(placement_devices_that_hold_no_model_are_refused) {
  const std::string bytes = make_archive_on(at::kCPU);
  EXPECT_THROW(load_on(bytes, at::Device(at::kMeta)), ArchiveError, "on meta, which holds no values");
  EXPECT_THROW(load_on(bytes, kXla), ArchiveError, "loaded on xla:0: this process does not have that device");
  const at::Device absent(simulated::kDeviceType, 7);
  EXPECT_THROW(load_on(bytes, absent), ArchiveError, "this process does not have that device");
}

TEST(placement_programs_say_where_their_inputs_are) {
  const std::string wrong = make_archive_on(sim(0), at::Device(at::kCPU));
  EXPECT_THROW(load_on(wrong, std::nullopt), ArchiveError,
               "input weight of the program is on cpu, what it gets on sim:0");
  EXPECT_THROW(load_on(make_archive_on(at::kCPU, sim(1)), std::nullopt), ArchiveError,
               "input weight of the program is on sim:1, what it gets on cpu");
}

TEST(placement_names_without_an_index_are_of_the_only_device_of_their_type) {
  (void)sim(0);
  const Placement one_device({"sim:1"}, std::nullopt);
  EXPECT(one_device.of("sim") == sim(1) && one_device.of("sim:1") == sim(1));
  EXPECT(one_device.of("cpu").is_cpu() && !one_device.moves());
  EXPECT_THROW(one_device.of("sim:0"), ArchiveError, "a constant on device sim:0, but no tensor of it");
  const Placement two({"sim:0", "sim:1"}, std::nullopt);
  EXPECT_THROW(two.of("sim"), ArchiveError, "sim without an index but has several of them, sim:0, sim:1");
  EXPECT_THROW(Placement({"sim:0", "sim:1"}, at::Device(at::kCPU)), ArchiveError,
               "cpu cannot take the place of all of them");
  const Placement moved({"xla:0"}, sim(0));
  EXPECT(moved.moves() && moved.of("xla") == sim(0) && moved.cpu().is_cpu());
  EXPECT_THROW(Placement({"meta"}, std::nullopt), ArchiveError, "saved with tensors on meta, a device that");
}

TEST(placement_operators_without_a_kernel_there_are_named) {
  static auto* library =
      new torch::Library(torch::Library::DEF, "placement_test", std::nullopt, __FILE__, __LINE__);
  library->def("host_only(Tensor x) -> Tensor");
  library->impl("host_only", c10::DispatchKey::CPU, torch::CppFunction(&plus_one));
  const auto program = program_of("placement_test::host_only", {at::full({1}, 0.5)}, kXla);
  EXPECT_THROW(check_kernels(*program), ArchiveError,
               "cannot be loaded on xla:0: operator 'placement_test::host_only' has no kernel there");
  check_kernels(*program_of("placement_test::host_only", {at::full({1}, 0.5)}, at::kCPU));
  library->def("xla_only(Tensor x) -> Tensor");
  library->impl("xla_only", c10::DispatchKey::XLA, torch::CppFunction(&plus_one));
  EXPECT_THROW(check_kernels(*program_of("placement_test::xla_only", {at::full({1}, 0.5)}, at::kCPU)),
               ArchiveError, "cannot be loaded on cpu: operator 'placement_test::xla_only' has no kernel");
}

TEST(placement_tensors_made_on_the_default_device_are_named) {
  const auto arange = [&](const c10::IValue& device, at::Device result) {
    return program_of("aten::arange", {3, c10::IValue(), c10::IValue(), device, c10::IValue()}, result);
  };
  EXPECT_THROW(check_kernels(*arange(c10::IValue(), sim(0))), ArchiveError,
               "node made of 'aten::arange' makes a tensor on the default device");
  check_kernels(*arange(sim(0), sim(0)));
  check_kernels(*arange(c10::IValue(), at::kCPU));
}

}  // namespace staticrt::test

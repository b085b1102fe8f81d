// Records of programs, tensors and traces: what was written is read, and damaged bytes are refused. The
// fuzz tests are meant to run under address and undefined-behaviour sanitizers too (-DSTATICRT_SANITIZE=...).
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <random>

#include "archive/archive.h"
#include "archive/constant_record.h"
#include "archive/trace_record.h"
#include "archive/zip_index.h"
#include "common/error.h"
#include "programs.h"
#include "test.h"
#include "zip_writer.h"

namespace staticrt::test {
namespace {

// sym arithmetic, a list argument, constants of every kind, control flow, aliases and a write.
std::shared_ptr<const Program> rich_program() {
  ProgramBuilder builder;
  const ValueId x = builder.add_input(tensor_info("x"));
  const ValueId n = builder.add_input({"n", false, std::nullopt, std::nullopt});
  const ValueId two = builder.add_constant(2);
  const ValueId weight = builder.add_constant(at::ones({2, 3}), "weight");
  const ValueId none = builder.add_constant(c10::IValue());
  const ValueId flag = builder.add_constant(true);
  const ValueId text = builder.add_constant("text");
  builder.add_constant(c10::List<int64_t>({1, 2, 3}));
  builder.add_constant(c10::List<double>({0.5}));
  builder.add_constant(c10::List<at::Tensor>({at::ones({1})}));
  builder.add_constant(at::Device(at::kCPU));
  builder.add_constant(c10::complex<double>(1, 2));
  Node sum;
  sum.op = "sym::add";
  sum.name = "sum";
  const ValueId m = builder.add_node(std::move(sum), {one(n), one(two)}, {{"sum", false, {}, {}}})[0];
  const ValueId y = add_op(builder, "aten::view", "", {one(x), {{m, two}, true}}, {{0, 0, false}});
  const ValueId z = add_op(builder, "aten::cat", "", {{{y, weight}, true}, one(two)});
  ProgramBuilder body;
  body.set_outputs({body.add_input(tensor_info("b"))});
  ProgramBuilder other;
  other.set_outputs({other.add_input(tensor_info("c"))});
  Node cond;
  cond.op = "srt::cond";
  cond.name = "cond";
  cond.where = "model.py:3";
  cond.has_effects = true;
  cond.bodies = {body.build(), other.build()};
  const ValueId chosen = builder.add_node(std::move(cond), {one(flag), {{z}, true}}, {tensor_info("out")})[0];
  (void)none;
  (void)text;
  builder.set_outputs({chosen, m, y});
  return builder.build();
}

std::vector<RouteChoice> rich_choices() {
  return {{"matmul", {1, 2, 3}, 4}};
}

std::vector<planner::KnownPlan> rich_plans() {
  return {{17, 128, {0, 64, 0}}, {18, 0, {}}};
}

TraceSpec rich_trace(TensorTable& tensors) {
  TraceSpec spec;
  spec.program = rich_program();
  spec.model_tensors = {tensors.add(at::ones({4}))};
  LeafSpec n;
  n.kind = LeafKind::kInt;
  n.name = "n";
  n.input = 0;
  LeafSpec strided;
  strided.name = "t";
  strided.dim = 2;
  strided.layout = std::vector<int64_t>{1, 0};
  LeafSpec constant;
  constant.kind = LeafKind::kConstant;
  constant.constant = "true";
  strided.empty_dims = 2;
  LeafSpec again = strided;
  again.name = "u";
  again.same = 1;
  spec.leaves = {n, strided, constant, again};
  spec.decided = true;
  spec.random = true;
  spec.symbols = {{"s0", 1, SizeSymbol::Prop::kSize, 1}, {"s1", 0, SizeSymbol::Prop::kValue, 0}};
  ProgramBuilder guards;
  const ValueId a = guards.add_input({"s0", false, {}, {}});
  const ValueId b = guards.add_input({"s1", false, {}, {}});
  Node less;
  less.op = "sym::lt";
  less.name = "less";
  guards.set_outputs({guards.add_node(std::move(less), {one(a), one(b)}, {{"less", false, {}, {}}})[0]});
  spec.guards = guards.build();
  spec.guard_texts = {"s0 < s1"};
  spec.outputs = {0, -1, 2};
  spec.structure = "{}";
  spec.packed = {{"panels", tensors.add(at::zeros({64}, at::kByte))}};
  spec.choices = rich_choices();
  spec.plans = rich_plans();
  return spec;
}

// One record: the tensors, then a trace.
struct Written {
  std::string bytes;
  std::shared_ptr<Blob> blob;
};

Written write_all() {
  TensorTable tensors;
  ByteWriter trace;
  write_trace(rich_trace(tensors), trace, tensors);
  std::vector<std::pair<std::string, std::string>> records;
  std::vector<std::string> names;
  for (const at::Tensor& storage : tensors.storages()) {
    names.push_back("w" + std::to_string(names.size()));
    records.emplace_back(names.back(), std::string(static_cast<const char*>(storage.const_data_ptr()),
                                                   static_cast<size_t>(storage.numel())));
  }
  ByteWriter out;
  tensors.write(out, names);
  return {out.take() + trace.bytes(), Blob::copy_of(make_zip(records))};
}

TraceSpec read_all(std::string_view bytes, const std::shared_ptr<Blob>& blob) {
  ByteReader in(bytes, "test");
  const ZipIndex zip(blob->view());
  LoadedTensors tensors(in, blob, zip, true, Placement(), kFormatVersion);
  TraceSpec spec = read_trace(in, tensors);
  in.expect_end();
  return spec;
}

TEST(a_trace_reads_as_it_was_written) {
  const Written written = write_all();
  const TraceSpec spec = read_all(written.bytes, written.blob);
  const auto expected = rich_program();
  EXPECT_EQ(spec.program->to_string(), expected->to_string());
  EXPECT_EQ(spec.program->describe(spec.program->nodes()[3]), "cond = srt::cond   (model.py:3)");
  EXPECT(spec.program->nodes()[3].has_effects);
  EXPECT_EQ(spec.program->nodes()[1].aliases.size(), size_t{1});
  EXPECT_EQ(spec.program->constants().size(), expected->constants().size());
  for (size_t i = 0; i < expected->constants().size(); ++i) {
    const c10::IValue& got = spec.program->constants()[i];
    const c10::IValue& want = expected->constants()[i];
    EXPECT_EQ(got.tagKind(), want.tagKind());
    if (want.isTensor()) {
      EXPECT(got.toTensor().equal(want.toTensor()));
    } else if (want.isList()) {
      EXPECT(*got.toList().elementType() == *want.toList().elementType());
      EXPECT_EQ(got.toListRef().size(), want.toListRef().size());
    } else {
      EXPECT(got == want);
    }
  }
  EXPECT_EQ(spec.leaves[1].layout->at(0), 1);
  EXPECT_EQ(spec.leaves[1].empty_dims, uint64_t{2});
  EXPECT_EQ(spec.leaves[1].same, -1);
  EXPECT_EQ(spec.leaves[3].same, 1);
  EXPECT(spec.decided && spec.random);
  EXPECT_EQ(spec.symbols[1].name, "s1");
  EXPECT_EQ(spec.guards->nodes().size(), size_t{1});
  EXPECT_EQ(spec.outputs[1], -1);
  EXPECT_EQ(spec.packed[0].key, "panels");
  EXPECT_EQ(spec.packed[0].tensor, 1U);
  EXPECT(spec.choices == rich_choices());
  EXPECT(spec.plans == rich_plans());
}

TEST(writing_what_was_read_gives_the_same_bytes) {
  const Written written = write_all();
  const TraceSpec spec = read_all(written.bytes, written.blob);
  TensorTable tensors;
  ByteWriter again;
  TraceSpec copy = spec;
  copy.model_tensors = {tensors.add(at::ones({4}))};
  copy.packed[0].tensor = tensors.add(at::zeros({64}, at::kByte));
  write_trace(copy, again, tensors);
  EXPECT(written.bytes.ends_with(again.bytes()));
}

TEST(every_cut_of_a_record_is_refused) {
  const Written written = write_all();
  for (size_t size = 0; size < written.bytes.size(); ++size) {
    EXPECT_THROW(read_all(std::string_view(written.bytes).substr(0, size), written.blob), ArchiveError,
                 "damaged");
  }
}

// Refused or read, but never out of bounds. Returns how many were refused.
template <class Read>
int fuzz(const std::string& bytes, int rounds, const Read& read) {
  std::mt19937_64 random(1);
  const uint64_t extremes[] = {0,          1,          0x7f,       0xff,       0xffff,
                               0x7fffffff, 0xffffffff, 1ULL << 32, 1ULL << 63, ~0ULL};
  int refused = 0;
  for (int round = 0; round < rounds; ++round) {
    std::string mutated = bytes;
    const int changes = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < changes; ++i) {
      const size_t place = random() % mutated.size();
      switch (random() % 4) {
        case 0:
          mutated[place] = static_cast<char>(mutated[place] ^ (1 << random() % 8));
          break;
        case 1:
          mutated[place] = static_cast<char>(random());
          break;
        case 2: {
          const uint64_t word = extremes[random() % 10];
          const size_t size = random() % 2 ? 8 : 4;
          if (place + size <= mutated.size()) std::memcpy(mutated.data() + place, &word, size);
          break;
        }
        default:
          mutated.erase(place, random() % 9);
          if (mutated.empty()) mutated = "x";
      }
    }
    try {
      read(mutated);
    } catch (const ArchiveError&) {
      ++refused;
    } catch (const InputError&) {
      ++refused;
    }
  }
  return refused;
}

TEST(mutated_records_are_refused_or_read) {
  const Written written = write_all();
  const int refused =
      fuzz(written.bytes, 20000, [&](const std::string& bytes) { read_all(bytes, written.blob); });
  EXPECT(refused > 10000);
}

TEST(mutated_zip_files_are_refused_or_read) {
  const std::string zip = make_zip({{"a", "first"}, {"folder/b", std::string(100, 'b')}, {"c", ""}});
  const ZipIndex whole(zip);
  EXPECT_EQ(whole.size(), size_t{3});
  EXPECT_EQ(whole.find("folder/b")->size, size_t{100});
  EXPECT_EQ(whole.find("a")->offset % 64, size_t{0});
  EXPECT(!whole.find("d"));
  const int refused = fuzz(zip, 20000, [&](const std::string& bytes) {
    const ZipIndex index(bytes);
    for (const char* name : {"a", "folder/b", "c"}) {
      const ZipRecord* record = index.find(name);
      if (record) (void)checksum(bytes.data() + record->offset, record->size);
    }
  });
  EXPECT(refused > 2000);
}

TEST(a_single_changed_bit_changes_the_checksum) {
  std::string bytes(133, '\0');
  std::mt19937 random(7);
  for (char& c : bytes) c = static_cast<char>(random());
  const uint64_t whole = checksum(bytes.data(), bytes.size());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    EXPECT(checksum(bytes.data(), bytes.size()) != whole);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  }
  EXPECT(checksum(bytes.data(), bytes.size() - 1) != whole);
  EXPECT_EQ(checksum(bytes.data(), bytes.size()), whole);
}

TEST(constants_that_no_archive_holds_are_named) {
  TensorTable tensors;
  ByteWriter out;
  const auto tuple = c10::ivalue::Tuple::create({c10::IValue(1)});
  EXPECT_THROW(write_constant(tuple, out, tensors), ArchiveError, "a constant of type Tuple");
  EXPECT_THROW(tensors.add(at::Tensor()), ArchiveError, "dense tensors");
}

TEST(tensors_over_one_storage_stay_so) {
  const at::Tensor base = at::ones({4, 5});
  TensorTable tensors;
  EXPECT_EQ(tensors.add(base), uint32_t{0});
  EXPECT_EQ(tensors.add(base.t()), uint32_t{1});
  EXPECT_EQ(tensors.add(base.select(0, 2)), uint32_t{2});
  EXPECT_EQ(tensors.add(base), uint32_t{0});
  EXPECT_EQ(tensors.storages().size(), size_t{1});
}

}  // namespace
}  // namespace staticrt::test

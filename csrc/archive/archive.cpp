#include "archive/archive.h"

#include <ATen/Version.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>

#include "archive/moved_program.h"
#include "archive/operator_rule.h"
#include "archive/zip_index.h"
#include "common/version.h"
#include "kernels/registry/torch_version.h"

namespace staticrt {
namespace {

constexpr std::string_view kMagic = "STATICRT";
constexpr size_t kHeaderBytes = 32;

// "2.13.0+cpu" is release "2.13".
std::string release_of(const std::string& version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

bool has_cpu_feature(const std::string& feature) {
  const std::string here = at::get_cpu_capability();
  return feature == here || feature == "DEFAULT" || (feature == "AVX2" && here == "AVX512");
}

void check_versions(const ArchiveFacts& facts) {
  SRT_ARCHIVE(
      release_of(facts.torch_version) == release_of(torch_version()), "archive was saved with torch ",
      facts.torch_version, ", this is torch ", torch_version(), "\n  fix: load it with torch ",
      release_of(facts.torch_version),
      ", or save it again here: staticrt.compile(torch.export.load(path).module()) and staticrt.save");
  for (const std::string& feature : facts.cpu_features) {
    SRT_ARCHIVE(has_cpu_feature(feature), "archive needs a CPU with ", feature, ", torch uses ",
                at::get_cpu_capability(),
                " here\n  fix: save it again without cpu_features, or load it on such a CPU");
  }
}

// The body of the record, and the version of its format.
std::pair<ByteReader, uint32_t> open_body(std::string_view record) {
  ByteReader header(record, "program.bin");
  SRT_ARCHIVE(record.size() >= kHeaderBytes && record.substr(0, kMagic.size()) == kMagic, header.damaged(),
              "it does not begin as one");
  for (size_t i = 0; i < kMagic.size(); ++i) header.get<char>();
  const auto format = header.get<uint32_t>();
  SRT_ARCHIVE(format >= 1 && format <= kFormatVersion, "archive has format version ", format, ", staticrt ",
              version(), " reads versions 1 to ", kFormatVersion,
              "\n  fix: load it with the staticrt that saved it, or save it again with this one");
  header.get<uint32_t>();
  const auto size = header.get<uint64_t>();
  const auto sum = header.get<uint64_t>();
  const std::string_view body = record.substr(kHeaderBytes);
  SRT_ARCHIVE(size == body.size(), header.damaged(), "its body has ", body.size(), " bytes, expected ", size);
  SRT_ARCHIVE(checksum(body.data(), body.size()) == sum, header.damaged(), "its checksum differs");
  return {ByteReader(body, "program.bin"), format};
}

ArchiveFacts read_facts(ByteReader& in, uint32_t format) {
  ArchiveFacts facts;
  facts.staticrt_version = in.get_string();
  facts.torch_version = in.get_string();
  facts.cpu_capability = in.get_string();
  facts.cpu_features.resize(in.get_count(8));
  for (std::string& feature : facts.cpu_features) feature = in.get_string();
  facts.name = in.get_string();
  facts.calling = in.get_string();
  if (format >= 2) facts.machine = in.get_string();
  return facts;
}

}  // namespace

Archive::Archive(std::shared_ptr<Blob> blob, const std::string& where, const ArchiveOptions& options) {
  try {
    read(blob, options);
  } catch (const ArchiveError& error) {
    const std::string text = error.what();
    const size_t line = std::min(text.find('\n'), text.size());
    throw ArchiveError(text.substr(0, line) + "\n  at:  " + where + text.substr(line));
  } catch (const InputError& error) {
    throw ArchiveError(std::string("archive holds a program that cannot run: ") + error.what() +
                       "\n  at:  " + where);
  }
}

void Archive::read(const std::shared_ptr<Blob>& blob, const ArchiveOptions& options) {
  const c10::InferenceMode normal(false);  // weights may be written by any later call
  const ZipIndex zip(blob->view());
  const ZipRecord* record = zip.find(kProgramRecord);
  SRT_ARCHIVE(record, "archive has no program of staticrt's (record ", kProgramRecord,
              ")\n  fix: save one: staticrt.save(staticrt.compile(torch.export.load(path).module()), path)");
  auto [in, format] = open_body(blob->view().substr(record->offset, record->size));
  facts_ = read_facts(in, format);
  check_versions(facts_);
  std::vector<std::string> devices(format >= 5 ? in.get_count(8) : 0);
  SRT_ARCHIVE(devices.size() < kNoDevice, in.damaged(), devices.size(), " devices");
  for (std::string& device : devices) device = in.get_string();
  tensors_ = LoadedTensors(in, blob, zip, options.check_weights,
                           Placement(std::move(devices), options.device), format);
  weights_.resize(in.get_count(13));
  for (Weight& weight : weights_) {
    weight.name = in.get_string();
    const auto kind = in.get<uint8_t>();
    SRT_ARCHIVE(kind <= static_cast<uint8_t>(WeightKind::kConstant), in.damaged(), "weight ", weight.name);
    weight.kind = static_cast<WeightKind>(kind);
    weight.tensor = in.get_index(tensors_.size(), "tensor");
    tensors_.at(weight.tensor);
  }
  const size_t num_traces = in.get_count(100);
  for (size_t i = 0; i < num_traces; ++i) {
    TraceSpec spec = read_trace(in, tensors_);
    check_operators(*spec.program, options.allow_operators);
    if (spec.guards) check_operators(*spec.guards, options.allow_operators);
    if (placement().moves()) check_kernels(*spec.program);
    traces_.push_back(std::make_shared<SavedTrace>(std::move(spec), tensors_, options.executable));
    // Plans and packed weights are those of the device it was saved on.
    if (facts_.staticrt_version == version() && !placement().moves())
      traces_.back()->offer_work(tensors_, facts_.machine);
  }
  in.expect_end();
  tensors_.finish();
  SRT_ARCHIVE(!traces_.empty(), in.damaged(), "it holds no trace");
}

uint32_t ArchiveBuilder::add_packed(const PackedBytes& packed) {
  const uint64_t sum = checksum(packed.data.get(), static_cast<size_t>(packed.size_bytes));
  const auto [found, is_new] = packed_.try_emplace({sum, packed.size_bytes}, 0);
  // Other traces may have packed the same weights the same way.
  const bool is_same = !is_new && std::memcmp(tensors_.at(found->second).const_data_ptr(), packed.data.get(),
                                              static_cast<size_t>(packed.size_bytes)) == 0;
  if (is_same) return found->second;
  const uint32_t number = tensors_.add(at::from_blob(
      const_cast<char*>(packed.data.get()), {packed.size_bytes}, [keep = packed.data](void*) {},
      at::TensorOptions().dtype(at::kByte)));
  found->second = number;
  return number;
}

void ArchiveBuilder::add_trace(TraceSpec spec, const PriorWork& work) {
  for (const PackedBytes& packed : work.packed) spec.packed.push_back({packed.key, add_packed(packed)});
  spec.choices = work.choices;
  spec.plans = work.plans;
  write_trace(spec, traces_, tensors_);
  ++num_traces_;
}

std::string ArchiveBuilder::finish(const ArchiveFacts& facts,
                                   const std::vector<std::string>& record_names) const {
  ByteWriter body;
  body.put_string(facts.staticrt_version);
  body.put_string(facts.torch_version);
  body.put_string(facts.cpu_capability);
  body.put_size(facts.cpu_features.size());
  for (const std::string& feature : facts.cpu_features) body.put_string(feature);
  body.put_string(facts.name);
  body.put_string(facts.calling);
  body.put_string(facts.machine);
  body.put_size(tensors_.devices().size());
  for (const std::string& device : tensors_.devices()) body.put_string(device);
  tensors_.write(body, record_names);
  body.put_size(weights_.size());
  for (const Weight& weight : weights_) {
    body.put_string(weight.name);
    body.put(static_cast<uint8_t>(weight.kind));
    body.put(weight.tensor);
  }
  body.put(num_traces_);
  ByteWriter record;
  for (const char c : kMagic) record.put(c);
  record.put(kFormatVersion);
  record.put(uint32_t{0});
  const std::string bytes = body.take() + traces_.bytes();
  record.put_size(bytes.size());
  record.put(checksum(bytes.data(), bytes.size()));
  return record.take() + bytes;
}

}  // namespace staticrt

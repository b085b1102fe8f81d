#include "archive/placement.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "archive/bytes.h"

namespace staticrt {
namespace {

std::string type_of(const std::string& name) {
  return name.substr(0, name.find(':'));
}

// The device with its index, or nothing if this process does not have it, or it holds no values.
std::optional<at::Device> find_device(at::Device device) {
  if (device.is_cpu()) return at::Device(at::kCPU);
  if (device.is_meta()) return std::nullopt;
  if (!c10::impl::hasDeviceGuardImpl(device.type())) return std::nullopt;
  const c10::impl::VirtualGuardImpl guard(device.type());
  // The guard also counts CUDA devices that fake tensors pretend, in a process that has none.
  const auto count = device.is_cuda() ? at::detail::getCUDAHooks().deviceCount() : guard.deviceCount();
  if (count <= 0 || device.index() >= count) return std::nullopt;
  return device.has_index() ? device : at::Device(device.type(), guard.getDevice().index());
}

std::optional<at::Device> find_named(const std::string& name) {
  std::optional<at::Device> device;
  try {
    device = at::Device(name);
  } catch (const c10::Error&) {  // a type that is not registered here
    return std::nullopt;
  }
  return find_device(*device);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

Placement::Placement(std::vector<std::string> saved, std::optional<at::Device> wanted)
    : saved_(std::move(saved)) {
  if (!wanted) {
    for (const std::string& name : saved_) {
      const std::optional<at::Device> here = find_named(name);
      SRT_ARCHIVE(here, "archive was saved with tensors on ", name,
                  ", a device that this process does not have\n  fix: name one to load it on: "
                  "load(path, device=\"cpu\"), in C++ LoadOptions::device");
      here_.push_back(*here);
    }
    return;
  }
  SRT_ARCHIVE(saved_.size() <= 1, "archive was saved with tensors on ", joined(saved_), "; ", wanted->str(),
              " cannot take the place of all of them\n  fix: load it without device=");
  SRT_ARCHIVE(!wanted->is_meta(),
              "archive cannot be loaded on meta, which holds no values\n"
              "  fix: name a device that runs models, or none");
  const std::optional<at::Device> here = find_device(*wanted);
  SRT_ARCHIVE(here, "archive cannot be loaded on ", wanted->str(),
              ": this process does not have that device\n  fix: name a device that exists, or none");
  if (saved_.empty()) {
    cpu_ = *here;
    moves_ = !here->is_cpu();
  } else {
    here_.push_back(*here);
    moves_ = here->str() != saved_.front();
  }
}

at::Device Placement::of(const std::string& name) const {
  if (name == "cpu") return cpu_;
  std::optional<at::Device> found;
  for (size_t i = 0; i < saved_.size(); ++i) {
    if (saved_[i] == name) return here_[i];
    if (type_of(saved_[i]) != name) continue;
    SRT_ARCHIVE(!found, "archive names ", name, " without an index but has several of them, ", joined(saved_),
                "\n  fix: write the index in the model, and save it again");
    found = here_[i];
  }
  SRT_ARCHIVE(found, "archive holds a constant on device ", name, ", but no tensor of it");
  return *found;
}

}  // namespace staticrt

// On which devices the tensors and programs of an archive are in this process.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

namespace staticrt {

// Maps names of devices in an archive to devices here. The names may be of device types that this process
// does not have: they are read only where nothing takes their place.
class Placement {
 public:
  // Of an archive that names no device but the CPU and is loaded there.
  Placement() = default;
  // saved: the devices that the archive names besides the CPU, "cuda:0". wanted: the device that takes the
  // place of the only one of them, or of the CPU where there is none; unset: all stay as saved.
  // Throws ArchiveError: there are several, or a device that remains or is wanted does not exist here.
  Placement(std::vector<std::string> saved, std::optional<at::Device> wanted);

  at::Device cpu() const { return cpu_; }
  // Of the entry that the archive calls by this number: 0 is the CPU. REQUIRES: number < size().
  at::Device operator[](size_t number) const { return number == 0 ? cpu_ : here_[number - 1]; }
  size_t size() const { return here_.size() + 1; }
  // Of a device by its name, also without an index: then the archive's only one of that type. Throws
  // ArchiveError if the archive does not name it.
  at::Device of(const std::string& name) const;
  // Whether some device differs from the one it was saved on.
  bool moves() const { return moves_; }

 private:
  std::vector<std::string> saved_;
  std::vector<at::Device> here_;
  at::Device cpu_{at::kCPU};
  bool moves_ = false;
};

}  // namespace staticrt

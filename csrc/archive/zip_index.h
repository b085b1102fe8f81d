// Where the records of a zip archive lie. Records must be stored, not compressed, as torch writes them.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

namespace staticrt {

struct ZipRecord {
  size_t offset = 0;  // of its first byte in the archive
  size_t size = 0;    // bytes
};

class ZipIndex {
 public:
  // Reads the central directory of `archive`; names are without the archive's own folder ("model/data/x" is
  // "data/x"). Throws ArchiveError if it is not a zip archive, or is cut short or damaged.
  explicit ZipIndex(std::string_view archive);

  // Null if there is no such record.
  const ZipRecord* find(const std::string& name) const;
  size_t size() const { return records_.size(); }

 private:
  std::unordered_map<std::string, ZipRecord> records_;
};

}  // namespace staticrt

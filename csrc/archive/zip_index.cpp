// Format: PKWARE's APPNOTE 6.3.10, sections 4.3.6 to 4.3.16 (4.5.3 for the 64-bit fields).
#include "archive/zip_index.h"

#include "archive/bytes.h"

namespace staticrt {
namespace {

constexpr uint32_t kEndOfDirectory = 0x06054b50;
constexpr uint32_t kEndOfDirectory64 = 0x06064b50;
constexpr uint32_t kLocator64 = 0x07064b50;
constexpr uint32_t kDirectoryEntry = 0x02014b50;
constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr size_t kEndBytes = 22;
constexpr size_t kLocatorBytes = 20;
constexpr size_t kLocalBytes = 30;
constexpr uint32_t kIn64 = 0xffffffff;  // the value is in the entry's 64-bit field

template <class T>
T at(std::string_view bytes, uint64_t offset) {
  SRT_ARCHIVE(offset <= bytes.size() && sizeof(T) <= bytes.size() - offset,
              "archive is cut short or damaged: its directory points to byte ", offset, " of ", bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::string_view part(std::string_view bytes, uint64_t offset, uint64_t size, const char* what) {
  SRT_ARCHIVE(offset <= bytes.size() && size <= bytes.size() - offset,
              "archive is cut short or damaged: ", what, " should be bytes ", offset, " to ", offset + size,
              " of ", bytes.size());
  return bytes.substr(static_cast<size_t>(offset), static_cast<size_t>(size));
}

size_t find_end(std::string_view archive) {
  SRT_ARCHIVE(archive.size() >= kEndBytes, "not a .pt2 archive: ", archive.size(), " bytes");
  const size_t furthest = archive.size() - kEndBytes > 0xffff ? archive.size() - kEndBytes - 0xffff : 0;
  for (size_t offset = archive.size() - kEndBytes + 1; offset-- > furthest;) {
    if (at<uint32_t>(archive, offset) == kEndOfDirectory) return offset;
  }
  const bool zip = at<uint32_t>(archive, 0) == kLocalHeader;
  throw ArchiveError(zip ? "archive is cut short: its directory, which stands at the end, is missing"
                         : "not a .pt2 archive: no zip directory found");
}

// The 64-bit values of a directory entry, in the order size, compressed size, offset, where the 32-bit one is
// all ones.
void read_field64(std::string_view extra, uint64_t* values[], size_t count) {
  uint64_t offset = 0;
  while (offset + 4 <= extra.size()) {
    const auto id = at<uint16_t>(extra, offset);
    const auto size = at<uint16_t>(extra, offset + 2);
    const std::string_view field = part(extra, offset + 4, size, "an extra field");
    if (id == 1) {
      for (size_t i = 0; i < count; ++i) *values[i] = at<uint64_t>(field, 8 * i);
      return;
    }
    offset += 4 + size;
  }
  throw ArchiveError("archive is damaged: a 64-bit size is missing in its directory");
}

}  // namespace

ZipIndex::ZipIndex(std::string_view archive) {
  const size_t end = find_end(archive);
  uint64_t count = at<uint16_t>(archive, end + 10);
  uint64_t size = at<uint32_t>(archive, end + 12);
  uint64_t offset = at<uint32_t>(archive, end + 16);
  if (end >= kLocatorBytes && at<uint32_t>(archive, end - kLocatorBytes) == kLocator64) {
    const auto end64 = at<uint64_t>(archive, end - kLocatorBytes + 8);
    SRT_ARCHIVE(at<uint32_t>(archive, end64) == kEndOfDirectory64,
                "archive is damaged: its 64-bit directory end is not at byte ", end64);
    count = at<uint64_t>(archive, end64 + 32);
    size = at<uint64_t>(archive, end64 + 40);
    offset = at<uint64_t>(archive, end64 + 48);
  }
  const std::string_view directory = part(archive, offset, size, "its directory");
  uint64_t entry = 0;
  for (uint64_t i = 0; i < count; ++i) {
    SRT_ARCHIVE(at<uint32_t>(directory, entry) == kDirectoryEntry, "archive is damaged: directory entry ", i,
                " of ", count, " has no signature");
    const auto method = at<uint16_t>(directory, entry + 10);
    uint64_t compressed = at<uint32_t>(directory, entry + 20);
    uint64_t record_size = at<uint32_t>(directory, entry + 24);
    const auto name_size = at<uint16_t>(directory, entry + 28);
    const auto extra_size = at<uint16_t>(directory, entry + 30);
    const auto comment_size = at<uint16_t>(directory, entry + 32);
    uint64_t local = at<uint32_t>(directory, entry + 42);
    std::string name(part(directory, entry + 46, name_size, "a name"));
    SRT_ARCHIVE(is_utf8(name), "archive is damaged: the name of record ", i, " is not UTF-8");
    const std::string_view extra = part(directory, entry + 46 + name_size, extra_size, "an extra field");
    uint64_t* wide[3];
    size_t num_wide = 0;
    for (uint64_t* value : {&record_size, &compressed, &local}) {
      if (*value == kIn64) wide[num_wide++] = value;
    }
    if (num_wide > 0) read_field64(extra, wide, num_wide);
    SRT_ARCHIVE(method == 0 && compressed == record_size, "archive record '", name,
                "' is compressed; records are stored as they are");
    const std::string_view header = part(archive, local, kLocalBytes, "a record's header");
    SRT_ARCHIVE(at<uint32_t>(header, 0) == kLocalHeader, "archive is damaged: record '", name,
                "' has no header at byte ", local);
    const uint64_t data = local + kLocalBytes + at<uint16_t>(header, 26) + at<uint16_t>(header, 28);
    part(archive, data, record_size, name.c_str());
    const size_t slash = name.find('/');
    if (slash != std::string::npos) name.erase(0, slash + 1);
    const ZipRecord record{static_cast<size_t>(data), static_cast<size_t>(record_size)};
    SRT_ARCHIVE(records_.emplace(name, record).second, "archive is damaged: record '", name,
                "' appears twice");
    entry += 46 + name_size + extra_size + comment_size;
  }
}

const ZipRecord* ZipIndex::find(const std::string& name) const {
  const auto found = records_.find(name);
  return found == records_.end() ? nullptr : &found->second;
}

}  // namespace staticrt

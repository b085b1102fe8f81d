// Physical memory of a simulated device that several processes share.
//
// A file descriptor that leaves the device is an open file of its own on the device's memory file. Its
// position is the offset of the memory, so that the descriptor alone says which memory it is, and it holds a
// read lock on these bytes (fcntl, F_OFD_SETLK). The kernel drops the lock with the last copy of the
// descriptor in any process, also when the process dies. So the device knows which of its memory others still
// have.
//
// Thread safety: none. SimDriver holds its mutex around every call.
#pragma once

#include <map>

#include "allocator/core/types.h"
#include "allocator/sharing/file_descriptor.h"

namespace staticrt::alloc {

// The descriptor for `size_bytes` at `offset` of a device's memory file.
Status export_memory(int file, uint64_t offset, Bytes size_bytes, FileDescriptor* exported);

// Whether another open file description has a lock on some of these bytes.
bool others_have(int file, uint64_t offset, Bytes size_bytes);

// The memory file of another device, or of this one, as it was imported. It holds locks on what is imported.
class ImportedFile {
 public:
  // Which file it is.
  struct Identity {
    uint64_t device = 0, inode = 0;
    auto operator<=>(const Identity&) const = default;
  };
  // REQUIRES: `fd` is one of export_memory.
  explicit ImportedFile(FileDescriptor fd) : fd_(std::move(fd)) {}

  // invalid_argument: not memory of a simulated device, or less than `size_bytes`.
  static Status identify(int fd, Bytes size_bytes, Identity* identity, uint64_t* offset);
  // The file opened anew, without a lock.
  static Status reopen(int fd, FileDescriptor* reopened);

  int number() const { return fd_.number(); }
  Status lock(uint64_t offset, Bytes size_bytes);
  void unlock(uint64_t offset, Bytes size_bytes);

 private:
  FileDescriptor fd_;
  std::map<uint64_t, int> locked_;  // how often, by offset
};

}  // namespace staticrt::alloc

#include "allocator/simulated/sim_sharing.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "allocator/simulated/sim_memory.h"
#include "common/error.h"

namespace staticrt::alloc {
namespace {

constexpr const char* kName = "memfd:staticrt-sim";  // as the system shows it

std::string path_of(int fd) {
  return "/proc/self/fd/" + std::to_string(fd);
}

Status failed(const char* what) {
  const int error = errno;
  return Status::Error(detail::concat("sim: ", what, ": ", std::strerror(error)), error);
}

int lock_call(int fd, int command, short type, uint64_t offset, Bytes size_bytes, struct flock* lock) {
  *lock = {};
  lock->l_type = type;
  lock->l_whence = SEEK_SET;
  lock->l_start = static_cast<off_t>(offset);
  lock->l_len = static_cast<off_t>(size_bytes);
  return fcntl(fd, command, lock);
}

}  // namespace

Status export_memory(int file, uint64_t offset, Bytes size_bytes, FileDescriptor* exported) {
  FileDescriptor made;
  SRT_TRY(ImportedFile::reopen(file, &made));
  struct flock lock;
  if (lseek(made.number(), static_cast<off_t>(offset), SEEK_SET) < 0) return failed("lseek");
  if (lock_call(made.number(), F_OFD_SETLK, F_RDLCK, offset, size_bytes, &lock) != 0) return failed("fcntl");
  *exported = std::move(made);
  return Status::Ok();
}

bool others_have(int file, uint64_t offset, Bytes size_bytes) {
  struct flock lock;
  return lock_call(file, F_OFD_GETLK, F_WRLCK, offset, size_bytes, &lock) == 0 && lock.l_type != F_UNLCK;
}

Status ImportedFile::reopen(int fd, FileDescriptor* reopened) {
  FileDescriptor made(open(path_of(fd).c_str(), O_RDWR | O_CLOEXEC));
  if (!made.open()) return failed("open");
  *reopened = std::move(made);
  return Status::Ok();
}

Status ImportedFile::identify(int fd, Bytes size_bytes, Identity* identity, uint64_t* offset) {
  char name[64] = {};
  const ssize_t length = readlink(path_of(fd).c_str(), name, sizeof name - 1);
  if (length < 0 || !std::strstr(name, kName))
    return Status::InvalidArgument(
        detail::concat("sim: descriptor ", fd, " is not memory of a simulated device"));
  struct stat file;
  const off_t at = lseek(fd, 0, SEEK_CUR);
  if (at < 0 || fstat(fd, &file) != 0) return failed("fstat");
  if (static_cast<Bytes>(file.st_size) < static_cast<Bytes>(at) + size_bytes)
    return Status::InvalidArgument(detail::concat("sim: descriptor ", fd, " has no ", size_bytes, " bytes"));
  *identity = {static_cast<uint64_t>(file.st_dev), static_cast<uint64_t>(file.st_ino)};
  *offset = static_cast<uint64_t>(at);
  return Status::Ok();
}

Status ImportedFile::lock(uint64_t offset, Bytes size_bytes) {
  struct flock lock;
  if (locked_[offset]++ == 0 &&
      lock_call(fd_.number(), F_OFD_SETLK, F_RDLCK, offset, size_bytes, &lock) != 0) {
    locked_.erase(offset);
    return failed("fcntl");
  }
  return Status::Ok();
}

void ImportedFile::unlock(uint64_t offset, Bytes size_bytes) {
  struct flock lock;
  if (--locked_[offset] > 0) return;
  locked_.erase(offset);
  (void)lock_call(fd_.number(), F_OFD_SETLK, F_UNLCK, offset, size_bytes, &lock);
}

Status SimMemory::export_physical(PhysicalId id, FileDescriptor* fd) {
  const auto found = physicals_.find(raw(id));
  if (found == physicals_.end() || !found->second.handle)
    return Status::Error(detail::concat("sim: physical_export of handle ", raw(id), ": not a handle"), 1);
  Physical& physical = found->second;
  if (!limits_.backed)
    return Status::Unsupported("sim: a device that is not backed by memory has none that others could map");
  if (physical.imported)
    return Status::Unsupported("sim: memory of another process can be exported only there");
  SRT_TRY(export_memory(file_, physical.offset, physical.size_bytes, fd));
  physical.exported = true;
  return Status::Ok();
}

Status SimMemory::import_physical(int fd, Bytes size_bytes, PhysicalId* physical) {
  if (!limits_.backed) return Status::Unsupported("sim: a device that is not backed by memory maps none");
  if (size_bytes == 0 || size_bytes % limits_.granule_bytes != 0)
    return Status::InvalidArgument(detail::concat("sim: physical_import of ", size_bytes,
                                                  " bytes: not a positive multiple of ",
                                                  limits_.granule_bytes));
  if (handle_count_ >= limits_.max_handles)
    return Status::Oom(detail::concat("sim: all ", limits_.max_handles, " handles are in use"));
  ImportedFile::Identity identity;
  Physical made;
  SRT_TRY(ImportedFile::identify(fd, size_bytes, &identity, &made.imported_offset));
  made.imported = imported_[identity].lock();
  if (!made.imported) {
    FileDescriptor file;
    SRT_TRY(ImportedFile::reopen(fd, &file));
    made.imported = std::make_shared<ImportedFile>(std::move(file));
    imported_[identity] = made.imported;
  }
  SRT_TRY(made.imported->lock(made.imported_offset, size_bytes));
  made.size_bytes = size_bytes;
  made.offset = next_offset_;
  next_offset_ += size_bytes;
  ++handle_count_;
  *physical = PhysicalId{next_physical_++};
  physicals_.emplace(raw(*physical), std::move(made));
  return Status::Ok();
}

void SimMemory::drop_let_go() {
  std::erase_if(held_by_others_, [this](const auto& entry) {
    if (others_have(file_, entry.first, entry.second)) return false;
    punch(entry.first, entry.second);
    return true;
  });
}

}  // namespace staticrt::alloc

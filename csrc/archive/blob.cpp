#include "archive/blob.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "archive/bytes.h"

namespace staticrt {
namespace {

struct File {
  int descriptor;
  ~File() {
    if (descriptor >= 0) close(descriptor);
  }
};

}  // namespace

std::shared_ptr<Blob> Blob::map_file(const std::string& path) {
  const File file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  SRT_ARCHIVE(file.descriptor >= 0, "cannot open archive '", path, "': ", std::strerror(errno));
  struct stat facts{};
  SRT_ARCHIVE(fstat(file.descriptor, &facts) == 0, "cannot open archive '", path,
              "': ", std::strerror(errno));
  SRT_ARCHIVE(S_ISREG(facts.st_mode), "cannot open archive '", path, "': not a regular file");
  const auto size = static_cast<size_t>(facts.st_size);
  if (size == 0) return copy_of({});
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.descriptor, 0);
  SRT_ARCHIVE(data != MAP_FAILED, "cannot map archive '", path, "', ", size,
              " bytes: ", std::strerror(errno));
  return std::shared_ptr<Blob>(new Blob(static_cast<char*>(data), size, true));
}

std::shared_ptr<Blob> Blob::copy_of(std::string_view bytes) {
  auto* data = static_cast<char*>(std::aligned_alloc(64, (bytes.size() + 64) / 64 * 64));
  if (!data) throw std::bad_alloc();
  if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
  return std::shared_ptr<Blob>(new Blob(data, bytes.size(), false));
}

void Blob::let_go(size_t offset, size_t size) const {
  if (!mapped_ || offset > size_ || size > size_ - offset) return;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // The mapping begins at a page. Pages that other bytes lie in, too, stay.
  const size_t begin = (offset + page - 1) / page * page;
  const size_t end = (offset + size) / page * page;
  if (begin < end) madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

Blob::~Blob() {
  if (mapped_) {
    munmap(data_, size_);
  } else {
    std::free(data_);
  }
}

}  // namespace staticrt

// A file descriptor that is closed with its owner.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace staticrt::alloc {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~FileDescriptor() {
    if (number_ >= 0) close(number_);
  }

  int number() const { return number_; }  // -1: none
  bool open() const { return number_ >= 0; }
  // The number, which is the caller's to close from now on.
  int leave() { return std::exchange(number_, -1); }
  // Another number of the same open file; none if the process may have no more.
  FileDescriptor copy() const { return FileDescriptor(fcntl(number_, F_DUPFD_CLOEXEC, 0)); }

 private:
  int number_ = -1;
};

}  // namespace staticrt::alloc

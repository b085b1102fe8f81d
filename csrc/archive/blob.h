// The bytes of an archive: a file mapped into memory, or a copy of bytes the caller has.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace staticrt {

// Writable, and private to the process: a model that writes its buffers changes pages of its own, never the
// file. Bytes start at a 64-byte boundary.
class Blob {
 public:
  // Throws ArchiveError if the file cannot be opened or mapped.
  static std::shared_ptr<Blob> map_file(const std::string& path);
  static std::shared_ptr<Blob> copy_of(std::string_view bytes);
  ~Blob();
  Blob(const Blob&) = delete;
  Blob& operator=(const Blob&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view view() const { return {data_, size_}; }
  // These bytes are not needed for now: whole pages of a mapped file leave this process's memory and come
  // back from the file's cache once they are read. REQUIRES: they were not written.
  void let_go(size_t offset, size_t size) const;

 private:
  Blob(char* data, size_t size, bool mapped) : data_(data), size_(size), mapped_(mapped) {}
  char* data_;
  size_t size_;
  bool mapped_;
};

}  // namespace staticrt

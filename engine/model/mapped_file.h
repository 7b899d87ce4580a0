// A regular file, mapped read-only and whole.
//
// Why a map and not reads: weights are repacked tensor by tensor, so a map holds one tensor's pages at a time
// (release) where a buffer would hold the file, and a header of a 40 GB file costs only the pages it covers.
// The price is SIGBUS when somebody shortens the file, or its disk fails, while it is mapped. The first map
// installs a handler that puts zero pages over the lost rest of one of our maps, and only of ours, and marks
// the file; reading goes on, and check_intact() turns the mark into an Error. Call it after the last read
// whose bytes matter. A SIGBUS elsewhere goes to the handler that was there before. The file stays open, so
// that check_intact() also sees what raises no signal: bytes lost inside the last page, and bytes written.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/error.h"

namespace kveval {

struct MappedRegion;

class MappedFile {
 public:
  // Throws Error{bad_file} when `path` cannot be opened, is not a regular file, is empty, or cannot be
  // mapped. Opens once, then asks the descriptor: the path may point elsewhere a moment later.
  static std::shared_ptr<const MappedFile> open(const std::string& path);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Drops the resident pages that lie wholly inside `part`, a part of bytes(); a later read loads them again.
  void release(std::span<const std::byte> part) const;

  // Throws Error{bad_file} when the file was shortened or written to since open.
  void check_intact() const;

 private:
  MappedFile(std::string path, int descriptor, const struct stat& status, std::span<const std::byte> bytes,
             MappedRegion* region);

  std::string path_;
  int descriptor_;
  timespec written_;  // last, when it was opened
  std::span<const std::byte> bytes_;
  MappedRegion* region_;  // what the signal handler knows of this map
};

// Runs `read`. When the file lost bytes meanwhile that is the Error, whatever `read` made of what was left.
template <class Read>
void read_intact(const MappedFile& file, const Read& read) {
  try {
    read();
  } catch (const Error&) {
    file.check_intact();
    throw;
  }
  file.check_intact();
}

}  // namespace kveval

// A file that lives as long as the object.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace kveval {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<int> next = 0;
    path_ = std::filesystem::path(testing::TempDir()) /
            ("kveval_" + std::to_string(getpid()) + "_" + std::to_string(next++));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string write(const std::string& name, std::string_view bytes) const {
    // Not written over: ext4 flushes such a file to disk when it is closed.
    std::filesystem::remove(path_ / name);
    std::ofstream((path_ / name), std::ios::binary) << bytes;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace kveval

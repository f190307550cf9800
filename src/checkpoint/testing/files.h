#pragma once
// For tests of this room and its users: a scratch directory, files made from text, and errors checked by their message.

#include "base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace nibble::test {

// REQUIRES: `body` throws an Error of this code whose message holds `part`; a test failure otherwise.
template <class Body>
void expect_error(const Body& body, Code code, std::string_view part) {
  try {
    body();
    ADD_FAILURE() << "want an error with: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(name_of(e.code()), name_of(code)) << e.what();
    EXPECT_THAT(e.what(), ::testing::HasSubstr(std::string(part)));
  }
}

// A directory of its own, gone with the object.
class ScratchDir {
 public:
  ScratchDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "nibble_test_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw Error(Code::kIo, "[test] cannot make {}", pattern);
    path_ = pattern;
  }
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  std::filesystem::path write(std::string_view name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace nibble::test

#include "hub/partial_file.h"

#include "base/error.h"
#include "hub/testing.h"

#include <gtest/gtest.h>

namespace nibble::hub {
namespace {

const auto kGoOn = [](int64_t) { return true; };

TEST(digest, is_sha256_or_what_git_says) {  // sha256sum; git hash-object
  const TestCache cache;
  const auto file = cache.path() / "file";
  put(file, "hello\n");
  EXPECT_EQ(digest_of(file, DigestKind::kSha256, kGoOn),
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
  EXPECT_EQ(digest_of(file, DigestKind::kGit, kGoOn), "ce013625030ba8dba906f756967f9e9ca394464a");
  put(file, "");
  EXPECT_EQ(digest_of(file, DigestKind::kGit, kGoOn), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
}

TEST(digest, ends_where_it_is_told_to) {
  const TestCache cache;
  put(cache.path() / "file", "hello\n");
  EXPECT_EQ(digest_of(cache.path() / "file", DigestKind::kSha256, [](int64_t) { return false; }), "");
  EXPECT_THROW((void)digest_of(cache.path() / "none", DigestKind::kSha256, kGoOn), Error);
}

}  // namespace
}  // namespace nibble::hub

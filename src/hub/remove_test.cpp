#include "hub/remove.h"

#include "base/error.h"
#include "hub/testing.h"

#include <gtest/gtest.h>

namespace nibble::hub {
namespace {

namespace fs = std::filesystem;

class Remove : public testing::Test {
 protected:
  Remove() {
    for (const auto& [commit, blob] : {std::pair("c1", "shared"), {"c2", "shared"}, {"c1", "old"}, {"c2", "new"}}) {
      put(folder_ / "blobs" / blob, "12345");
      fs::create_symlink(fs::path("../../blobs") / blob, cache_.snapshot("a/b", commit) / (std::string(blob) + ".x"));
    }
    put(folder_ / "refs/main", "c2");
    put(folder_ / "refs/v1", "c1");
    put(cache_.path() / ".locks/models--a--b/shared.lock", "");
    put(cache_.snapshot("a/other", "c1") / "x.gguf", "other");
  }
  [[nodiscard]] bool there(const std::string& path) const { return fs::exists(fs::symlink_status(folder_ / path)); }

  TestCache cache_;
  fs::path folder_ = cache_.folder("a/b");
};

TEST_F(Remove, keeps_what_another_revision_uses) {
  const Removal removal = plan_removal(cache_.path(), "a/b", "v1");
  EXPECT_EQ(removal.bytes, 5);
  remove(removal);
  for (const char* gone : {"snapshots/c1", "blobs/old", "refs/v1"}) EXPECT_FALSE(there(gone)) << gone;
  for (const char* kept : {"snapshots/c2/new.x", "blobs/shared", "blobs/new", "refs/main"})
    EXPECT_TRUE(there(kept)) << kept;
  const Removal last = plan_removal(cache_.path(), "a/b", "c2");
  EXPECT_TRUE(last.everything);
}

TEST_F(Remove, takes_all_and_nothing_beside_it) {
  put(cache_.path() / "outside", "mine");
  fs::create_symlink(cache_.path() / "outside", cache_.snapshot("a/b", "c1") / "link");
  remove(plan_removal(cache_.path(), "a/b", ""));
  EXPECT_FALSE(fs::exists(folder_));
  EXPECT_FALSE(fs::exists(cache_.path() / ".locks/models--a--b"));
  EXPECT_TRUE(fs::exists(cache_.path() / "outside"));
  EXPECT_TRUE(fs::exists(cache_.folder("a/other")));
}

TEST_F(Remove, never_leaves_the_cache) {
  const TestCache elsewhere;
  put(elsewhere.path() / "precious", "1");
  fs::create_directory_symlink(elsewhere.path(), cache_.folder("a/linked"));
  EXPECT_THROW((void)plan_removal(cache_.path(), "a/linked", ""), Error);
  put(elsewhere.path() / "blob", "1");
  fs::create_symlink(elsewhere.path() / "blob", cache_.snapshot("a/b", "c1") / "far.x");
  remove(plan_removal(cache_.path(), "a/b", "c1"));
  EXPECT_TRUE(fs::exists(elsewhere.path() / "blob"));
}

TEST_F(Remove, refuses_what_is_not_there) {
  EXPECT_THROW((void)plan_removal(cache_.path(), "a/none", ""), Error);
  EXPECT_THROW((void)plan_removal(cache_.path(), "a/b", "v2"), Error);
  EXPECT_THROW((void)plan_removal(cache_.path(), "a/b", "../../models--a--other"), Error);
}

}  // namespace
}  // namespace nibble::hub

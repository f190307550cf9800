#include "hub/cache.h"

#include "base/error.h"
#include "hub/testing/scratch_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::hub {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(repo_names, are_an_organisation_and_a_name) {
  for (const char* name : {"openai/gpt-oss-20b", "a/b", "A_1/x.y-z"}) EXPECT_TRUE(is_repo(name)) << name;
  for (const char* name : {"", "/", "a/", "/b", "gpt-oss-20b", "../x", "a/..", "a/b/c", "a//b", "./a", "a/.b", "a--b/c",
                           "a/b--c", "-a/b", "a/b c", "a/b\n", "a/b.."})
    EXPECT_FALSE(is_repo(name)) << name;
  EXPECT_FALSE(is_repo("a/" + std::string(200, 'x')));
  EXPECT_EQ(repo_folder("/c", "openai/gpt-oss-20b"), "/c/models--openai--gpt-oss-20b");
}

TEST(lacking_file, is_a_shard_that_the_index_names) {
  const TestCache cache;
  const auto model = cache.snapshot("a/b", "c1");
  EXPECT_EQ(lacking_file(model), "config.json");
  put(model / "config.json", "{}");
  EXPECT_EQ(lacking_file(model), "model.safetensors");
  put(model / "model.safetensors.index.json", R"({"weight_map": {"x": "m-1.safetensors", "y": "m-2.safetensors"}})");
  put(model / "m-1.safetensors", "");
  EXPECT_EQ(lacking_file(model), "m-2.safetensors");
  std::filesystem::create_symlink("../../blobs/none", model / "m-2.safetensors");  // a download that was cut
  EXPECT_EQ(lacking_file(model), "m-2.safetensors");
  put(cache.folder("a/b") / "blobs" / "none", "");
  EXPECT_EQ(lacking_file(model), "");
}

TEST(models_in, lack_a_part_of_gguf) {
  const TestCache cache;
  const auto model = cache.snapshot("a/b", "c1");
  put(model / "sub/m-00001-of-00003.gguf", "");
  put(model / "sub/m-00003-of-00003.gguf", "");
  ASSERT_EQ(models_in(model).size(), 1);
  EXPECT_EQ(models_in(model)[0].lacks, "m-00002-of-00003.gguf");
  put(model / "sub/m-00002-of-00003.gguf", "");
  EXPECT_EQ(models_in(model)[0].lacks, "");
  EXPECT_EQ(models_in(model)[0].path, model / "sub/m-00001-of-00003.gguf");
  std::filesystem::create_symlink("../../blobs/none", model / "x.gguf");  // a download that was cut
  EXPECT_EQ(models_in(model)[1].lacks, "x.gguf");
}

TEST(models_in, are_safetensors_and_each_gguf) {
  const TestCache cache;
  const auto model = cache.snapshot("a/b", "c1");
  const auto names = [&] {
    std::vector<std::string> found;
    for (const Snapshot& each : snapshots_of(cache.path(), "a/b")) found.push_back(each.name);
    return found;
  };
  put(model / "config.json", "{}");
  EXPECT_THAT(names(), ElementsAre("a/b"));  // in part
  put(model / "x-Q8_0.gguf", "12345");
  put(model / "F16/x.gguf", "1");
  EXPECT_THAT(names(), ElementsAre("a/b:F16", "a/b:Q8_0"));  // as Unsloth's, which have a config.json
  put(model / "model.safetensors", "123");
  EXPECT_THAT(names(), ElementsAre("a/b", "a/b:F16", "a/b:Q8_0"));
  const auto models = models_in(model);
  EXPECT_EQ(models[0].bytes, 5);
  EXPECT_EQ(models[2].bytes, 5);
}

TEST(snapshots, of_main_are_first_and_others_follow_by_age) {
  const TestCache cache;
  for (const char* commit : {"c1", "c2", "c3"}) put(cache.snapshot("a/b", commit) / "x.gguf", "12345");
  cache.snapshot("a/b", "empty");
  const auto now = std::filesystem::file_time_type::clock::now();
  for (const auto& [commit, age] : {std::pair("c1", 3), {"c2", 1}, {"c3", 2}})
    std::filesystem::last_write_time(cache.snapshot("a/b", commit), now - std::chrono::hours(age));
  put(cache.folder("a/b") / "refs" / "main", "c1");
  put(cache.folder("a/b") / "refs" / "refs" / "pr" / "1", "c3");
  const auto found = snapshots_of(cache.path(), "a/b");
  ASSERT_EQ(found.size(), 3);
  EXPECT_EQ(found[0].commit, "c1");
  EXPECT_THAT(found[0].refs, ElementsAre("main"));
  EXPECT_EQ(found[0].bytes, 5);
  EXPECT_EQ(found[1].commit, "c2");
  EXPECT_EQ(found[2].commit, "c3");
  EXPECT_THAT(found[2].refs, ElementsAre("refs/pr/1"));
  put(cache.path() / "models--no", "a file");
  put(cache.path() / "version.txt", "1");
  std::filesystem::create_directories(cache.path() / "models--..--.." / "snapshots");
  EXPECT_EQ(all_snapshots(cache.path()).size(), 3);
  EXPECT_THAT(all_snapshots(cache.path() / "none"), IsEmpty());
}

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

TEST_F(Remove, takes_one_file_of_several) {
  for (const char* commit : {"c1", "c2"}) {
    put(folder_ / "blobs/q8", "12345678");
    put(cache_.snapshot("a/b", commit) / "README.md", "");
    fs::create_symlink("../../blobs/q8", cache_.snapshot("a/b", commit) / "m-Q8_0.gguf");
  }
  put(folder_ / "blobs/q4", "1234");
  fs::create_symlink("../../blobs/q4", cache_.snapshot("a/b", "c1") / "m-Q4_0.gguf");
  EXPECT_THROW((void)plan_removal(cache_.path(), "a/b", "", "Q5_0"), Error);
  EXPECT_EQ(plan_removal(cache_.path(), "a/b", "v1", "q8_0").bytes, 0);  // c2 has it, too
  const Removal removal = plan_removal(cache_.path(), "a/b", "", "q8_0");
  EXPECT_EQ(removal.bytes, 8);
  EXPECT_FALSE(removal.everything);
  remove(removal);
  for (const char* gone : {"blobs/q8", "snapshots/c1/m-Q8_0.gguf", "snapshots/c2/m-Q8_0.gguf"})
    EXPECT_FALSE(there(gone)) << gone;
  for (const char* kept : {"blobs/q4", "blobs/shared", "snapshots/c1/m-Q4_0.gguf", "refs/main"})
    EXPECT_TRUE(there(kept)) << kept;
  EXPECT_TRUE(plan_removal(cache_.path(), "a/b", "", "Q4_0").everything);  // no model is left
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

#include "hub/cache.h"

#include "hub/testing/scratch_cache.h"

#include <gtest/gtest.h>

namespace nibble::hub {
namespace {

class FindModel : public testing::Test {
 protected:
  FindModel() {
    settings_.cache = cache_.path();
    settings_.models = cache_.path() / "models";
  }
  void whole(const std::string& repo, const std::string& commit) const {
    put(cache_.snapshot(repo, commit) / "config.json", "{}");
    put(cache_.snapshot(repo, commit) / "model.safetensors", "");
  }
  [[nodiscard]] std::filesystem::path found(const std::string& name, const std::string& revision = "") const {
    const auto model = find_model(name, settings_, revision);
    return model ? model->path.lexically_relative(settings_.cache) : "nothing";
  }

  TestCache cache_;
  Settings settings_;
};

TEST_F(FindModel, takes_main_of_the_cache) {
  const TestCache& c = cache_;
  whole("openai/gpt-oss-20b", "old");
  put(c.folder("openai/gpt-oss-20b") / "refs/main", "old");
  whole("openai/gpt-oss-20b", "new");
  EXPECT_EQ(found("openai/gpt-oss-20b"), "models--openai--gpt-oss-20b/snapshots/old");
  EXPECT_EQ(found("gpt-oss-20b"), found("openai/gpt-oss-20b"));
  EXPECT_EQ(found((c.path() / "models--openai--gpt-oss-20b/").string()), found("gpt-oss-20b"));
  EXPECT_EQ(find_model("gpt-oss-20b", settings_)->repo, "openai/gpt-oss-20b");
  EXPECT_EQ(found("openai/gpt-oss-120b"), "nothing");
  EXPECT_EQ(found("../openai/gpt-oss-20b"), "nothing");
}

TEST_F(FindModel, takes_the_revision_that_is_asked_for_or_none) {
  const TestCache& c = cache_;
  for (const char* commit : {"c1", "c2", "c3"}) whole("openai/gpt-oss-20b", commit);
  put(c.folder("openai/gpt-oss-20b") / "refs/main", "c1");
  put(c.folder("openai/gpt-oss-20b") / "refs/refs/pr/1", "c2");
  EXPECT_EQ(found("gpt-oss-20b", "refs/pr/1"), "models--openai--gpt-oss-20b/snapshots/c2");
  EXPECT_EQ(found("openai/gpt-oss-20b", "c3"), "models--openai--gpt-oss-20b/snapshots/c3");
  EXPECT_EQ(found("gpt-oss-20b", "main"), found("gpt-oss-20b"));
  EXPECT_EQ(found("gpt-oss-20b", "c"), "nothing");
  put(settings_.models / "gpt-oss-20b" / "config.json", "{}");  // of whatever revision
  EXPECT_EQ(found("gpt-oss-20b", "c1"), "models--openai--gpt-oss-20b/snapshots/c1");
  put(cache_.snapshot("openai/gpt-oss-20b", "c4") / "config.json", "{}");
  EXPECT_EQ(find_model("gpt-oss-20b", settings_, "c4")->lacks, "model.safetensors");
}

TEST_F(FindModel, knows_the_names_of_ollama) {
  whole("openai/gpt-oss-20b", "c1");
  EXPECT_EQ(found("gpt-oss:20b"), found("gpt-oss-20b"));
  EXPECT_EQ(found("gpt-oss:latest"), found("gpt-oss-20b"));
  EXPECT_EQ(found("gpt-oss:120b"), "nothing");
  EXPECT_EQ(repos_of("gpt-oss:120b").front(), "openai/gpt-oss-120b");
  EXPECT_EQ(found("gpt-oss:../20b"), "nothing");
  put(settings_.models / "gpt-oss-20b" / "config.json", "{}");
  EXPECT_EQ(found("gpt-oss:20b"), "models/gpt-oss-20b");
}

TEST_F(FindModel, takes_any_whole_one_where_nobody_says_which_is_main) {
  whole("a/b", "c1");
  put(cache_.snapshot("a/b", "c2") / "config.json", "{}");
  EXPECT_EQ(found("a/b"), "models--a--b/snapshots/c1");
}

TEST_F(FindModel, says_what_main_lacks_and_takes_no_other) {
  whole("a/b", "c1");
  put(cache_.snapshot("a/b", "c2") / "config.json", "{}");
  put(cache_.folder("a/b") / "refs/main", "c2");
  EXPECT_EQ(find_model("a/b", settings_)->lacks, "model.safetensors");
  EXPECT_EQ(found("a/b"), "models--a--b/snapshots/c2");
}

TEST_F(FindModel, takes_ggml_orgs_where_openais_is_not_whole) {
  put(cache_.snapshot("openai/gpt-oss-20b", "c1") / "config.json", "{}");
  EXPECT_EQ(find_model("gpt-oss-20b", settings_)->lacks, "model.safetensors");
  put(cache_.snapshot("ggml-org/gpt-oss-20b-GGUF", "c2") / "gpt-oss-20b-mxfp4.gguf", "GGUF");
  EXPECT_EQ(found("gpt-oss-20b"), "models--ggml-org--gpt-oss-20b-GGUF/snapshots/c2");
}

TEST_F(FindModel, goes_into_original_where_there_is_nothing_else) {
  put(cache_.snapshot("a/b", "c1") / "original/config.json", "{}");
  put(cache_.snapshot("a/b", "c1") / "original/model.safetensors", "");
  EXPECT_EQ(found("a/b"), "models--a--b/snapshots/c1/original");
  EXPECT_EQ(found(cache_.snapshot("a/b", "c1").string()), "models--a--b/snapshots/c1/original");
  whole("a/b", "c1");
  EXPECT_EQ(found("a/b"), "models--a--b/snapshots/c1");
}

TEST_F(FindModel, looks_into_models_before_the_cache) {
  whole("a/b", "c1");
  put(settings_.models / "b" / "config.json", "{}");
  EXPECT_EQ(find_model("a/b", settings_)->path, settings_.models / "b");
  put(settings_.models / "a" / "b" / "config.json", "{}");
  EXPECT_EQ(find_model("a/b", settings_)->path, settings_.models / "a" / "b");
  put(settings_.models / "small.gguf", "GGUF");
  EXPECT_EQ(find_model("small", settings_)->path, settings_.models / "small.gguf");
  EXPECT_FALSE(find_model("other", settings_));
}

}  // namespace
}  // namespace nibble::hub

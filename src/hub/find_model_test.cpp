#include "hub/cache.h"

#include "base/error.h"
#include "hub/testing/scratch_cache.h"

#include <gmock/gmock.h>
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
  EXPECT_EQ(found("gpt-oss-20b"), "models--ggml-org--gpt-oss-20b-GGUF/snapshots/c2/gpt-oss-20b-mxfp4.gguf");
}

TEST_F(FindModel, goes_into_original_where_there_is_nothing_else) {
  put(cache_.snapshot("a/b", "c1") / "original/config.json", "{}");
  put(cache_.snapshot("a/b", "c1") / "original/model.safetensors", "");
  EXPECT_EQ(found("a/b"), "models--a--b/snapshots/c1/original");
  EXPECT_EQ(found(cache_.snapshot("a/b", "c1").string()), "models--a--b/snapshots/c1/original");
  whole("a/b", "c1");
  EXPECT_EQ(found("a/b"), "models--a--b/snapshots/c1");
}

TEST_F(FindModel, takes_the_quantisation_that_is_asked_for_or_the_best) {
  const auto snapshot = cache_.snapshot("a/b", "c1"), older = cache_.snapshot("a/b", "c0");
  put(cache_.folder("a/b") / "refs/main", "c1");
  put(snapshot / "config.json", "{}");
  put(snapshot / "x-Q4_K_M.gguf", "1234");
  put(snapshot / "Q8_0/x-00001-of-00002.gguf", "12345");
  put(snapshot / "Q8_0/x-00002-of-00002.gguf", "12345");
  put(snapshot / "x-F16-00001-of-00002.gguf", "123456789012345");
  put(older / "x-Q6_K.gguf", "1");
  const std::string at = "models--a--b/snapshots/c1/";
  for (const char* name : {"a/b:q4_k_m", "hf.co/a/b:Q4_K_M", "https://huggingface.co/a/b/blob/main/x-Q4_K_M.gguf"})
    EXPECT_EQ(found(name), at + "x-Q4_K_M.gguf") << name;
  EXPECT_EQ(found("a/b:Q8_0"), at + "Q8_0/x-00001-of-00002.gguf");
  EXPECT_EQ(found("a/b"), found("a/b:Q8_0"));
  EXPECT_THAT(find_model("a/b", settings_)->choice, testing::HasSubstr("taking Q8_0 of"));
  EXPECT_EQ(find_model("a/b:Q8_0", settings_)->choice, "");
  EXPECT_EQ(find_model("a/b:F16", settings_)->lacks, "x-F16-00002-of-00002.gguf");
  EXPECT_EQ(found("a/b:Q6_K"), "models--a--b/snapshots/c0/x-Q6_K.gguf");
  EXPECT_EQ(found("a/b:Q5_K"), "nothing");
  settings_.memory = [] { return int64_t{8}; };
  EXPECT_EQ(found("a/b"), at + "x-Q4_K_M.gguf");
  EXPECT_THROW(static_cast<void>(found(snapshot.string())), Error);  // a folder of several
}

TEST_F(FindModel, takes_a_folder_of_models_as_a_repository) {
  put(settings_.models / "mine/x-Q4_0.gguf", "GGUF");
  EXPECT_EQ(found("mine"), "models/mine/x-Q4_0.gguf");
  put(settings_.models / "mine/sub/x-Q8_0.gguf", "GGUF2");
  EXPECT_EQ(found("mine:Q4_0"), "models/mine/x-Q4_0.gguf");
  EXPECT_EQ(found("mine"), "models/mine/sub/x-Q8_0.gguf");
  put(settings_.models / "loose-Q8_0.gguf", "");
  std::vector<std::string> names;
  for (const Snapshot& model : models_below(settings_.models)) names.push_back(model.name);
  EXPECT_THAT(names, testing::ElementsAre("mine:Q8_0", "mine:Q4_0", "loose-Q8_0.gguf"));
  EXPECT_EQ(found("loose-Q8_0.gguf"), "models/loose-Q8_0.gguf");
}

TEST_F(FindModel, looks_into_ollamas_store_last) {
  const auto store = cache_.path() / "store";
  settings_.ollama = {cache_.path() / "none", store};
  const auto manifest = [](const char* digest) {
    return fmt::format(R"({{"layers": [{{"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:1"}},
                                       {{"mediaType": "application/vnd.ollama.image.model", "digest": "{}"}}]}})",
                       digest);
  };
  const auto library = store / "manifests/registry.ollama.ai/library/gpt-oss";
  put(library / "20b", manifest("sha256:ab12"));
  EXPECT_THROW(static_cast<void>(found("gpt-oss:20b")), Error);  // the blob is gone
  put(store / "blobs/sha256-ab12", "GGUF");
  EXPECT_EQ(found("gpt-oss:20b"), "store/blobs/sha256-ab12");
  EXPECT_EQ(found("gpt-oss"), "nothing");  // no latest
  EXPECT_EQ(found("gpt-oss-20b"), "nothing");
  put(store / "manifests/hf.co/a/b/Q4_K_M", manifest("sha256:ab12"));
  EXPECT_EQ(found("hf.co/a/b:Q4_K_M"), "store/blobs/sha256-ab12");
  put(library / "latest", manifest("sha256:../../x"));
  EXPECT_THROW(static_cast<void>(found("gpt-oss")), Error);
  whole("openai/gpt-oss-20b", "c1");
  EXPECT_EQ(found("gpt-oss:20b"), "models--openai--gpt-oss-20b/snapshots/c1");
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

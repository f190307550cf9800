#include "hub/model_name.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::hub {
namespace {

using testing::ElementsAre;

std::string parsed(const std::string& asked, const std::string& endpoint = "https://huggingface.co") {
  const auto name = parse_name(asked, endpoint);
  return name ? fmt::format("{}|{}|{}", name->repo, name->which, name->revision) : "none";
}

TEST(model_name, is_a_repository_with_a_quantisation) {
  EXPECT_EQ(parsed("openai/gpt-oss-20b"), "openai/gpt-oss-20b||");
  EXPECT_EQ(parsed("a/b:Q4_K_M"), "a/b|Q4_K_M|");
  EXPECT_EQ(parsed("a/b:latest"), "a/b||");
  EXPECT_EQ(parsed("a/b:b-Q8_0.gguf"), "a/b|b-Q8_0.gguf|");
  EXPECT_EQ(parsed("a/b:Q8_0/b.gguf"), "a/b|Q8_0/b.gguf|");
  for (const char* name : {"", ":", "a/b:", "a/b/c", "/a/b", "../a", "a/..:Q4", ":Q4", "a:/b"})
    EXPECT_EQ(parsed(name), "none") << name;
}

TEST(model_name, may_be_bare) {
  EXPECT_EQ(parsed("gpt-oss-20b"), "gpt-oss-20b||");
  EXPECT_EQ(parsed("gpt-oss-20b:mxfp4"), "gpt-oss-20b|mxfp4|");
  EXPECT_THAT(repos_of(*parse_name("gpt-oss-20b")), ElementsAre("openai/gpt-oss-20b", "ggml-org/gpt-oss-20b-GGUF"));
  EXPECT_THAT(repos_of(*parse_name("gpt-oss-20b:mxfp4")), ElementsAre("ggml-org/gpt-oss-20b-GGUF"));
  EXPECT_THAT(repos_of(*parse_name("a/b:x")), ElementsAre("a/b"));
}

TEST(model_name, of_ollama_has_a_size) {
  EXPECT_EQ(parsed("gpt-oss"), "gpt-oss-20b||");
  EXPECT_EQ(parsed("gpt-oss:latest"), "gpt-oss-20b||");
  EXPECT_EQ(parsed("gpt-oss:120b"), "gpt-oss-120b||");
  EXPECT_EQ(parsed("gpt-oss:../20b"), "none");
}

TEST(model_name, may_begin_with_the_hubs_host) {
  for (const char* host :
       {"hf.co/", "huggingface.co/", "https://hf.co/", "https://huggingface.co/", "http://hf.co/", "hf://"}) {
    EXPECT_EQ(parsed(host + std::string("a/b")), "a/b||") << host;
    EXPECT_EQ(parsed(host + std::string("a/b/")), "a/b||") << host;
    EXPECT_EQ(parsed(host + std::string("a/b:Q4_K_M")), "a/b|Q4_K_M|") << host;
  }
  EXPECT_EQ(parsed("https://mirror.example/hub/a/b", "https://mirror.example/hub"), "a/b||");
  for (const char* other : {"https://example.com/a/b", "https://huggingface.co/", "https://huggingface.co/a",
                            "hf.co/datasets/a/b", "https://huggingface.co/a/b/discussions/1", "ftp://hf.co/a/b"})
    EXPECT_EQ(parsed(other), "none") << other;
}

TEST(model_name, may_be_an_address_of_a_page) {
  const std::string at = "https://huggingface.co/a/b/";
  EXPECT_EQ(parsed(at + "tree/main"), "a/b||");
  EXPECT_EQ(parsed(at + "tree/v1"), "a/b||v1");
  EXPECT_EQ(parsed(at + "tree/refs%2Fpr%2F1"), "a/b||refs/pr/1");
  EXPECT_EQ(parsed(at + "tree/refs/pr/1"), "a/b||refs/pr/1");
  EXPECT_EQ(parsed(at + "tree/main/Q8_0"), "a/b|Q8_0|");
  EXPECT_EQ(parsed(at + "blob/main/b-Q4_K_M.gguf"), "a/b|b-Q4_K_M.gguf|");
  EXPECT_EQ(parsed(at + "resolve/v1/Q8_0/b-c.gguf?download=true#x"), "a/b|Q8_0/b-c.gguf|v1");
  EXPECT_EQ(parsed(at + "blob/main/config.json"), "a/b||");
}

TEST(quant, is_the_last_word_that_is_one) {
  for (const auto& [path, quant] : {std::pair("gpt-oss-20b-Q4_K_M.gguf", "Q4_K_M"),
                                    {"gpt-oss-20b-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"},
                                    {"gpt-oss-20b-mxfp4.gguf", "MXFP4"},
                                    {"openai_gpt-oss-20b-MXFP4_MOE.gguf", "MXFP4_MOE"},
                                    {"x.i1-IQ4_XS.gguf", "IQ4_XS"},
                                    {"x.Q6_K.gguf", "Q6_K"},
                                    {"x_Q5_1.gguf", "Q5_1"},
                                    {"x-bf16.gguf", "BF16"},
                                    {"BF16/x-00001-of-00002.gguf", "BF16"},
                                    {"Q8_0/x-00001-of-00002.gguf", "Q8_0"},
                                    {"qwen3-Q8_0-F16.gguf", "F16"},
                                    {"TQ1_0/x.gguf", "TQ1_0"},
                                    {"model.gguf", ""},
                                    {"F16x-q4.gguf", ""}})
    EXPECT_EQ(quant_of(path), quant) << path;
}

std::vector<GgufModel> repo() {
  const std::vector<RepoFile> files = {{"README.md", 1},
                                       {"x-Q4_K_M.gguf", 12},
                                       {"x-UD-Q4_K_XL.gguf", 13},
                                       {"x-F16.gguf", 20},
                                       {"Q8_0/x-00002-of-00002.gguf", 6},
                                       {"Q8_0/x-00001-of-00002.gguf", 8},
                                       {"mmproj-F16.gguf", 3},
                                       {"x-imatrix.gguf", 1}};
  return gguf_models(files);
}

std::vector<std::string> meant(const std::string& which, const std::vector<GgufModel>& models) {
  std::vector<std::string> found;
  for (const GgufModel& model : meant_by(which, models)) found.push_back(model.path);
  return found;
}

TEST(gguf_models, are_files_or_all_parts_of_one) {
  std::vector<std::string> shown;
  for (const GgufModel& m : repo())
    shown.push_back(fmt::format("{} {} {} {}", m.path, m.which, m.files.size(), m.bytes));
  EXPECT_THAT(shown, ElementsAre("Q8_0/x-00001-of-00002.gguf Q8_0 2 14", "x-F16.gguf F16 1 20",
                                 "x-Q4_K_M.gguf Q4_K_M 1 12", "x-UD-Q4_K_XL.gguf UD-Q4_K_XL 1 13"));
}

TEST(gguf_models, of_one_quantisation_are_told_apart_by_their_files) {
  const std::vector<RepoFile> files = {{"a-Q8_0.gguf", 1}, {"b-Q8_0.gguf", 1}, {"plain.gguf", 1}};
  const auto models = gguf_models(files);
  EXPECT_EQ(models[0].which, "a-Q8_0");
  EXPECT_EQ(models[2].which, "plain");
  EXPECT_EQ(meant("q8_0", models).size(), 2);
  for (const char* which : {"b-Q8_0", "b-q8_0.gguf"}) EXPECT_THAT(meant(which, models), ElementsAre("b-Q8_0.gguf"));
}

TEST(gguf_models, are_meant_by_quantisation_file_or_folder_in_any_case) {
  for (const char* which : {"q4_k_m", "Q4_K_M", "q4", "x-Q4_K_M", "X-q4_k_m.GGUF", "x-Q4_K_M.gguf"})
    EXPECT_THAT(meant(which, repo()), ElementsAre("x-Q4_K_M.gguf")) << which;
  for (const char* which : {"Q4_K_XL", "ud-q4_k_xl"})
    EXPECT_THAT(meant(which, repo()), ElementsAre("x-UD-Q4_K_XL.gguf"));
  for (const char* which : {"Q8_0", "Q8_0/x-00001-of-00002.gguf", "Q8_0/x-00002-of-00002.gguf", "x"})
    EXPECT_THAT(meant(which, repo()), ElementsAre("Q8_0/x-00001-of-00002.gguf")) << which;
  for (const char* which : {"Q9_0", "Q", "mmproj", "README.md"}) EXPECT_TRUE(meant(which, repo()).empty()) << which;
  const std::vector<RepoFile> moe = {{"x-MXFP4_MOE.gguf", 1}};
  EXPECT_EQ(meant("mxfp4", gguf_models(moe)).size(), 1);
}

TEST(best_of, is_mxfp4_then_the_largest_that_fits_and_16_bits_last) {
  std::vector<GgufModel> models = repo();
  EXPECT_EQ(best_of(models, 1000).quant, "Q8_0");  // not F16, which is larger
  EXPECT_EQ(best_of(models, 14).quant, "UD-Q4_K_XL");
  EXPECT_EQ(best_of(models, 5).quant, "Q4_K_M");  // none fits
  models.push_back({.path = "x-mxfp4.gguf", .quant = "MXFP4", .which = "MXFP4", .bytes = 11});
  EXPECT_EQ(best_of(models, 1000).quant, "MXFP4");
  EXPECT_EQ(best_of(std::vector<GgufModel>{models[1]}, 1000).quant, "F16");
}

}  // namespace
}  // namespace nibble::hub

#include "app/options/settings.h"

#include <gtest/gtest.h>

namespace nibble::app {
namespace {

hub::Settings with(const Variables& variables) { return hub_settings(variables); }

TEST(hub_settings, find_the_cache_as_hugging_faces_tools_do) {
  EXPECT_EQ(with({{"HOME", "/h"}}).cache, "/h/.cache/huggingface/hub");
  EXPECT_EQ(with({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}).cache, "/x/huggingface/hub");
  EXPECT_EQ(with({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "/hf"}}).cache, "/hf/hub");
  EXPECT_EQ(with({{"HOME", "/h"}, {"HF_HOME", "~/hf"}}).cache, "/h/hf/hub");
  EXPECT_EQ(with({{"HF_HOME", "/hf"}, {"HUGGINGFACE_HUB_CACHE", "/old"}}).cache, "/old");
  EXPECT_EQ(with({{"HF_HOME", "/hf"}, {"HUGGINGFACE_HUB_CACHE", "/old"}, {"HF_HUB_CACHE", "/c"}}).cache, "/c");
  EXPECT_EQ(with({{"HF_HOME", "/hf"}, {"HF_HUB_CACHE", ""}}).cache, "/hf/hub");
}

TEST(hub_settings, find_endpoint_token_and_mode) {
  EXPECT_EQ(with({{"HF_HOME", "/hf"}}).endpoint, "https://huggingface.co");
  EXPECT_EQ(with({{"HF_ENDPOINT", "http://mirror:1/"}}).endpoint, "http://mirror:1");
  EXPECT_EQ(with({{"HF_HOME", "/hf"}}).token_file, "/hf/token");
  EXPECT_EQ(with({{"HF_HOME", "/hf"}, {"HF_TOKEN_PATH", "/t"}}).token_file, "/t");
  EXPECT_EQ(with({{"HF_TOKEN", "hf_x"}}).token, "hf_x");
  EXPECT_FALSE(with({{"HF_HUB_OFFLINE", "0"}}).offline);
  for (const char* yes : {"1", "true", "YES", "on"}) EXPECT_TRUE(with({{"HF_HUB_OFFLINE", yes}}).offline) << yes;
}

}  // namespace
}  // namespace nibble::app

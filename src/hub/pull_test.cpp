#include "hub/http.h"

#include "base/error.h"
#include "hub/partial_file.h"
#include "hub/testing/scratch_cache.h"

#include <gtest/gtest.h>

#include <ctime>

namespace nibble::hub {
namespace {

HttpAnswer answer(int status, std::map<std::string, std::string> headers = {}) {
  HttpAnswer a;
  a.status = status;
  a.headers = std::move(headers);
  return a;
}

TEST(retry, is_worth_it_for_what_passes) {
  for (const int status : {408, 429, 500, 502, 503, 504}) EXPECT_TRUE(retry_of(answer(status), 0).worth) << status;
  for (const int status : {200, 400, 401, 403, 404, 410, 416})
    EXPECT_FALSE(retry_of(answer(status), 0).worth) << status;
  HttpAnswer cut = answer(206);
  cut.failure = "connection reset";
  EXPECT_TRUE(retry_of(cut, 0).worth);
  cut.hopeless = true;
  EXPECT_FALSE(retry_of(cut, 0).worth);
}

TEST(retry, waits_longer_each_time_or_as_long_as_it_is_told) {
  EXPECT_EQ(retry_of(answer(500), 0).seconds, 0.5);
  EXPECT_EQ(retry_of(answer(500), 3).seconds, 4);
  EXPECT_EQ(retry_of(answer(500), 1000).seconds, 30);
  EXPECT_EQ(retry_of(answer(429, {{"retry-after", "7"}}), 0).seconds, 7);
  EXPECT_EQ(retry_of(answer(429, {{"ratelimit", R"("api";r=0;t=55)"}}), 0).seconds, 55);
  EXPECT_FALSE(retry_of(answer(429, {{"retry-after", "3600"}}), 0).worth);
  EXPECT_EQ(retry_of(answer(429, {{"retry-after", "soon"}}), 1).seconds, 1);
  const std::time_t soon = std::time(nullptr) + 20;
  char date[40];
  std::strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", std::gmtime(&soon));
  EXPECT_NEAR(retry_of(answer(503, {{"retry-after", date}}), 0).seconds, 20, 2);
}

TEST(url, escapes_what_is_no_name) {
  EXPECT_EQ(url_escaped("a b/ü?#%.gguf", "/"), "a%20b/%C3%BC%3F%23%25.gguf");
  EXPECT_EQ(url_escaped("refs/pr/1", ""), "refs%2Fpr%2F1");
}

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

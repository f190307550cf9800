#include "hub/http.h"

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

}  // namespace
}  // namespace nibble::hub

#include "client/endpoint.h"

#include "base/error.h"

#include <gtest/gtest.h>

namespace nibble::client {
namespace {

TEST(Endpoint, takes_what_openais_clients_take) {
  const Endpoint plain = parse_base_url("http://127.0.0.1:8000");
  EXPECT_EQ(plain.host, "127.0.0.1");
  EXPECT_EQ(plain.port, "8000");
  EXPECT_EQ(plain.base_url(), "http://127.0.0.1:8000/v1");
  EXPECT_EQ(parse_base_url("http://gpu.example:8000/v1/").base_url(), "http://gpu.example:8000/v1");
  EXPECT_EQ(parse_base_url("http://gpu.example/api/openai").base_url(), "http://gpu.example/api/openai");
  const Endpoint six = parse_base_url("http://[::1]:81/v1");
  EXPECT_EQ(six.host, "::1");
  EXPECT_EQ(six.authority(), "[::1]:81");
  EXPECT_EQ(parse_base_url("http://[::1]").port, "80");
  EXPECT_FALSE(plain.tls);
  const Endpoint secure = parse_base_url("https://gpu.example");
  EXPECT_TRUE(secure.tls);
  EXPECT_EQ(secure.port, "443");
  EXPECT_EQ(secure.base_url(), "https://gpu.example/v1");
  EXPECT_EQ(parse_base_url("https://gpu.example:80/v1").base_url(), "https://gpu.example:80/v1");
}

TEST(Endpoint, refuses_what_is_no_such_url) {
  for (const char* url : {"", "localhost:8000", "ftp://a", "https://", "http://", "http://:80", "http://a:0",
                          "http://a:65536", "http://a:x", "http://a:8000:9", "http://[::1", "http://[::1]x",
                          "http://a/v1?b", "http://u@a", "http://a /v1", "http://a\r\nX: y"}) {
    EXPECT_THROW(static_cast<void>(parse_base_url(url)), Error) << url;
  }
}

}  // namespace
}  // namespace nibble::client

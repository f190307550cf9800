#include "client/event_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nibble::client {
namespace {

using testing::ElementsAre;

std::vector<std::string> events(std::string_view bytes, size_t piece) {
  EventStream stream;
  std::vector<std::string> found;
  for (size_t at = 0; at < bytes.size(); at += piece)
    EXPECT_TRUE(stream.take(bytes.substr(at, piece), [&](std::string_view data) { found.emplace_back(data); }));
  return found;
}

TEST(EventStream, finds_the_same_events_however_the_bytes_are_cut) {
  const std::string_view bytes =
      ": hello\n\ndata: {\"a\":1}\n\nevent: x\nid: 7\ndata:two\ndata: lines\n\ndata\n\n\n\nretry: 3\n\ndata: [DONE]\n\ndata: cut";
  for (size_t piece = 1; piece <= bytes.size(); ++piece)
    EXPECT_THAT(events(bytes, piece), ElementsAre("{\"a\":1}", "two\nlines", "", "[DONE]")) << piece;
}

TEST(EventStream, takes_every_line_end) {
  for (size_t piece = 1; piece < 12; ++piece) {
    EXPECT_THAT(events("data: a\r\n\r\ndata: b\r\n\r\n", piece), ElementsAre("a", "b")) << piece;
    EXPECT_THAT(events("data: a\r\rdata: b\r\r", piece), ElementsAre("a", "b")) << piece;
    EXPECT_THAT(events("data: a\r\n\ndata: b\n\r\n", piece), ElementsAre("a", "b")) << piece;
  }
}

TEST(EventStream, an_event_without_end_is_refused) {
  EventStream stream;
  const std::string much(1 << 20, 'x');
  const auto ignore = [](std::string_view) {};
  bool took = stream.take("data: ", ignore);
  for (int i = 0; i < 17 && took; ++i) took = stream.take(much, ignore);
  EXPECT_FALSE(took);
}

}  // namespace
}  // namespace nibble::client

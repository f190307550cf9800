#include "backend/ranks/frames.h"

#include "backend/ranks/step_frame.h"
#include "base/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace nibble::backend {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

std::string refusal_of(std::span<const std::byte> bytes) {
  try {
    const FrameHeader header = read_header(bytes.first<kFrameHeaderBytes>(), 100);
    return fmt::format("a frame of {} bytes", header.body_bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kCorrupt);
    return error.what();
  }
}

TEST(frames, what_is_none_is_refused) {
  const std::string_view http = "GET / HTTP/1.1\r\n\r\n";
  EXPECT_THAT(refusal_of(std::as_bytes(std::span(http))), HasSubstr("found other bytes"));
  EXPECT_THAT(refusal_of(frame_header(FrameType::kStep, 101)), HasSubstr("want at most 100 bytes, found 101"));
  EXPECT_THAT(refusal_of(frame_header(FrameType::kStep, ~size_t{0})), HasSubstr("want at most 100 bytes"));
  EXPECT_THAT(refusal_of(frame_header(static_cast<FrameType>(kFrameTypes), 0)), HasSubstr("type below"));
  EXPECT_EQ(refusal_of(frame_header(FrameType::kStep, 100)), "a frame of 100 bytes");
}

TEST(frames, a_body_that_ends_early_or_late_is_refused) {
  BodyWriter body;
  const std::vector<int32_t> three = {1, 2, 3};
  body.field(std::span<const int32_t>(three));
  Frame frame{FrameType::kStep, {body.bytes().begin(), body.bytes().end()}};
  std::span<const int32_t> found;
  BodyReader(frame).field(found);
  EXPECT_THAT(found, ElementsAre(1, 2, 3));
  EXPECT_THROW((void)BodyReader(frame).text(2), Error);
  BodyReader rest(frame);
  (void)rest.number<int32_t>();
  EXPECT_THROW(rest.end(), Error);
  frame.body.pop_back();
  EXPECT_THROW(BodyReader(frame).field(found), Error);
  EXPECT_THROW((void)BodyReader(frame).bare<int64_t>(~uint64_t{0} / 8), Error);
  frame.body.clear();
  EXPECT_THROW((void)BodyReader(frame).number<uint8_t>(), Error);
}

// ---- steps ----

BackendConfig small_config() {
  BackendConfig config;
  config.dims = {.layers = 1, .vocab = 50, .max_context = 1000};
  config.max_tokens = 8;
  config.max_rows = 4;
  config.kv_pages = {2, 3, 4};
  return config;
}

struct OneStep {
  std::vector<int32_t> ids{3, 4, 5}, positions{10, 11, 0}, slots{70, 71, 1}, pages{0, 1, 0, -1}, logit_tokens{1, 2};
  std::vector<Row> rows{{.first_token = 0, .tokens = 2, .context = 12}, {.first_token = 2, .tokens = 1, .context = 1}};

  [[nodiscard]] Frame frame() const {
    const PageTable table{.ids = pages, .pages_per_row = 2};
    const std::vector<std::byte> body = written({.weights = nullptr,
                                                 .ids = ids,
                                                 .positions = positions,
                                                 .kv_slots = {slots, slots, slots},
                                                 .pages = {table, table, table},
                                                 .rows = rows,
                                                 .logit_tokens = logit_tokens,
                                                 .sample_rows = {},
                                                 .sinks = false});
    return {FrameType::kStep, body};
  }
};

TEST(frames, a_step_arrives_as_it_was) {
  const OneStep step;
  const ReceivedStep got(step.frame(), small_config());
  const Weights weights;
  const StepArgs args = got.args(weights);
  EXPECT_THAT(args.ids, ElementsAreArray(step.ids));
  EXPECT_THAT(args.positions, ElementsAreArray(step.positions));
  EXPECT_THAT(args.logit_tokens, ElementsAreArray(step.logit_tokens));
  EXPECT_FALSE(args.sinks);
  EXPECT_EQ(args.rows[0].context, 12);
  for (size_t kind = 0; kind < kLayerKinds; ++kind) {
    EXPECT_THAT(args.kv_slots[kind], ElementsAreArray(step.slots));
    EXPECT_THAT(args.pages[kind].ids, ElementsAreArray(step.pages));
    EXPECT_EQ(args.pages[kind].pages_per_row, 2);
  }
}

TEST(frames, a_step_out_of_range_is_refused) {
  const auto refused = [](auto change) {
    OneStep step;
    change(step);
    EXPECT_THROW((void)ReceivedStep(step.frame(), small_config()), Error);
  };
  refused([](OneStep& s) { s.ids[0] = 50; });
  refused([](OneStep& s) { s.ids[0] = -1; });
  refused([](OneStep& s) { s.ids.assign(9, 1); });
  refused([](OneStep& s) { s.positions.pop_back(); });
  refused([](OneStep& s) { s.positions[0] = 1000; });
  refused([](OneStep& s) { s.slots[0] = 2 * kPageTokens; });
  refused([](OneStep& s) { s.slots.pop_back(); });
  refused([](OneStep& s) { s.pages[0] = 2; });
  refused([](OneStep& s) { s.pages[0] = -2; });
  refused([](OneStep& s) { s.pages.pop_back(); });
  refused([](OneStep& s) { s.rows.pop_back(); });
  refused([](OneStep& s) { s.rows[1].first_token = 1; });
  refused([](OneStep& s) { s.rows[1].context = 0; });
  refused([](OneStep& s) { s.logit_tokens[0] = 3; });
}

// Damaged anywhere, a step is refused or another step; nothing else happens.
TEST(frames, a_damaged_step_harms_nobody) {
  const Frame whole = OneStep().frame();
  for (uint64_t i = 0; i < 20'000; ++i) {
    Frame frame = whole;
    const Philox4 draw = philox(7, i);
    frame.body[draw[0] % frame.body.size()] = static_cast<std::byte>(draw[1]);
    if (draw[2] % 4 == 0) frame.body.resize(draw[3] % frame.body.size());
    try {
      const ReceivedStep step(frame, small_config());
      EXPECT_LE(step.args({}).ids.size(), 8u);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kCorrupt);
    }
  }
}

}  // namespace
}  // namespace nibble::backend

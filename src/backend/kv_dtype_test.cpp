#include "backend/kv_dtype.h"

#include "backend/backend.h"
#include "backend/testing/kv_half_byte.h"
#include "base/error.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

namespace nibble::backend {
namespace {

std::string refusal(const std::function<void()>& ask) {
  try {
    ask();
  } catch (const Error& why) {
    EXPECT_EQ(why.code(), Code::kUnsupported);
    return why.what();
  }
  return "";
}
std::string refusal(const KvType& type, BackendKind taker) {
  return refusal([&] { require_taken(type, taker); });
}

// What adds a type: this line. Each backend asks require_taken() for the line before it takes memory.
constexpr KvType kNew = {static_cast<KvDtype>(kKvDtypes), "nf4", "nf4", 4, 2, 64, true, {}};

TEST(kv_dtype, a_new_line_is_refused_by_name_by_every_backend) {
  EXPECT_EQ(refusal(kNew, BackendKind::kCpu), "--kv-cache-dtype nf4: no kernels of --backend cpu take it");
  EXPECT_EQ(refusal(kNew, BackendKind::kCuda), "--kv-cache-dtype nf4: no kernels of --backend cuda take it");
  EXPECT_EQ(refusal(kNew, BackendKind::kReference), "--kv-cache-dtype nf4: no kernels of --backend reference take it");
}

TEST(kv_dtype, a_line_is_taken_by_whom_it_names) {
  KvType type = kNew;
  type.on = {BackendKind::kCpu};
  EXPECT_EQ(refusal(type, BackendKind::kCpu), "");
  EXPECT_NE(refusal(type, BackendKind::kCuda), "");
}

TEST(kv_dtype, int8_alone_is_not_for_cards) {
  for (const KvType& type : kKvTypes) {
    EXPECT_EQ(refusal(type, BackendKind::kCpu), "");
    EXPECT_EQ(refusal(type, BackendKind::kReference), "");
    EXPECT_EQ(type.on.has(BackendKind::kCuda), type.dtype != KvDtype::kInt8) << type.word;
  }
}

static_assert(row_bytes(type_of(KvDtype::kBf16), 64) == 128);
static_assert(row_bytes(type_of(KvDtype::kF32), 64) == 256);
static_assert(row_bytes(type_of(KvDtype::kE4m3), 64) == 64);
static_assert(row_bytes(type_of(KvDtype::kInt8), 64) == 66 && row_bytes(type_of(KvDtype::kInt8), 128) == 130);
static_assert(row_bytes(kHalfByte, 64) == 34 && code_bytes(kHalfByte, 64) == 32 && scale_bytes(kHalfByte, 64) == 2);
static_assert(row_bytes(kHalfByte, 32) == 17 && row_bytes(kHalfByte, 128) == 68);

TEST(kv_dtype, a_row_is_whole_blocks_of_its_type) {
  const auto row_of = [](const KvType& type, int64_t values) {
    return refusal([&] { static_cast<void>(row_bytes(type, values)); });
  };
  EXPECT_EQ(row_of(kHalfByte, 80), "--kv-cache-dtype half: want heads of whole blocks of 32, found a head_dim of 80");
  EXPECT_NE(row_of(kHalfByte, 16), "");
  KvType odd = kHalfByte;
  odd.block = 1;
  EXPECT_EQ(row_of(odd, 81), "--kv-cache-dtype half: want heads of whole bytes, found a head_dim of 81");
  for (const KvType& type : kKvTypes) {
    EXPECT_EQ(row_of(type, 80), "");
    EXPECT_NE(row_of(type, 0), "");
    EXPECT_NE(row_of(type, -64), "");
  }
}

TEST(kv_dtype, sizes_beyond_64_bits_are_refused) {
  for (const int64_t values : {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max() / 32})
    EXPECT_NE(refusal([&] { static_cast<void>(row_bytes(type_of(KvDtype::kF32), values)); }), "");
  BackendConfig config;
  config.dims = {.kv_heads = int64_t{1} << 20, .head_dim = 64};
  config.layer_kinds.assign(64, LayerKind::kFull);
  config.kv_pages.fill(std::numeric_limits<int32_t>::max());
  EXPECT_NE(refusal([&] { static_cast<void>(kv_bytes(config, 34)); }).find("KV cache: want fewer than 2^63 bytes"),
            std::string::npos);
}

// gpt-oss-20b: 12 layers of each kind, 8 heads of 64.
TEST(kv_dtype, pages_of_a_model_take_the_bytes_of_their_rows) {
  BackendConfig config;
  config.dims = {.kv_heads = 8, .head_dim = 64};
  for (int l = 0; l < 24; ++l) config.layer_kinds.push_back(l % 2 == 0 ? LayerKind::kSliding : LayerKind::kFull);
  config.kv_pages = {3, 2048};
  const int64_t rows = 12 * (3 + 2048) * kPageTokens * 2 * 8;
  for (const KvType& type : kKvTypes) EXPECT_EQ(kv_bytes(config, row_bytes(type, 64)), rows * row_bytes(type, 64));
  EXPECT_EQ(kv_bytes(config, row_bytes(kHalfByte, 64)), rows * 34);
  EXPECT_EQ(32 * kv_bytes(config, row_bytes(kHalfByte, 64)),
            17 * kv_bytes(config, row_bytes(type_of(KvDtype::kE4m3), 64)));
}

}  // namespace
}  // namespace nibble::backend
